"""The names under which files and folders are written until they are whole, and what becomes of those left behind.

Something that will be called ``model`` is written as ``.model.<token>.partial`` beside its final place. Its writer
holds a lock on it that ends with the writer, however it ends; so one that nobody holds was left by a writer that was
killed, and the next writer of ``model`` removes it. Where the system has no locks, nothing is ever taken for left.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from mila.serialization import filesystem

PARTIAL = ".partial"
"""The ending of something that is still being written."""
PREVIOUS = ".previous"
"""The ending of a folder that was moved aside to make room for its successor."""

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}(?P<ending>\.partial|\.previous)", re.DOTALL)


def name_beside(path: Path, ending: str) -> Path:
    """Return a new, unused name beside `path` that tells what it stands for."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{ending}")


def named_after(temporary: Path, ending: str) -> str | None:
    """Return the name that `name_beside` made a name for; None where it did not make this one."""
    match = _TEMPORARY.fullmatch(temporary.name)
    return match["name"] if match is not None and match["ending"] == ending else None


def names_beside(path: Path, ending: str) -> list[Path]:
    """Return what lies beside `path` under the names that `name_beside` makes for it."""
    return [each for each in filesystem.list_folder(path.parent) if named_after(each, ending) == path.name]


def create_locked(path: Path, create: Callable[[Path], None]) -> tuple[Path, int | None]:
    """Create a temporary for `path` and return it with its lock.

    A cleaner may come between creating and locking and take the new temporary for one left behind; then another
    is made.
    """
    while True:
        temporary = name_beside(path, PARTIAL)
        create(temporary)
        try:
            lock = filesystem.lock(temporary)
        except (BlockingIOError, FileNotFoundError):
            continue
        except BaseException:
            discard(temporary)
            raise
        if lock is None or filesystem.holds_lock_of(lock, temporary):
            return temporary, lock
        filesystem.unlock(lock)


def discard(temporary: Path) -> None:
    """Remove a temporary of one's own; what cannot be removed stays for the next writer."""
    with contextlib.suppress(OSError):
        remove(temporary)


def remove_left_behind(path: Path, *endings: str) -> None:
    """Remove what writers of `path` that are gone have left; what cannot be removed stays for another time."""
    with contextlib.suppress(OSError):
        for ending in endings:
            for temporary in names_beside(path, ending):
                remove_if_abandoned(temporary)


def remove_if_abandoned(temporary: Path) -> None:
    """Remove a temporary, file or folder, unless somebody holds its lock or its system has none."""
    with contextlib.suppress(OSError):
        lock = filesystem.lock(temporary)
        if lock is None:
            return
        try:
            remove(temporary)
        finally:
            filesystem.unlock(lock)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that it holds."""
    if path.is_dir() and not path.is_symlink():
        filesystem.remove_tree(path)
    else:
        filesystem.remove_file(path)
