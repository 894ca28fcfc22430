"""Writing one safetensors file in two passes: declare every tensor, then hand over their data, one at a time.

Nothing but the tensor at hand has to be in memory, and nothing is visible under the file's name until `close`. The
layout: tensors in the order of their declaration, those of larger elements first, so that each is aligned for its
dtype; header padded with spaces to 8 bytes; the same input gives the same bytes.

A tensor with several names (tied weights) is stored once. The other names are recorded in the file's ``__metadata__``
under ``mila.aliases``, as a JSON object ``{alias: stored name}``; `SafetensorsFile` answers to both.
"""

from __future__ import annotations

import enum
import json
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mila.errors import LifecycleError
from mila.serialization import filesystem
from mila.serialization.atomic import AtomicFile
from mila.serialization.blocks import FinishedAfterBlock
from mila.serialization.dtypes import FormatDType, format_dtype
from mila.serialization.failures import operating_system_refusal, refusal, shown
from mila.serialization.header import (
    ALIASES_KEY,
    DEFAULT_HEADER_LIMIT,
    METADATA_KEY,
    PREFIX_BYTES,
    TensorEntry,
    parse_header,
)

Array = np.ndarray[Any, np.dtype[Any]]

_ALIGNMENT = 8
_TILE_BYTES = 1 << 24


class _Stage(enum.Enum):
    DECLARING = "declaring"
    WRITING = "writing"
    CLOSED = "closed"


class SafetensorsWriter(FinishedAfterBlock):
    """A safetensors file being written; as a context manager it is closed at the end of the block, or aborted.

    ``declare`` and ``set_metadata``, then ``begin``, then ``write`` for every tensor in the order of declaration, then
    ``close``. An exception inside the block, or `abort`, leaves what was there before.

    Args:
        path: the file's final name; what is there now stays until `close`, even while it is being read.
        header_limit: the longest header, in bytes, that the readers of the file accept.
        named: what errors call the file, where `path` is a part of something that has another name in the end.

    Raises:
        CheckpointError: the operating system refuses.
    """

    def __init__(
        self, path: Path | str, header_limit: int = DEFAULT_HEADER_LIMIT, *, named: Path | None = None
    ) -> None:
        self._path = named or Path(path)
        self._header_limit = header_limit
        self._metadata: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._declared: dict[str, tuple[FormatDType, tuple[int, ...]]] = {}
        self._entries: Mapping[str, TensorEntry] = {}
        self._missing: list[str] = []
        self._data_start = 0
        self._stage = _Stage.DECLARING
        self._atomic = AtomicFile(path, named=named)

    @property
    def path(self) -> Path:
        """The file, as errors call it."""
        return self._path

    def declare(self, name: str, dtype: npt.DTypeLike | str, shape: Sequence[int]) -> None:
        """Announce a tensor.

        Args:
            name: its name in the file.
            dtype: a NumPy dtype, or the format's name for one.
            shape: its extents.

        Raises:
            LifecycleError: after `begin`.
            DTypeError: a dtype that the format, or NumPy, lacks.
            CheckpointError: a name that is taken or reserved, or a shape that is none.
        """
        self._require(_Stage.DECLARING, "declare")
        self._check_name(name)
        found = format_dtype(dtype)
        if found.numpy_dtype is None:
            raise refusal(self.path, tensor=name, expected="a dtype that NumPy has", got=found.name)
        try:
            extents = tuple(operator.index(extent) for extent in shape)
        except TypeError:
            raise refusal(self.path, tensor=name, expected="a shape of integers", got=shown(shape)) from None
        if any(extent < 0 for extent in extents):
            raise refusal(self.path, tensor=name, expected="a shape without negative extents", got=shown(extents))
        self._declared[name] = (found, extents)

    def declare_alias(self, alias: str, name: str) -> None:
        """Announce another name for a declared tensor, which is stored once.

        Raises:
            LifecycleError: after `begin`.
            CheckpointError: an alias that is taken, or a tensor that was not declared.
        """
        self._require(_Stage.DECLARING, "declare_alias")
        self._check_name(alias)
        if name not in self._declared:
            raise refusal(self.path, tensor=alias, expected="an alias of a declared tensor", got=shown(name))
        self._aliases[alias] = name

    def set_metadata(self, key: str, value: str) -> None:
        """Note a string in the file's ``__metadata__``; a later value for the same key counts.

        Raises:
            LifecycleError: after `begin`.
            CheckpointError: something else than strings, or the reserved key ``mila.aliases``.
        """
        self._require(_Stage.DECLARING, "set_metadata")
        if not isinstance(key, str) or not isinstance(value, str):
            raise refusal(self.path, expected="metadata of strings", got=f"{shown(key)}: {shown(value)}")
        if key == ALIASES_KEY:
            raise refusal(self.path, expected="aliases by declare_alias", got=f"metadata {ALIASES_KEY}")
        self._metadata[key] = value

    def begin(self) -> None:
        """Write the header; from here on, data.

        Raises:
            LifecycleError: called before.
            CheckpointError: a header that its readers would refuse, or the operating system refuses.
        """
        self._require(_Stage.DECLARING, "begin")
        entries = _layout(self._declared)
        header = self._header_text(entries)
        if len(header) > self._header_limit:
            got = str(len(header))
            raise refusal(self.path, expected=f"a header of at most {self._header_limit} bytes", got=got)
        data_length = max((entry.end for entry in entries), default=0)
        # The reader's own rules: what it would refuse is not written.
        self._entries = parse_header(header, data_length, self.path).tensors
        self._missing = list(reversed(self._declared))
        self._data_start = PREFIX_BYTES + len(header)
        self._stage = _Stage.WRITING
        self._put(0, len(header).to_bytes(PREFIX_BYTES, "little") + header)

    def write(self, name: str, array: Array) -> None:
        """Write the data of the next declared tensor.

        Any layout comes out right: Fortran order, strides, transposes, broadcasts, reversals, either byte order.

        Raises:
            LifecycleError: before `begin`, after `close`, or not the next tensor in the order of declaration.
            CheckpointError: another dtype or shape than declared, or the operating system refuses.
        """
        self._require(_Stage.WRITING, "write")
        if not self._missing or self._missing[-1] != name:
            expected = shown(self._missing[-1]) if self._missing else "no more tensors"
            raise LifecycleError(f"{self.path}: expected {expected} next, got {shown(name)}")
        dtype, shape = self._declared[name]
        if array.shape != shape:
            raise refusal(self.path, tensor=name, expected=f"shape {shown(shape)}", got=shown(array.shape))
        if array.dtype.newbyteorder("<") != dtype.numpy_dtype:
            raise refusal(self.path, tensor=name, expected=f"dtype {dtype.numpy_dtype}", got=str(array.dtype))
        offset = self._data_start + self._entries[name].begin
        for tile in contiguous_tiles(array):
            content = np.ascontiguousarray(tile, dtype=dtype.numpy_dtype).reshape(-1).view(np.uint8)
            self._put(offset, content.data)
            offset += content.size
        self._missing.pop()

    def close(self) -> None:
        """Give the file its name; nothing happens where it was closed or aborted before.

        Raises:
            LifecycleError: before `begin`; the file is aborted.
            CheckpointError: a declared tensor was not written, or the operating system refuses; the file is aborted.
        """
        if self._stage is _Stage.CLOSED:
            return
        if self._stage is _Stage.DECLARING:
            self.abort()
            raise LifecycleError(f"{self.path}: close before begin")
        if self._missing:
            name, count = self._missing[-1], len(self._missing)
            self.abort()
            got = f"none of {count} tensors from it on"
            raise refusal(self.path, tensor=name, expected="data before close", got=got)
        self._stage = _Stage.CLOSED
        self._atomic.commit()

    def abort(self) -> None:
        """Leave what was there before; nothing happens where the file was closed or aborted before."""
        self._stage = _Stage.CLOSED
        self._atomic.abort()

    def _require(self, stage: _Stage, call: str) -> None:
        if self._stage is not stage:
            raise LifecycleError(f"{self.path}: {call} needs a writer that is {stage.value}, it is {self._stage.value}")

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or name == METADATA_KEY:
            raise refusal(self.path, expected=f"a name other than {METADATA_KEY}", got=shown(name))
        if name in self._declared or name in self._aliases:
            raise refusal(self.path, tensor=name, expected="a name that is not declared yet", got="a second one")

    def _header_text(self, entries: list[TensorEntry]) -> bytes:
        metadata = dict(self._metadata)
        if self._aliases:
            metadata[ALIASES_KEY] = _compact_json(dict(sorted(self._aliases.items())))
        fields: dict[str, object] = {METADATA_KEY: dict(sorted(metadata.items()))} if metadata else {}
        for entry in entries:
            offsets = [entry.begin, entry.end]
            fields[entry.name] = {"dtype": entry.dtype_name, "shape": list(entry.shape), "data_offsets": offsets}
        try:
            text = _compact_json(fields).encode("utf-8")
        except UnicodeEncodeError:
            raise refusal(self.path, expected="names and metadata of Unicode text", got="half a surrogate") from None
        return text + b" " * (-len(text) % _ALIGNMENT)

    def _put(self, offset: int, content: bytes | memoryview) -> None:
        try:
            self._atomic.file.seek(offset)
            filesystem.write(self._atomic.file, content)
        except OSError as error:
            raise operating_system_refusal(self.path, "could not be written, what was there stays", error) from error

    def finish(self) -> None:
        """`close`, at the end of a block."""
        self.close()


