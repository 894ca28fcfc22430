"""The errors Mila raises: one hierarchy that also fits the built-in one.

Every message is one line that names the component path or the file, what was expected, what came, and what to do.
"""

from __future__ import annotations

from typing import Literal


class MilaError(Exception):
    """Anything that Mila refuses."""


class LifecycleError(MilaError, RuntimeError):
    """A call that the component's state does not allow: not built, built twice, wrong mode, no execution context."""


class ShapeError(MilaError, ValueError):
    """A shape, a rank or a size that does not fit."""


class UnaddressableError(ShapeError):
    """Buffers of more bytes than any memory addresses."""


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


class UnknownArchitectureError(CheckpointError):
    """A model of a kind that Mila does not have; its file may be in order."""


class TokenIdError(MilaError, IndexError, ValueError):
    """A token id or a target outside its vocabulary."""


class NonFiniteError(MilaError, ArithmeticError):
    """A gradient or a loss that is not a finite number."""


class DataError(MilaError, ValueError):
    """Training data that is missing, empty or too short."""


NetworkErrorCode = Literal[
    "E_AMBIGUOUS",
    "E_ARGUMENT",
    "E_BINDING",
    "E_CONSTRAINT",
    "E_CURRENT",
    "E_DTYPE",
    "E_INITIALIZATION",
    "E_INTEGRITY",
    "E_NAME",
    "E_OPERATOR",
    "E_OUTPUT",
    "E_OUTPUT_ARITY",
    "E_POLICY_CONFLICT",
    "E_REGISTRY",
    "E_RESHAPE",
    "E_RESOURCE",
    "E_SCHEMA",
    "E_STATE_VERSION",
    "E_SYNTAX",
    "E_TRAINABILITY",
    "E_UNRESOLVED",
]
"""What a network definition can be refused for; `specs/network_language.md` describes each."""


class NetworkError(MilaError, ValueError):
    """A network definition, its contracts or its saved plan that has no meaning.

    Attributes:
        code: the kind of fault, such as ``"E_CONSTRAINT"``.
        message: what was expected and what came, without the place.
        node: the node it is about, if there is one yet.
        line: the line of the source, from 1, if the fault has a place in it.
        column: the character of that line, from 1.
    """

    def __init__(
        self,
        code: NetworkErrorCode,
        message: str,
        *,
        node: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        self.code = code
        self.message = message
        self.node = node
        self.line = line
        self.column = column
        place = f"line {line}, column {column}" if line is not None else None
        where = "; ".join(part for part in (f"node {node}" if node is not None else None, place) if part)
        super().__init__(f"{code} ({where}): {message}" if where else f"{code}: {message}")
