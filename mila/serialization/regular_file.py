"""Reading a file whose path may lead to anything, and that may be cut or replaced meanwhile."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Self

from mila.serialization.failures import operating_system_refusal, refusal
from mila.serialization.paths import checked_path


class FileIdentity(NamedTuple):
    """What stays the same while a file is the same: device, inode, size in bytes, time of the last change."""

    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """That of the file with this status."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def require_at(self, place: Path, named: Path) -> None:
        """Check that a path still leads to this file, unchanged.

        Args:
            place: the path, absolute, so that it means the same from every working folder.
            named: what errors call the file.

        Raises:
            CheckpointError: it was replaced, changed or removed.
        """
        try:
            now = FileIdentity.of(place.stat())
        except OSError as error:
            raise operating_system_refusal(named, "changed since it was opened", error) from error
        if now != self:
            got = "one that changed or was replaced since"
            raise refusal(named, expected="the file that was opened", got=got, hint="open it again")


def open_regular_file(path: Path | str) -> FileIO:
    """Open a file for reading; links are followed.

    Raises:
        CheckpointError: no such file, one that may not be read, a folder, a pipe or a device, or a name that no system
            takes.
    """
    path = checked_path(path)
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
        # Opening a pipe would wait for its other end.
        file = FileIO(path) if is_file else None
    except OSError as error:
        raise operating_system_refusal(path, "could not be opened", error) from error
    if file is None:
        raise refusal(path, expected="a file", got="a folder, a pipe or a device")
    return file


def fill(file: FileIO, offset: int, buffer: memoryview) -> int:
    """Read from `offset` on until `buffer` is full or the file ends; return the bytes that the file lacks."""
    file.seek(offset)
    while buffer.nbytes:
        count = file.readinto(buffer)
        if not count:
            break
        buffer = buffer[count:]
    return buffer.nbytes
