"""Paths as callers give them."""

from __future__ import annotations

import os
from pathlib import Path

from mila.errors import ConfigurationError
from mila.serialization.failures import refusal, shown


def checked_path(path: Path | str, argument: str = "path") -> Path:
    """Return a path that an operating system takes; whether it leads anywhere is not looked at.

    Args:
        path: what the caller gave.
        argument: what the caller's function calls it, for the error.

    Raises:
        ConfigurationError: neither a text nor a path.
        CheckpointError: a name that no system takes.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(name := os.fspath(path), str):
        raise ConfigurationError(f"{argument}: expected a path as a text or a pathlib.Path, got {shown(path)}")
    try:
        is_possible = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        got = "a NUL character or half a surrogate pair in it"
        raise refusal(shown(name), expected="a path that the system can open", got=got)
    return Path(name)
