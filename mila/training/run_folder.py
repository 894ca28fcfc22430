"""The checkpoints of one run: a folder of folders, of which the newest and the best stay."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mila.errors import CheckpointError
from mila.models.hugging_face.folder import CONFIG_FILE
from mila.serialization import ArchiveMode, ModelArchive, filesystem, newest_complete
from mila.serialization.export_folder import EXPORT_MARK
from mila.serialization.failures import refusals
from mila.serialization.paths import checked_path
from mila.serialization.sharded import INDEX_NAME, SINGLE_FILE_NAME

_NAME = re.compile(r"step-(\d{8,})")
#: What a checkpoint is called while it is removed.
_REMOVED = ".removed-"


class RunFolder:
    """Where a run keeps its checkpoints, as ``step-00001200``; made when the first is written."""

    def __init__(self, path: Path | str) -> None:
        self.path = checked_path(path, "run folder")

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint after ``step`` updates is, or will be."""
        return self.path / f"step-{step:08d}"

    def create(self) -> None:
        """Make the folder, and the folders above it.

        Raises:
            CheckpointError: it is the folder of a model, or the operating system refuses.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.path}: could not be created: {error.strerror}") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise CheckpointError(f"{self.path}: expected a folder that can be written to")
        if self._holds_model():
            raise CheckpointError(f"{self.path}: expected a folder for a run, got that of a model; use another one")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of the folder during the block.

        Raises:
            CheckpointError: another run is in it.
        """
        try:
            lock = filesystem.lock(self.path)
        except BlockingIOError:
            raise CheckpointError(f"{self.path}: another run is writing to this folder; use another one") from None
        try:
            yield
        finally:
            filesystem.unlock(lock)

    def newest(self) -> Path | None:
        """The complete checkpoint with most updates, ``None`` where there is none.

        Raises:
            CheckpointError: the folder exists and cannot be read.
        """
        return newest_complete(self.path, "step-*")

    def require_newest(self) -> Path:
        """As ``newest``.

        Raises:
            CheckpointError: there is none.
        """
        newest = self.newest()
        if newest is None:
            raise CheckpointError(f"{self.path}: expected a folder with a complete checkpoint, got none")
        return newest

    def prune(self, keep_last: int, best_step: int | None) -> tuple[Path, ...]:
        """Remove all complete checkpoints but the newest ``keep_last`` and the best; returns what was removed.

        Everything else is left alone, apart from what an earlier removal left under the name it gives. What the
        operating system does not let go stays for the next time.
        """
        complete = [(step, path) for step, path in self._folders() if _is_complete(path)]
        kept = {*(step for step, _ in complete[-keep_last:]), best_step}
        removed = tuple(path for step, path in complete if step not in kept and self._set_aside(path))
        with contextlib.suppress(OSError):
            for path in list(self.path.iterdir()):
                if path.name.startswith(_REMOVED) and path.is_dir():
                    filesystem.remove_tree(path)
        return removed

    def _holds_model(self) -> bool:
        with refusals(self.path, "could not be read"):
            names = {each.name for each in self.path.iterdir()}
        return EXPORT_MARK in names or (CONFIG_FILE in names and not names.isdisjoint((SINGLE_FILE_NAME, INDEX_NAME)))

    def _set_aside(self, path: Path) -> bool:
        """Rename a checkpoint, so that a removal that is cut leaves nothing that looks complete."""
        try:
            filesystem.rename(path, path.with_name(f"{_REMOVED}{path.name}"))
        except OSError:
            return False
        return True

    def _folders(self) -> list[tuple[int, Path]]:
        try:
            found = [(_NAME.fullmatch(path.name), path) for path in self.path.iterdir() if path.is_dir()]
        except OSError as error:
            raise CheckpointError(f"{self.path}: could not be read: {error.strerror}") from error
        return sorted((int(match[1]), path) for match, path in found if match is not None)


def _is_complete(path: Path) -> bool:
    try:
        with ModelArchive.open(path) as archive:
            return archive.mode is ArchiveMode.CHECKPOINT
    except CheckpointError:
        return False
