"""Finding the checkpoint to go on from."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from mila.errors import CheckpointError
from mila.serialization.archive import ArchiveReader
from mila.serialization.atomic_folder import recover_folder
from mila.serialization.failures import operating_system_refusal
from mila.serialization.manifest import MANIFEST_NAME, ArchiveMode
from mila.serialization.paths import checked_path
from mila.serialization.temporaries import PREVIOUS, named_after


def newest_complete(folder: Path | str, pattern: str = "*") -> Path | None:
    """Return the complete checkpoint with the largest sequence number, or None where there is none.

    Files, archives of another mode or without a sequence number, and folders that are half-written or damaged are
    passed over. Times of change say nothing: copying alters them.

    Args:
        folder: where the checkpoints are.
        pattern: which names to consider, with ``*``, ``?`` and ``[...]``.

    Raises:
        CheckpointError: the folder exists and cannot be read.
    """
    best: tuple[int, str] | None = None
    place = checked_path(folder)
    for name in _names(place):
        if not fnmatchcase(name, pattern):
            continue
        try:
            with ArchiveReader(place / name) as archive:
                mode, sequence = archive.mode, archive.sequence
        except CheckpointError:
            continue
        if mode is ArchiveMode.CHECKPOINT and sequence is not None:
            best = max(best, (sequence, name)) if best is not None else (sequence, name)
    return None if best is None else place / best[1]


def holds_checkpoints(folder: Path) -> bool:
    """Whether a folder is an archive, or has a complete checkpoint in it: what training leaves behind.

    Raises:
        CheckpointError: the folder exists and cannot be read.
    """
    return (folder / MANIFEST_NAME).exists() or newest_complete(folder) is not None


def _names(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, those included that a killed writer has moved aside."""
    if not folder.is_dir():
        return []
    try:
        for each in sorted(folder.iterdir()):
            name = named_after(each, PREVIOUS)
            if name is not None:
                recover_folder(folder / name)
        return sorted(each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    except OSError as error:
        raise operating_system_refusal(folder, "could not be listed", error) from error
