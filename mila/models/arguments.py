"""Checks of the arguments that reading, loading and writing models share."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any

from mila.core import BuildContext, RuntimeMode
from mila.core.context import require_positive
from mila.core.loading import Progress
from mila.errors import ConfigurationError
from mila.serialization.failures import shown


def check_truth(name: str, value: bool | None) -> None:
    """Raise :class:`ConfigurationError` for an argument that is neither a truth value nor ``None``."""
    if value is not None and not isinstance(value, bool):
        raise ConfigurationError(f"{name}: expected True, False or None, got {shown(value)}")


def check_probability(name: str, value: float | None) -> None:
    """Raise :class:`ConfigurationError` for an argument that is neither a number from 0 to below 1 nor ``None``."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 <= value < 1):
        raise ConfigurationError(f"{name}: expected a number from 0 to below 1 or None, got {shown(value)}")


def check_names(name: str, value: Collection[str]) -> None:
    """Raise :class:`ConfigurationError` for an argument that is not a collection of texts."""
    if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(each, str) for each in value):
        raise ConfigurationError(f"{name}: expected a list of names, got {shown(value)}")


def check_progress(value: Progress | None) -> None:
    """Raise :class:`ConfigurationError` where ``on_progress`` cannot be called."""
    callback: Any = value
    if callback is not None and not callable(callback):
        raise ConfigurationError(f"on_progress: expected a function or None, got {shown(callback)}")


def build_context(
    call: str, sizes: Mapping[str, int | None], runtime_mode: RuntimeMode, options: Mapping[str, Any]
) -> BuildContext:
    """The context of the build of ``call``, with the caller's names for what is wrong with it.

    Args:
        call: the function that was called.
        sizes: the batch and the positions by the names that it has for them; positions of ``None`` count as 1.
        runtime_mode: what the build allocates for.
        options: further fields of the context.

    Raises:
        ConfigurationError: an option that a context does not have.
        ShapeError: a size that is no positive integer.
    """
    known = [
        name for name, each in inspect.signature(BuildContext).parameters.items() if each.kind is each.KEYWORD_ONLY
    ]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ConfigurationError(
            f"{call}: has no argument {', '.join(unknown)}; options of the build are {', '.join(known)}"
        )
    for name, value in sizes.items():
        if value is not None:
            require_positive(call, name, value)
    shape = tuple(1 if value is None else value for value in sizes.values())
    return BuildContext(shape, runtime_mode, **{"initialize_parameters": False, **options})
