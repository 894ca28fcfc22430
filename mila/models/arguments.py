"""Checks of the arguments that reading, loading and writing models share."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Real
from typing import Any

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
