"""Writing a folder of files so that, whenever the writer dies, its name leads to the old folder or the new one, whole.

The folder is filled under a temporary name beside its final one, synchronised from the inside out, and renamed. If
the final name is taken, the two folders change names in one step (``RENAME_EXCHANGE`` on Linux) and the old one,
now under the temporary name, is removed. Where the system cannot exchange, the old folder is renamed to
``.name.<token>.previous``, the new one takes its place, and the old one is removed. A writer that dies between these
two renames leaves no folder of that name but a whole ``.previous``: `recover_folder`, which every reader and
writer calls first, gives it its name back. A ``.previous`` whose successor is in place is removed by the next writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from mila.errors import LifecycleError
from mila.serialization import filesystem
from mila.serialization.blocks import FinishedAfterBlock
from mila.serialization.failures import refusal, refusals
from mila.serialization.paths import checked_path
from mila.serialization.temporaries import (
    PARTIAL,
    PREVIOUS,
    create_locked,
    discard,
    name_beside,
    names_beside,
    remove_left_behind,
)


class AtomicFolder(FinishedAfterBlock):
    """A folder under a temporary name, `path`, that `commit` gives its final one; as a context manager, at the end.

    Raises:
        CheckpointError: the final name belongs to something that is not a folder, or the operating system refuses.
    """

    def __init__(self, final: Path | str) -> None:
        self.final = checked_path(final)
        self._target = self.final.absolute()
        self._is_open = True
        recover_folder(self.final)
        if self._target.is_symlink() or (self._target.exists() and not self._target.is_dir()):
            raise refusal(self.final, expected="a folder or a free name", got="a file or a link")
        with refusals(self.final, "could not be created"):
            remove_left_behind(self._target, PARTIAL, PREVIOUS)
            self.path, self._lock = create_locked(self._target, filesystem.create_folder)

    def commit(self) -> None:
        """Make the folder permanent and give it its name.

        Raises:
            LifecycleError: it was committed or aborted before.
            CheckpointError: the operating system refuses; the old folder is as it was, unless the message says
                otherwise.
        """
        if not self._is_open:
            raise LifecycleError(f"{self.final}: commit of a folder that was committed or aborted before")
        try:
            with refusals(self.final, "could not be written, what was there stays"):
                self._take_over_permissions()
                _synchronize_tree(self.path)
                replaced = self._take_name()
        except BaseException:
            self.abort()
            raise
        self._is_open = False
        # Until the renaming is on the medium, the old folder may be what a power failure leaves: it goes afterwards.
        with refusals(self.final, "was written, but the folder around it could not be synchronised"):
            try:
                filesystem.synchronize_path(self._target.parent)
            finally:
                filesystem.unlock(self._lock)
        if replaced is not None:
            # What cannot be removed now is removed by the next writer: the new folder is in place already.
            with contextlib.suppress(OSError):
                filesystem.remove_tree(replaced)

    def abort(self) -> None:
        """Remove the temporary folder; nothing happens where there is none any more."""
        if not self._is_open:
            return
        self._is_open = False
        discard(self.path)
        filesystem.unlock(self._lock)

    def _take_over_permissions(self) -> None:
        if not self._target.exists():
            return
        # Its owner has to be able to remove it, whatever the old one allowed.
        mode = self._target.stat().st_mode & 0o7777 | 0o700
        if mode != self.path.stat().st_mode & 0o7777:
            filesystem.change_mode(self.path, mode)

    def _take_name(self) -> Path | None:
        """Let the new folder have the final name; return where the old one is now, if there was one."""
        if not self._target.exists():
            filesystem.rename(self.path, self._target)
            return None
        if filesystem.exchange(self.path, self._target):
            return self.path
        previous = name_beside(self._target, PREVIOUS)
        # Held, so that nobody who finds the final name free for a moment takes this writer for dead.
        lock = filesystem.lock(self._target)
        try:
            filesystem.rename(self._target, previous)
            try:
                filesystem.rename(self.path, self._target)
            except BaseException:
                filesystem.rename(previous, self._target)
                raise
        finally:
            filesystem.unlock(lock)
        return previous

    def finish(self) -> None:
        """`commit`, at the end of a block."""
        self.commit()


def replace_folder_atomically(final: Path | str, populate: Callable[[Path], None]) -> None:
    """Write a whole folder by `populate`, which gets the temporary one; see the module for what is guaranteed.

    Raises:
        CheckpointError: the operating system refuses; one line that names the folder and the reason.
    """
    with AtomicFolder(final) as folder, refusals(folder.final, "could not be written, what was there stays"):
        populate(folder.path)


def recover_folder(final: Path | str) -> None:
    """Undo what a writer killed between two renames left: a previous folder whose successor never took its name.

    Does nothing where the folder exists, or where a living writer is about to put its successor in place.

    Raises:
        CheckpointError: the operating system refuses.
    """
    target = checked_path(final).absolute()
    with refusals(final, "could not be opened"):
        if target.exists() or not target.parent.is_dir():
            return
        left = names_beside(target, PREVIOUS)
    for previous in left:
        _give_name_back(previous, target, final)


def _give_name_back(previous: Path, target: Path, final: Path | str) -> None:
    with refusals(final, f"could not be recovered from {previous.name}"):
        try:
            lock = filesystem.lock(previous)
        except (BlockingIOError, FileNotFoundError):
            return
        try:
            filesystem.rename(previous, target)
            filesystem.synchronize_path(target.parent)
        finally:
            filesystem.unlock(lock)


def _synchronize_tree(folder: Path) -> None:
    for path in filesystem.list_folder(folder):
        if path.is_dir():
            _synchronize_tree(path)
        else:
            filesystem.synchronize_path(path)
    filesystem.synchronize_path(folder)