def save_tensors(path: Path | str, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write a whole file at once; names given to the same memory are stored once, the later ones as aliases.

    Raises:
        DTypeError: a dtype that the format lacks.
        CheckpointError: a name or a metadata entry that the format refuses, or the operating system refuses.
    """
    with SafetensorsWriter(path) as writer:
        for key, value in (metadata or {}).items():
            writer.set_metadata(key, value)
        first_name: dict[tuple[object, ...], str] = {}
        for name, array in tensors.items():
            stored = first_name.setdefault(_memory_of(name, array), name)
            if stored == name:
                writer.declare(name, array.dtype, array.shape)
            else:
                writer.declare_alias(name, stored)
        writer.begin()
        for name in first_name.values():
            writer.write(name, tensors[name])


def contiguous_tiles(array: Array) -> Iterator[Array]:
    """Yield `array` in row-major order, in pieces small enough to be made contiguous one at a time."""
    if array.flags.c_contiguous or array.nbytes <= _TILE_BYTES:
        yield array
        return
    rows = max(1, _TILE_BYTES * array.shape[0] // array.nbytes)
    for first in range(0, array.shape[0], rows):
        yield from contiguous_tiles(array[first] if rows == 1 else array[first : first + rows])


def _memory_of(name: str, array: Array) -> tuple[object, ...]:
    if array.size == 0:
        return (name,)
    return (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype)


def _layout(declared: Mapping[str, tuple[FormatDType, tuple[int, ...]]]) -> list[TensorEntry]:
    entries = []
    begin = 0
    for name, (dtype, shape) in sorted(declared.items(), key=lambda item: -item[1][0].bits):
        end = begin + math.prod(shape) * dtype.bits // 8
        entries.append(TensorEntry(name, dtype.name, shape, begin, end))
        begin = end
    return entries


def _compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
