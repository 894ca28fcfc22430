"""Writing the folder of a model, in the layout of the Hugging Face libraries, whole or not at all.

The folder also holds ``mila_export.json``, written last, with the names of its files. By it a later export knows the
folder as one that it may replace: a folder with anything else in it, or without that file, is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mila.errors import LifecycleError
from mila.serialization import filesystem
from mila.serialization.atomic import write_file_atomically
from mila.serialization.atomic_folder import AtomicFolder, recover_folder
from mila.serialization.blocks import FinishedAfterBlock
from mila.serialization.failures import refusal, refusals, shown
from mila.serialization.manifest import format_json, is_segment
from mila.serialization.paths import checked_path
from mila.serialization.regular_file import open_regular_file
from mila.serialization.sharded_writer import ShardedWriter
from mila.serialization.strict_json import read_json_object

EXPORT_MARK = "mila_export.json"

_FORMAT = "mila-export"
_COPY_BYTES = 1 << 20


class ExportFolder(FinishedAfterBlock):
    """The folder of a model being written; as a context manager it is finished at the end of the block, or aborted.

    Nothing is visible under its name until `close`. An earlier export of that name is replaced whole, in one step,
    also where the weights that are being written come from it.

    Args:
        path: the folder's final name: free, or that of an empty folder or an earlier export.

    Raises:
        CheckpointError: the name belongs to something else, or the operating system refuses; nothing is changed.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = checked_path(path)
        recover_folder(self.path)
        _require_replaceable(self.path)
        if not self.path.absolute().parent.is_dir():
            raise refusal(self.path, expected="a name in a folder that exists", got=f"no {self.path.absolute().parent}")
        self._folder = AtomicFolder(self.path)
        self._weights: ShardedWriter | None = None
        self._is_open = True

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write an object, such as that of ``config.json``; keys are sorted.

        Raises:
            LifecycleError: the folder was closed.
            CheckpointError: a name that is taken or not allowed, a value that JSON cannot hold, or the operating system
                refuses.
        """
        self.write_bytes(name, format_json(dict(value), self.path / name))

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file.

        Raises:
            LifecycleError: the folder was closed.
            CheckpointError: a name that is taken or not allowed, or the operating system refuses.
        """
        path = self._new_file(name)
        write_file_atomically(path, lambda file: filesystem.write(file, content), named=self.path / name)

    def copy_file(self, source: Path | str) -> None:
        """Write a copy of a file, under its own name.

        Raises:
            LifecycleError: the folder was closed.
            CheckpointError: a name that is taken or not allowed, or the operating system refuses.
        """
        origin = checked_path(source)
        path = self._new_file(origin.name)

        def copy(target: BinaryIO) -> None:
            while True:
                with refusals(origin, "could not be read"):
                    content = original.read(_COPY_BYTES)
                if not content:
                    return
                filesystem.write(target, content)

        with open_regular_file(origin) as original:
            write_file_atomically(path, copy, named=self.path / origin.name)

    def tensors(self, max_shard_bytes: int | str) -> ShardedWriter:
        """Return the writer of the weights; it has to be closed before the folder is.

        Raises:
            LifecycleError: the folder was closed, or has a writer already.
            ConfigurationError: a size that is none.
            CheckpointError: a file of weights was written by other means.
        """
        self._require_open()
        if self._weights is not None:
            raise LifecycleError(f"{self.path}: tensors was called before")
        self._weights = ShardedWriter(self._folder.path, max_shard_bytes, named=self.path)
        return self._weights

    def close(self) -> None:
        """Give the folder its name; nothing happens where it was closed or aborted before.

        Raises:
            LifecycleError: weights that are still being written; the folder is aborted.
            CheckpointError: what the name leads to is no longer what may be replaced, or the operating system refuses;
                the folder is aborted.
        """
        if not self._is_open:
            return
        try:
            if self._weights is not None and not self._weights.is_closed:
                raise LifecycleError(f"{self.path}: close before the writer of the weights was closed")
            with refusals(self.path, "could not be written, what was there stays"):
                files = filesystem.list_folder(self._folder.path)
            self.write_json(EXPORT_MARK, {"format": _FORMAT, "version": 1, "files": [each.name for each in files]})
            _require_replaceable(self.path)
        except BaseException:
            self.abort()
            raise
        self._is_open = False
        self._folder.commit()

    def abort(self) -> None:
        """Leave what was there before; nothing happens where the folder was closed or aborted before."""
        self._is_open = False
        if self._weights is not None:
            self._weights.abort()
        self._folder.abort()

    def finish(self) -> None:
        """`close`, at the end of a block."""
        self.close()

    def _require_open(self) -> None:
        if not self._is_open:
            raise LifecycleError(f"{self.path}: use of a folder that was closed")

    def _new_file(self, name: str) -> Path:
        self._require_open()
        if not is_segment(name):
            raise refusal(self.path, expected="the name of a file", got=shown(name))
        path = self._folder.path / name
        if path.exists():
            raise refusal(self.path, expected="a name that is free", got=shown(name))
        return path


def _require_replaceable(path: Path) -> None:
    """Check that nothing but an earlier export is lost where the folder of this name is replaced."""
    with refusals(path, "could not be read"):
        if path.is_symlink() or not path.is_dir():
            return
        present = {each.name: each.is_dir() for each in filesystem.list_folder(path)}
    own = {EXPORT_MARK, *_files_of_export(path / EXPORT_MARK)} if EXPORT_MARK in present else set()
    foreign = [name for name, is_folder in present.items() if is_folder or name not in own]
    if foreign:
        raise refusal(
            path,
            expected="a free name, an empty folder or an earlier export and nothing else",
            got=f"a folder that holds {shown(foreign)}",
            hint="choose another folder",
        )


def _files_of_export(path: Path) -> list[str]:
    fields = read_json_object(path)
    files = fields.get("files")
    is_known = fields.get("format") == _FORMAT and fields.get("version") == 1
    if not is_known or not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise refusal(path, expected=f"the file list of {_FORMAT}, version 1", got=shown(fields))
    return files
