"""The errors Mila raises: one hierarchy that also fits the built-in one.

Every message is one line that names the component path or the file, what was expected, what came, and what to do.
"""

from __future__ import annotations


class MilaError(Exception):
    """Anything that Mila refuses."""


class LifecycleError(MilaError, RuntimeError):
    """A call that the component's state does not allow: not built, built twice, wrong mode, no execution context."""


class ShapeError(MilaError, ValueError):
    """A shape, a rank or a size that does not fit."""


class DTypeError(MilaError, TypeError):
    """A dtype that does not fit, or that may not be converted."""


class ConfigurationError(MilaError, ValueError):
    """A name, an option or a combination of options that has no meaning."""


class DeviceError(MilaError, RuntimeError):
    """A device that does not exist here, or that lacks a kernel."""


class OutOfMemoryError(MilaError, MemoryError):
    """A build that needs more bytes than there are; nothing was allocated."""


class CheckpointError(MilaError, ValueError):
    """A file or a set of tensors that is malformed, incomplete or does not fit; nothing was changed."""


class TokenIdError(MilaError, IndexError, ValueError):
    """A token id or a target outside its vocabulary."""


class NonFiniteError(MilaError, ArithmeticError):
    """A gradient or a loss that is not a finite number."""


class DataError(MilaError, ValueError):
    """Training data that is missing, empty or too short."""
