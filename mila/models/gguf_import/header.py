"""The header of a GGUF file (versions 2 and 3, little-endian), read without trust.

The file is the magic ``GGUF``, a version, two counts, then metadata (key, type, value), then one record for each tensor
(name, extents, type, offset), padding, and the tensors' data. Every count and length is compared with the bytes that
are left before anything of its size exists, and everything is checked before any tensor is read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from mila.errors import CheckpointError
from mila.models.gguf_import.ggml_types import GGML_TYPES, GgmlType
from mila.serialization.failures import refusal, shown
from mila.serialization.foreign_content import foreign_content_hint
from mila.serialization.header import DEFAULT_HEADER_LIMIT

Value = bool | int | float | str | list[str] | np.ndarray[Any, np.dtype[Any]]
"""A value of the metadata; arrays of strings are lists, arrays of numbers are NumPy's."""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = MappingProxyType(
    {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|u1", 10: "<u8", 11: "<i8", 12: "<f8"}
)
_FLOAT32, _BOOLEAN, _STRING, _ARRAY = 6, 7, 8, 9
_SMALLEST_PAIR, _SMALLEST_TENSOR, _SMALLEST_STRING = 13, 32, 8
_MOST_STRINGS = 1 << 22
_MOST_EXTENTS = 4
_LARGEST_SIZE = 2**63 - 1
_ALIGNMENT_KEY = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_CUT = "truncated, an incomplete download?"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the file: its name, its type, its shape in NumPy's order, and where its bytes begin in the file."""

    name: str
    kind: GgmlType
    shape: tuple[int, ...]
    begin: int

    @property
    def row_bytes(self) -> int:
        """The bytes of one row: the elements along the last axis."""
        return self.shape[-1] // self.kind.block_elements * self.kind.block_bytes

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor in the file."""
        return math.prod(self.shape[:-1]) * self.row_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A header that holds: the metadata, and the tensors in the order of their data."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]


def parse_header(stream: BinaryIO, size: int, path: Path) -> GgufHeader:
    """Return the header of the file, once every rule holds for it and for the bytes behind it.

    Args:
        stream: the file, at its start.
        size: its length in bytes.
        path: how errors call it.

    Raises:
        CheckpointError: the first rule that does not hold, with what was expected and what came.
    """
    return _HeaderReader(stream, size, path).read()


class _HeaderReader:
    """Takes a header off a stream, never more than what is left of the file or of the largest header."""

    def __init__(self, stream: BinaryIO, size: int, path: Path) -> None:
        self._stream = stream
        self._size = size
        self._path = path
        self._position = 0
        self._place = "the header"

    def read(self) -> GgufHeader:
        self._check_start()
        tensor_count, pair_count = self._number("<u8"), self._number("<u8")
        self._check_count(tensor_count, _SMALLEST_TENSOR, "tensors")
        self._check_count(pair_count, _SMALLEST_PAIR, "pairs of metadata")
        metadata: dict[str, Value] = {}
        for index in range(pair_count):
            self._place = f"metadata {index}"
            key = self._text()
            self._place = f"metadata {shown(key)}"
            if key in metadata:
                raise self._refuse("a key that occurs once", "a second one")
            metadata[key] = self._value(self._number("<u4"))
        records = [self._tensor(index) for index in range(tensor_count)]
        alignment = self._alignment(metadata)
        data_start = -(-self._position // alignment) * alignment
        return GgufHeader(MappingProxyType(metadata), MappingProxyType(self._place_all(records, data_start, alignment)))

    def _check_start(self) -> None:
        start = self._stream.read(64)
        if start[: len(_MAGIC)] != _MAGIC:
            expected = "a GGUF file, which starts with the bytes GGUF"
            raise refusal(self._path, expected=expected, got=foreign_content_hint(start) or shown(start[:16]))
        self._stream.seek(len(_MAGIC))
        self._position = len(_MAGIC)
        version = self._number("<u4")
        if version and not version & 0xFFFF:
            raise self._refuse("a little-endian file", "a big-endian one")
        if version not in _VERSIONS:
            raise self._refuse(f"version {' or '.join(map(str, _VERSIONS))} of the format", str(version))

    def _check_count(self, count: int, smallest: int, what: str) -> None:
        left = self._end - self._position
        if count > left // smallest:
            raise self._refuse(f"at most {left // smallest} {what}, as {left} bytes hold", str(count), self._cut_hint)

    @property
    def _end(self) -> int:
        return min(self._size, DEFAULT_HEADER_LIMIT)

    @property
    def _cut_hint(self) -> str | None:
        return _CUT if self._end == self._size else None

    def _take(self, count: int) -> bytes:
        left = self._end - self._position
        if count > left:
            limit = "the file" if self._end == self._size else f"a header of at most {DEFAULT_HEADER_LIMIT} bytes"
            raise self._refuse(f"at most the {left} bytes left of {limit}", f"{count} bytes", self._cut_hint)
        content = self._stream.read(count)
        if len(content) != count:
            raise self._refuse(f"{count} bytes", f"{len(content)}: the file was truncated since it was opened")
        self._position += count
        return content

    def _number(self, dtype: str) -> int:
        content = self._take(np.dtype(dtype).itemsize)
        return int.from_bytes(content, "little")

    def _text(self) -> str:
        content = self._take(self._number("<u8"))
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise self._refuse("text in UTF-8", shown(content)) from None

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        dtype = self._dtype(kind)
        content = self._take(dtype.itemsize)
        if kind == _BOOLEAN:
            if content[0] > 1:
                raise self._refuse("a truth value of 0 or 1", str(content[0]))
            return bool(content[0])
        if kind == _FLOAT32:
            # The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06.
            return float(str(np.frombuffer(content, dtype)[0]))
        number: int | float = np.frombuffer(content, dtype)[0].item()
        return number

    def _array(self) -> Value:
        kind, count = self._number("<u4"), self._number("<u8")
        if kind == _ARRAY:
            raise self._refuse("an array of numbers or strings", "an array of arrays")
        if kind != _STRING:
            dtype = self._dtype(kind)
            self._check_count(count, dtype.itemsize, "numbers")
            return np.frombuffer(self._take(count * dtype.itemsize), dtype)
        self._check_count(count, _SMALLEST_STRING, "strings")
        if count > _MOST_STRINGS:
            raise self._refuse(f"at most {_MOST_STRINGS} strings", str(count))
        return [self._text() for _ in range(count)]

    def _dtype(self, kind: int) -> np.dtype[Any]:
        if kind not in _SCALARS:
            raise self._refuse("a known type of value", f"type {kind}")
        return np.dtype(_SCALARS[kind])

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        self._place = f"metadata {_ALIGNMENT_KEY}"
        alignment = metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self._refuse("a power of two from 8 on", shown(alignment))
        return alignment

    def _tensor(self, index: int) -> TensorInfo:
        """Read one record; the offset it returns counts from the start of the data."""
        self._place = f"tensor {index}"
        name = self._text()
        self._place = f"tensor {shown(name)}"
        rank = self._number("<u4")
        if not 1 <= rank <= _MOST_EXTENTS:
            raise self._refuse(f"1 to {_MOST_EXTENTS} extents", str(rank))
        shape = tuple(struct.unpack(f"<{rank}Q", self._take(8 * rank))[::-1])
        number, offset = self._number("<u4"), self._number("<u8")
        if number not in GGML_TYPES:
            raise self._refuse("a known type of tensor", f"type {number}")
        kind = GGML_TYPES[number]
        if 0 in shape:
            raise self._refuse("extents of at least 1", shown(shape))
        if math.prod(shape) > _LARGEST_SIZE // kind.block_bytes:
            raise self._refuse("a size below 2**63", f"shape {shown(shape)}")
        if shape[-1] % kind.block_elements:
            expected = f"rows of whole blocks of {kind.block_elements} elements for {kind.name}"
            raise self._refuse(expected, f"shape {shown(shape)}")
        return TensorInfo(name, kind, shape, offset)

    def _place_all(self, records: list[TensorInfo], data_start: int, alignment: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        end = data_start
        for record in sorted(records, key=lambda record: record.begin):
            self._place = f"tensor {shown(record.name)}"
            if record.name in tensors:
                raise self._refuse("a name that occurs once", "a second one")
            if record.begin % alignment:
                raise self._refuse(f"an offset that is a multiple of {alignment}", str(record.begin))
            begin = data_start + record.begin
            if begin < end:
                raise self._refuse("data that overlaps with no other tensor's", f"an overlap at byte {begin}")
            end = begin + record.nbytes
            if end > self._size:
                expected = f"data within the {self._size} bytes of the file"
                raise self._refuse(expected, f"bytes {begin} to {end}", _CUT)
            tensors[record.name] = TensorInfo(record.name, record.kind, record.shape, begin)
        return tensors

    def _refuse(self, expected: str, got: str, hint: str | None = None) -> CheckpointError:
        return refusal(f"{self._path}: {self._place}", expected=expected, got=got, hint=hint)
