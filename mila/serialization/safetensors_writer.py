"""Writing one safetensors file in two passes: declare every tensor, then hand over their data, one at a time.

The layout: tensors in the order of their declaration, those of larger elements first, so that each is aligned for its
dtype; header padded with spaces to 8 bytes; the same input gives the same bytes.

A tensor with several names (tied weights) is stored once. The other names are recorded in the file's ``__metadata__``
under ``mila.aliases``, as a JSON object ``{alias: stored name}``; `SafetensorsFile` answers to both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mila.serialization import filesystem
from mila.serialization.atomic import AtomicFile
from mila.serialization.conversion import byte_tiles
from mila.serialization.failures import operating_system_refusal, refusal
from mila.serialization.header import (
    ALIASES_KEY,
    DEFAULT_HEADER_LIMIT,
    METADATA_KEY,
    PREFIX_BYTES,
    TensorEntry,
    parse_header,
)
from mila.serialization.paths import checked_path
from mila.serialization.tensor_writer import Contents, Declared, TensorWriter

Array = np.ndarray[Any, np.dtype[Any]]

_ALIGNMENT = 8


class SafetensorsWriter(TensorWriter):
    """A safetensors file being written; see `TensorWriter` for the calls and their order.

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
        super().__init__(named or checked_path(path))
        self._header_limit = header_limit
        self._entries: Mapping[str, TensorEntry] = {}
        self._data_start = 0
        self._atomic = AtomicFile(path, named=named)

    def _begin(self) -> None:
        header, self._entries = build_header(self._contents, self.path, self._header_limit)
        self._data_start = PREFIX_BYTES + len(header)
        self._put(0, len(header).to_bytes(PREFIX_BYTES, "little") + header)

    def _write(self, name: str, arrays: Iterable[Array]) -> None:
        dtype = self._contents.tensors[name].numpy_dtype
        offset = self._data_start + self._entries[name].begin
        for array in arrays:
            for content, overflowed in byte_tiles(array, dtype):
                if overflowed:
                    got = f"a finite value of {array.dtype} beyond it"
                    raise refusal(self.path, tensor=name, expected=f"values within the range of {dtype}", got=got)
                self._put(offset, content.data)
                offset += content.size

    def _commit(self) -> None:
        self._atomic.commit()

    def _abort(self) -> None:
        self._atomic.abort()

    def _put(self, offset: int, content: bytes | memoryview) -> None:
        try:
            self._atomic.file.seek(offset)
            filesystem.write(self._atomic.file, content)
        except OSError as error:
            raise operating_system_refusal(self.path, "could not be written, what was there stays", error) from error


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


def build_header(
    contents: Contents, path: Path, header_limit: int = DEFAULT_HEADER_LIMIT
) -> tuple[bytes, Mapping[str, TensorEntry]]:
    """Return the header of a file, padded, and the place of every tensor in its data.

    Raises:
        CheckpointError: a header that the readers would refuse; what they would refuse is not written.
    """
    entries = _layout(contents.tensors)
    header = _header_text(contents, entries, path)
    if len(header) > header_limit:
        raise refusal(path, expected=f"a header of at most {header_limit} bytes", got=str(len(header)))
    data_length = max((entry.end for entry in entries), default=0)
    return header, parse_header(header, data_length, path).tensors


def _header_text(contents: Contents, entries: list[TensorEntry], path: Path) -> bytes:
    metadata = dict(contents.metadata)
    if contents.aliases:
        metadata[ALIASES_KEY] = _compact_json(dict(sorted(contents.aliases.items())))
    fields: dict[str, object] = {METADATA_KEY: dict(sorted(metadata.items()))} if metadata else {}
    for entry in entries:
        offsets = [entry.begin, entry.end]
        fields[entry.name] = {"dtype": entry.dtype_name, "shape": list(entry.shape), "data_offsets": offsets}
    try:
        text = _compact_json(fields).encode("utf-8")
    except UnicodeEncodeError:
        raise refusal(path, expected="names and metadata of Unicode text", got="half a surrogate") from None
    return text + b" " * (-len(text) % _ALIGNMENT)


def _memory_of(name: str, array: Array) -> tuple[object, ...]:
    if array.size == 0:
        return (name,)
    return (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype)


def _layout(declared: Mapping[str, Declared]) -> list[TensorEntry]:
    entries = []
    begin = 0
    for name, tensor in sorted(declared.items(), key=lambda item: -item[1].dtype.bits):
        end = begin + tensor.nbytes
        entries.append(TensorEntry(name, tensor.dtype.name, tensor.shape, begin, end))
        begin = end
    return entries


def _compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
