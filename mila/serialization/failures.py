"""The form of every refusal of this package: which file, which tensor, what was expected, what came."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from mila.errors import CheckpointError

_LONGEST_SHOWN = 120
_MOST_SHOWN = 16


def shown(value: object) -> str:
    """Return `value` as one short line: a hostile name may be as long as its file, a hostile list as deep."""
    if isinstance(value, list | tuple):
        if len(value) > _MOST_SHOWN:
            return f"a list of {len(value)}"
        return _cut("[" + ", ".join(_shown_item(item) for item in value) + "]")
    return _shown_item(value)


def _shown_item(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    if isinstance(value, str | bytes) and len(value) > _LONGEST_SHOWN:
        return repr(value[:_LONGEST_SHOWN]) + "..."
    return repr(value)


def _cut(text: str) -> str:
    return text if len(text) <= 2 * _LONGEST_SHOWN else text[: 2 * _LONGEST_SHOWN] + "..."


def refusal(
    path: Path | str, *, expected: str, got: str, tensor: str | None = None, hint: str | None = None
) -> CheckpointError:
    """Return the one-line error for something in `path` that is not as it has to be."""
    place = f"{path}: " if tensor is None else f"{path}: tensor {shown(tensor)}: "
    message = f"{place}expected {expected}, got {got}"
    return CheckpointError(message if hint is None else with_hint(message, hint))


def with_hint(message: str, hint: str) -> str:
    """Return a message and what may help; one that asks something already is a sentence that has ended."""
    return f"{message} {hint[:1].upper()}{hint[1:]}" if message.endswith("?") else f"{message}; {hint}"


def operating_system_refusal(path: Path | str, action: str, error: OSError) -> CheckpointError:
    """Return the one-line error for an operation on `path` that the operating system refused."""
    reason = error.strerror or str(error) or type(error).__name__
    return CheckpointError(f"{path}: {action}: {reason}")


@contextlib.contextmanager
def refusals(path: Path | str, action: str) -> Iterator[None]:
    """Turn what the operating system refuses in the block into the one error of this package."""
    try:
        yield
    except OSError as error:
        raise operating_system_refusal(path, action, error) from error
