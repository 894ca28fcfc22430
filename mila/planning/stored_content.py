"""What the files of a target hold, described alike for every format, and read as raw bytes, some at a time."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from mila.errors import MilaError
from mila.models.gguf_import.ggml_types import GgmlType
from mila.planning.inspection_report import ContentKind
from mila.planning.targets import HUB_PREFIX
from mila.serialization import FORMAT_DTYPES, TensorEntry
from mila.serialization.blocks import ClosedAfterBlock
from mila.serialization.failures import operating_system_refusal, refusal, shown
from mila.serialization.manifest import Manifest
from mila.serialization.regular_file import FileIdentity, fill, open_regular_file

Array = np.ndarray[Any, np.dtype[Any]]

#: Bytes that are read at once; everything that looks at values takes memory in proportion to it, never to a file.
TILE_BYTES = 1 << 21
#: Levels of a config: a report of more than 255 cannot become a document, and models have a few.
_DEEPEST_CONFIG = 64


class OpenFile(ClosedAfterBlock):
    """A file that is read by ranges of bytes; one that is replaced, changed or truncated meanwhile is an error.

    Raises:
        CheckpointError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._absolute_path = path.absolute()
        self._file: FileIO = open_regular_file(path)
        try:
            self._identity = FileIdentity.of(os.fstat(self._file.fileno()))
        except OSError as error:
            self._file.close()
            raise operating_system_refusal(path, "could not be read", error) from error

    @property
    def size(self) -> int:
        """Its bytes when it was opened."""
        return self._identity.size

    def read_into(self, offset: int, target: Array) -> None:
        """Fill a contiguous array of bytes from ``offset`` on.

        Raises:
            CheckpointError: the file cannot be read, or was truncated.
        """
        try:
            lacking = fill(self._file, offset, target.data)
        except OSError as error:
            raise operating_system_refusal(self.path, "could not be read", error) from error
        if lacking:
            got = f"{lacking} bytes fewer: it was truncated since it was opened"
            raise refusal(self.path, expected=f"{self.size} bytes", got=got)

    def require_unchanged(self) -> None:
        """Raise :class:`CheckpointError` where the path leads to another file, or to one that changed."""
        self._identity.require_at(self._absolute_path, self.path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as its file's header describes it.

    Attributes:
        name: in the file.
        dtype: ``bfloat16``, ``f4``, ``q4_k``, ...: NumPy's name, or that of the format in small letters.
        shape: in NumPy's order.
        nbytes: in the file.
        file: which of the content's files.
        begin: where its bytes begin there.
        numpy_dtype: of its elements; ``None`` where NumPy has none, as for elements below a byte.
        block: how its elements are packed, where they are blocks of a GGUF file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    begin: int
    numpy_dtype: np.dtype[Any] | None = None
    block: GgmlType | None = None

    @property
    def element_count(self) -> int:
        """The number of elements; 1 for a shape without axes."""
        return math.prod(self.shape)

    @property
    def unit_bytes(self) -> int:
        """The fewest bytes that mean something by themselves: an element, or a block of them."""
        if self.numpy_dtype is not None:
            return self.numpy_dtype.itemsize
        return 1 if self.block is None else self.block.block_bytes


def stored_tensor(entry: TensorEntry, file: str, data_start: int) -> StoredTensor:
    """A tensor of a safetensors file.

    Args:
        entry: as the header has it.
        file: the name of the file.
        data_start: where its data begin.
    """
    dtype = FORMAT_DTYPES[entry.dtype_name].numpy_dtype
    name = entry.dtype_name.lower() if dtype is None else dtype.name
    return StoredTensor(entry.name, name, entry.shape, entry.nbytes, file, data_start + entry.begin, dtype)


@dataclass(frozen=True)
class StoredContent:
    """The tensors, names and notes of a target; open while its values may be read.

    Attributes:
        target: as it was named.
        kind: what that is.
        place: the file or folder that was read; on the hub, without the ``hf://`` before it.
        tensors: by name, in the order of their data, file by file.
        aliases: other names of stored tensors.
        metadata: what the writer noted beside them, as text.
        config: the content of ``config.json``, or of an archive's, where there is one.
        config_file: that file.
        files: those with tensors, by the names that are printed.
        sizes: the bytes of those files.
        manifest: of an archive.
        notes: what a user should be told.
        is_on_hub: only headers are there, no values.

    Raises:
        CheckpointError: a config of objects in objects, too many levels deep.
    """

    target: str
    kind: ContentKind
    place: Path
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    config_file: Path | None = None
    files: Mapping[str, OpenFile] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    manifest: Manifest | None = None
    notes: tuple[str, ...] = ()
    is_on_hub: bool = False
    opened: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)

    def __post_init__(self) -> None:
        level: list[Any] = [self.config]
        for _ in range(_DEEPEST_CONFIG):
            level = [part for value in level for part in _parts(value) if isinstance(part, dict | list)]
        if level:
            expected = f"a config of at most {_DEEPEST_CONFIG} levels of objects and lists"
            raise refusal(self.shown_place, expected=expected, got="more")

    @property
    def shown_place(self) -> str:
        """The place as people know it."""
        return f"{HUB_PREFIX}{self.place}" if self.is_on_hub else str(self.place)

    def words_of(self, error: MilaError) -> str:
        """An error about the files, on one line and with the place as people know it."""
        message = " ".join(str(error).split())
        return f"{HUB_PREFIX}{message}" if self.is_on_hub else message  # a path cannot hold the slashes of the prefix

    def read_into(self, tensor: StoredTensor, offset: int, target: Array) -> None:
        """Fill an array of bytes with those of a tensor from ``offset`` on.

        Raises:
            CheckpointError: the file cannot be read, or was truncated.
        """
        self.files[tensor.file].read_into(tensor.begin + offset, target)

    def tiles(self, tensor: StoredTensor, most_bytes: int = TILE_BYTES) -> Iterator[Array]:
        """The bytes of a tensor in order, whole units of them at a time: uint8, each valid until the next.

        Raises:
            CheckpointError: the file changed since it was opened, or cannot be read.
        """
        file = self.files[tensor.file]
        file.require_unchanged()
        step = max(1, most_bytes // tensor.unit_bytes) * tensor.unit_bytes
        buffer = np.empty(min(step, tensor.nbytes), np.uint8)
        for offset in range(0, tensor.nbytes, step):
            tile = buffer[: tensor.nbytes - offset]
            file.read_into(tensor.begin + offset, tile)
            yield tile
        file.require_unchanged()

    def entry(self, name: str) -> StoredTensor:
        """The tensor that a name or an alias stands for.

        Raises:
            CheckpointError: there is neither.
        """
        found = self.tensors.get(self.aliases.get(name, name))
        if found is None:
            raise refusal(self.shown_place, expected="a tensor of this file", got=shown(name))
        return found

    def __enter__(self) -> StoredContent:
        return self

    def __exit__(self, *reason: object) -> None:
        self.opened.close()


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
