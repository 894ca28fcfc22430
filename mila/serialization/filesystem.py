"""Every operation on files and folders that writing uses, one function each, so that each can be made to fail.

The callers use this module by its name (``filesystem.replace(...)``); a test that replaces a function here decides
what the operating system answers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

_AT_WORKING_FOLDER = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE_HERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)


def create_file(path: Path) -> None:
    """Create an empty file that must not exist yet, with the permissions that the process's umask leaves."""
    path.touch(0o666, exist_ok=False)


def open_file(path: Path) -> BinaryIO:
    """Open an existing file for writing from its start."""
    return path.open("r+b")


def create_folder(path: Path) -> None:
    """Create a folder that must not exist yet."""
    path.mkdir()


def write(file: BinaryIO, content: bytes | memoryview) -> None:
    """Write bytes where the file stands."""
    file.write(content)


def flush(file: BinaryIO) -> None:
    """Hand what Python still holds to the operating system."""
    file.flush()


def synchronize_file(file: BinaryIO) -> None:
    """Wait until the bytes of an open file are on the medium."""
    os.fsync(file.fileno())


def synchronize_path(path: Path) -> None:
    """Wait until a file, or the list of a folder's entries, is on the medium."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def close(file: BinaryIO) -> None:
    """Close a file."""
    file.close()


def change_mode(path: Path, mode: int) -> None:
    """Set the permission bits of a file."""
    path.chmod(mode)


def replace(source: Path, destination: Path) -> None:
    """Give a file the name of another, which ceases to exist, in one step."""
    source.replace(destination)


def rename(source: Path, destination: Path) -> None:
    """Give a folder another name."""
    source.rename(destination)


def exchange(one: Path, other: Path) -> bool:
    """Let two existing folders change their names in one step; False where the system cannot do that."""
    if not sys.platform.startswith("linux"):
        return False
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    first, second = os.fsencode(one), os.fsencode(other)
    if function(_AT_WORKING_FOLDER, first, _AT_WORKING_FOLDER, second, _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE_HERE:
        return False
    raise OSError(number, os.strerror(number), str(one))


def remove_file(path: Path) -> None:
    """Remove a file."""
    path.unlink()


def remove_tree(path: Path) -> None:
    """Remove a folder and all that it holds."""
    shutil.rmtree(path)


def list_folder(path: Path) -> list[Path]:
    """Return what a folder holds, in the order of the names."""
    return sorted(path.iterdir())


def lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock on a file or folder until it is closed or the process ends.

    None where the system has no such locks.

    Raises:
        BlockingIOError: another descriptor holds it.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def holds_lock_of(descriptor: int, path: Path) -> bool:
    """Whether the locked descriptor is what the path names now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def unlock(descriptor: int | None) -> None:
    """Give a lock back."""
    if descriptor is not None:
        os.close(descriptor)
