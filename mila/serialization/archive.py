"""An archive: a folder of JSON and safetensors files under scoped names, whole or not there at all.

``ModelArchive.create`` gives an `ArchiveWriter` and ``ModelArchive.open`` an `ArchiveReader`. A name such as
``weights`` inside the scope ``model`` is the file ``model/weights.safetensors`` or ``model/weights.json``. The
manifest, with every file's size and SHA-256, is written last, then the folder gets its final name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Self

import numpy.typing as npt

from mila.errors import LifecycleError
from mila.serialization import filesystem
from mila.serialization.atomic import write_file_atomically
from mila.serialization.atomic_folder import AtomicFolder, recover_folder
from mila.serialization.blocks import ClosedAfterBlock, FinishedAfterBlock
from mila.serialization.failures import operating_system_refusal, refusal, shown
from mila.serialization.manifest import (
    MANIFEST_NAME,
    ArchiveMode,
    FileRecord,
    Manifest,
    format_json,
    hash_file,
    is_segment,
    manifest_bytes,
    read_manifest,
)
from mila.serialization.paths import checked_path
from mila.serialization.safetensors_reader import SafetensorsFile
from mila.serialization.safetensors_writer import SafetensorsWriter
from mila.serialization.strict_json import read_json_object

TensorDeclaration = tuple[str, npt.DTypeLike | str, Sequence[int]]
"""The name, the dtype and the shape of a tensor that will be written."""

_JSON = ".json"
_TENSORS = ".safetensors"


class ModelArchive:
    """What reading and writing an archive share: its path, its mode, scopes, and which names it has."""

    def __init__(self, path: Path | str, mode: ArchiveMode, sequence: int | None) -> None:
        self.path = checked_path(path)
        self.mode = mode
        self.sequence = sequence
        self._scopes: list[str] = []
        self._is_open = True
        self._files: dict[str, FileRecord] = {}

    @staticmethod
    def create(path: Path | str, mode: ArchiveMode, sequence: int | None = None) -> ArchiveWriter:
        """Start an archive; see `ArchiveWriter`."""
        return ArchiveWriter(path, mode, sequence)

    @staticmethod
    def open(path: Path | str) -> ArchiveReader:
        """Open an archive; see `ArchiveReader`."""
        return ArchiveReader(path)

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[Self]:
        """Put every name used in the block under `name`; scopes nest.

        Raises:
            CheckpointError: a name that could leave the archive, or that not every system takes.
        """
        self._scopes.append(self._segment(name))
        try:
            yield self
        finally:
            self._scopes.pop()

    def has(self, name: str) -> bool:
        """Whether the archive has JSON or tensors under a name, in the current scope."""
        return self._file(name, _JSON) in self._files or self._file(name, _TENSORS) in self._files

    def _file(self, name: str, ending: str) -> str:
        if not self._is_open:
            raise LifecycleError(f"{self.path}: use of an archive that was closed")
        return "/".join((*self._scopes, self._segment(name) + ending))

    def _segment(self, name: str) -> str:
        if not is_segment(name):
            expected = "a name of at most 128 letters, digits and _ - . that starts with none of - . and ends without ."
            raise refusal(self.path, expected=expected, got=shown(name))
        return name


class ArchiveWriter(ModelArchive, FinishedAfterBlock):
    """An archive being written; as a context manager it is finished at the end of the block, or aborted.

    Nothing is visible under its name until `close`. An archive that has the name is replaced, whole.

    Args:
        path: the folder's final name.
        mode: what the archive holds.
        sequence: its place among checkpoints, such as the training step; `newest_complete` takes the largest.

    Raises:
        CheckpointError: the name belongs to something that is not an archive, or to one that holds files of somebody
            else, or the operating system refuses.
    """

    def __init__(self, path: Path | str, mode: ArchiveMode, sequence: int | None = None) -> None:
        super().__init__(path, mode, sequence)
        if sequence is not None and (type(sequence) is not int or sequence < 0):
            raise refusal(path, expected="a sequence number of 0 or more", got=shown(sequence))
        recover_folder(path)
        _check_replaceable(self.path)
        self._folder = AtomicFolder(path)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write an object under a name; it reads back equal, tuples as lists.

        Raises:
            LifecycleError: the archive was closed.
            CheckpointError: a name that is taken or not allowed, or a value that JSON cannot hold.
        """
        file = self._new_file(name, _JSON)
        if not isinstance(value, dict):
            raise refusal(self.path / file, expected="a dictionary", got=type(value).__name__)
        content = format_json(value, self.path / file)
        self._write(file, lambda path: self._write_bytes(path, content, self.path / file))

    def write_tensors(
        self,
        name: str,
        declarations: Iterable[TensorDeclaration],
        write: Callable[[SafetensorsWriter], None],
        *,
        metadata: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Write tensors under a name, one at a time.

        Args:
            name: the name in the current scope.
            declarations: the name, dtype and shape of every tensor.
            write: called once; hands the data of every tensor, in order, to the writer's ``write``.
            metadata: strings to note in the file.
            aliases: other names of declared tensors, ``{alias: name}``.

        Raises:
            LifecycleError: the archive was closed.
            CheckpointError: an archive for the architecture alone, or what `SafetensorsWriter` refuses.
        """
        file = self._new_file(name, _TENSORS)
        if self.mode is ArchiveMode.ARCHITECTURE:
            raise refusal(self.path / file, expected="no tensors in an archive of the architecture", got="tensors")

        def write_file(path: Path) -> None:
            with SafetensorsWriter(path, named=self.path / file) as writer:
                for declaration in declarations:
                    writer.declare(*declaration)
                for alias, stored in (aliases or {}).items():
                    writer.declare_alias(alias, stored)
                for key, value in (metadata or {}).items():
                    writer.set_metadata(key, value)
                writer.begin()
                write(writer)

        self._write(file, write_file)

    def close(self) -> None:
        """Write the manifest and give the folder its name; nothing happens where it was closed or aborted before.

        Raises:
            CheckpointError: the operating system refuses; the archive is aborted.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            content = manifest_bytes(Manifest(self.mode, self.sequence, self._files), self.path)
            self._write_bytes(self._folder.path / MANIFEST_NAME, content, self.path / MANIFEST_NAME)
        except BaseException:
            self._folder.abort()
            raise
        self._folder.commit()

    def abort(self) -> None:
        """Leave what was there before; nothing happens where the archive was closed or aborted before."""
        self._is_open = False
        self._folder.abort()

    def _new_file(self, name: str, ending: str) -> str:
        file = self._file(name, ending)
        folded = file.casefold()
        if folded == MANIFEST_NAME or any(folded == other.casefold() for other in self._files):
            raise refusal(self.path, expected="a name that is free, in either case", got=shown(file))
        return file

    def _write_bytes(self, path: Path, content: bytes, named: Path) -> None:
        write_file_atomically(path, lambda file: filesystem.write(file, content), named=named)

    def _write(self, file: str, write: Callable[[Path], None]) -> None:
        path = self._folder.path / file
        try:
            for folder in reversed(PurePosixPath(file).parents[:-1]):
                if not (self._folder.path / folder).is_dir():
                    filesystem.create_folder(self._folder.path / folder)
            write(path)
            self._files[file] = hash_file(path)
        except OSError as error:
            raise operating_system_refusal(self.path / file, "could not be written", error) from error

    def finish(self) -> None:
        """`close`, at the end of a block."""
        self.close()


class ArchiveReader(ModelArchive, ClosedAfterBlock):
    """An archive open for reading. The size of every file is checked on opening, the contents by `verify`.

    Files that the manifest does not list are not part of the archive and never read.

    Raises:
        CheckpointError: no folder, no manifest, a foreign or malformed one, one of a newer format; a file that is
            missing, has another size, or is a link that leaves the folder.
    """

    def __init__(self, path: Path | str) -> None:
        recover_folder(path)
        manifest = read_manifest(checked_path(path))
        super().__init__(path, manifest.mode, manifest.sequence)
        self._files = dict(manifest.files)
        _check_sizes(self.path, manifest)

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the object under a name.

        Raises:
            LifecycleError: the archive was closed.
            CheckpointError: no such name, or a file that is not strict JSON.
        """
        return read_json_object(self._existing(name, _JSON), what="value")

    def open_tensors(self, name: str) -> SafetensorsFile:
        """Open the tensors under a name; the caller closes the file.

        Raises:
            LifecycleError: the archive was closed.
            CheckpointError: no such name, or what `SafetensorsFile` refuses.
        """
        return SafetensorsFile(self._existing(name, _TENSORS))

    def verify(self) -> None:
        """Read every file and compare it with the manifest.

        Raises:
            CheckpointError: the first file whose SHA-256 is another one, or that cannot be read.
        """
        for file, record in self._files.items():
            path = self.path / file
            try:
                found = hash_file(path)
            except OSError as error:
                raise operating_system_refusal(path, "could not be read", error) from error
            if found != record:
                raise refusal(path, expected=f"SHA-256 {record.sha256}", got=found.sha256)

    def close(self) -> None:
        """End the use of the archive; files opened from it stay open."""
        self._is_open = False

    def _existing(self, name: str, ending: str) -> Path:
        file = self._file(name, ending)
        if file not in self._files:
            raise refusal(self.path, expected=f"a file {shown(file)}", got="none in the manifest")
        return self.path / file


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    root = folder.resolve()
    for file, record in manifest.files.items():
        path = folder / file
        if not path.is_file():
            raise refusal(path, expected=f"{record.size} bytes", got="no such file")
        if not path.resolve().is_relative_to(root):
            raise refusal(path, expected="a file inside the archive", got="a link that leaves it")
        size = path.stat().st_size
        if size != record.size:
            raise refusal(path, expected=f"{record.size} bytes", got=str(size))


def _check_replaceable(path: Path) -> None:
    """Check that what has an archive's name is one, or empty: replacing removes the folder with all that it holds."""
    if not path.is_dir() or path.is_symlink():
        return
    present = {each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_symlink() or not each.is_dir()}
    if not present:
        return
    foreign = sorted(present - {MANIFEST_NAME, *read_manifest(path).files})
    if foreign:
        raise refusal(path, expected="an archive to replace", got=f"one that also holds {shown(foreign)}")
