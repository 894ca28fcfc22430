"""Writing a file so that, whenever the writer dies, its name leads to the old bytes or to the new ones, whole.

Temporary file in the same folder, write, flush, synchronise, permissions, replace, synchronise the folder. If
anything fails before the replacing, the temporary is removed and the old file was never touched. A name that is a
symbolic link is itself replaced: the file it leads to stays as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from mila.errors import LifecycleError
from mila.serialization import filesystem
from mila.serialization.blocks import FinishedAfterBlock
from mila.serialization.failures import refusal, refusals
from mila.serialization.paths import checked_path
from mila.serialization.temporaries import PARTIAL, create_locked, discard, remove_left_behind


class AtomicFile(FinishedAfterBlock):
    """A file under a temporary name that `commit` gives its final one; as a context manager, at the end of the block.

    `file` is open for writing and seeking. An exception inside the block, or `abort`, removes it.

    Args:
        path: the final name.
        named: what errors call the file, where `path` is a part of something that has another name in the end.

    Raises:
        CheckpointError: the operating system refuses: no such folder, no permission, no space.
    """

    def __init__(self, path: Path | str, *, named: Path | None = None) -> None:
        given = checked_path(path)
        self.path = named or given
        self._target = given.absolute()
        self._is_open = True
        with refusals(self.path, "could not be created"):
            if self._target.exists() and not (self._target.is_file() or self._target.is_symlink()):
                raise refusal(self.path, expected="a regular file or a free name", got="a folder or a special file")
            remove_left_behind(self._target, PARTIAL)
            self._temporary, self._lock = create_locked(self._target, filesystem.create_file)
            try:
                self.file: BinaryIO = filesystem.open_file(self._temporary)
            except BaseException:
                discard(self._temporary)
                filesystem.unlock(self._lock)
                raise

    def commit(self) -> None:
        """Make the file permanent and give it its name.

        Raises:
            LifecycleError: it was committed or aborted before.
            CheckpointError: the operating system refuses; the old file is as it was, unless the message says otherwise.
        """
        if not self._is_open:
            raise LifecycleError(f"{self.path}: commit of a file that was committed or aborted before")
        try:
            with refusals(self.path, "could not be written, what was there stays"):
                filesystem.flush(self.file)
                filesystem.synchronize_file(self.file)
                self._take_over_permissions()
                filesystem.close(self.file)
                filesystem.replace(self._temporary, self._target)
        except BaseException:
            self.abort()
            raise
        self._is_open = False
        filesystem.unlock(self._lock)
        with refusals(self.path, "was written, but its folder could not be synchronised"):
            filesystem.synchronize_path(self._target.parent)

    def abort(self) -> None:
        """Remove the temporary; nothing happens where there is none any more."""
        if not self._is_open:
            return
        self._is_open = False
        with contextlib.suppress(OSError):
            filesystem.close(self.file)
        discard(self._temporary)
        filesystem.unlock(self._lock)

    def _take_over_permissions(self) -> None:
        if not self._target.exists():
            return
        mode = self._target.stat().st_mode & 0o7777
        if mode != self._temporary.stat().st_mode & 0o7777:
            filesystem.change_mode(self._temporary, mode)

    def finish(self) -> None:
        """`commit`, at the end of a block."""
        self.commit()


def write_file_atomically(path: Path | str, write: Callable[[BinaryIO], None], *, named: Path | None = None) -> None:
    """Write a whole file by `write`, which gets the open temporary; see the module for what is guaranteed.

    Args:
        path: the final name.
        write: writes everything.
        named: what errors call the file, if not `path`.

    Raises:
        CheckpointError: the operating system refuses; one line that names the file and the reason.
    """
    with AtomicFile(path, named=named) as atomic, refusals(atomic.path, "could not be written, what was there stays"):
        write(atomic.file)
