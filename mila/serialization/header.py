"""The header of a safetensors file, checked as a whole before anything is allocated, mapped or believed.

The file is an unsigned 64-bit little-endian length, that many bytes of JSON, then the data. The JSON maps each name
to ``{"dtype", "shape", "data_offsets"}``, the offsets counted from the start of the data; ``__metadata__`` maps
strings to strings. The functions here are pure: bytes and sizes in, a `Header` or a `CheckpointError` out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from mila.errors import CheckpointError
from mila.serialization.dtypes import FORMAT_DTYPES
from mila.serialization.failures import refusal, shown
from mila.serialization.foreign_content import INCOMPLETE, foreign_content_hint
from mila.serialization.strict_json import parse_json_object

PREFIX_BYTES = 8
DEFAULT_HEADER_LIMIT = 100_000_000
METADATA_KEY = "__metadata__"
ALIASES_KEY = "mila.aliases"
"""The entry of the metadata that holds, as a JSON object, the other names of stored tensors: ``{alias: name}``."""

_FIELDS = frozenset({"dtype", "shape", "data_offsets"})
_LARGEST_RANK = 64
_LARGEST_SIZE = 2**63 - 1
_LONGEST_PLAUSIBLE = 2**24
"""The first bytes of something else make a longer length; a shorter one is that of a file that was cut."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file: its name, its dtype in the format's spelling, its shape, its place in the data.

    `begin` and `end` count bytes from the start of the file's data.
    """

    name: str
    dtype_name: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor in the file."""
        return self.end - self.begin

    @property
    def element_count(self) -> int:
        """The number of elements; 1 for a shape without dimensions."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """A header that holds: metadata, tensors in the order of their data, and the other names they go by."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorEntry]
    aliases: Mapping[str, str]


def header_length(start: bytes, file_size: int, path: Path | str, header_limit: int = DEFAULT_HEADER_LIMIT) -> int:
    """Return the length of the header in bytes, read from the first bytes of the file.

    Args:
        start: the first bytes of the file; 8 are needed, more serve to say what else the file is.
        file_size: the size of the file in bytes.
        path: the file, for the error.
        header_limit: the longest header that is accepted, in bytes.

    Raises:
        CheckpointError: too short a file, or a length that the limit or the file forbids.
    """
    if file_size < PREFIX_BYTES:
        raise refusal(path, expected="at least 8 bytes", got=str(file_size), hint=INCOMPLETE)
    if len(start) < PREFIX_BYTES:
        raise refusal(path, expected="8 bytes of header length", got=f"a read of {len(start)}")
    length = int.from_bytes(start[:PREFIX_BYTES], "little")
    available = file_size - PREFIX_BYTES
    if length > max(_LONGEST_PLAUSIBLE, min(header_limit, available)):
        foreign = foreign_content_hint(start)
        if foreign is not None:
            raise refusal(path, expected="a safetensors file", got=foreign)
    if length > header_limit:
        raise refusal(path, expected=f"a header of at most {header_limit} bytes", got=str(length))
    if length > available:
        raise refusal(path, expected=f"a header within the file's {available} bytes", got=str(length), hint=INCOMPLETE)
    return length


def parse_header(header: bytes, data_length: int, path: Path | str) -> Header:
    """Return what `header` says, once every rule of the format holds for it and for `data_length` bytes of data.

    Raises:
        CheckpointError: the first rule that does not hold, with the tensor, what was expected and what came.
    """
    fields = parse_json_object(header, path, what="header")
    metadata = _metadata(fields.pop(METADATA_KEY, {}), path)
    entries = [_entry(name, value, data_length, path) for name, value in fields.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_coverage(entries, data_length, path)
    tensors = {entry.name: entry for entry in entries}
    aliases = _aliases(metadata, tensors, path)
    return Header(MappingProxyType(metadata), MappingProxyType(tensors), MappingProxyType(aliases))


def _metadata(value: object, path: Path | str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise refusal(path, expected=f"{METADATA_KEY} that maps strings to strings", got=shown(value))
    for key, item in value.items():
        if not isinstance(item, str):
            expected = f"{METADATA_KEY} that maps strings to strings"
            raise refusal(path, expected=expected, got=f"{shown(item)} for {shown(key)}")
    return value


def _entry(name: str, value: object, data_length: int, path: Path | str) -> TensorEntry:
    def refuse(expected: str, got: str, hint: str | None = None) -> CheckpointError:
        return refusal(path, tensor=name, expected=expected, got=got, hint=hint)

    if not isinstance(value, dict):
        raise refuse("an object", shown(value))
    if value.keys() != _FIELDS:
        raise refuse("the fields dtype, shape and data_offsets", shown(sorted(value)))
    dtype_name, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype_name, str) or dtype_name not in FORMAT_DTYPES:
        raise refuse("a known dtype", shown(dtype_name))
    dtype = FORMAT_DTYPES[dtype_name]
    if not isinstance(shape, list) or not all(_is_size(extent) for extent in shape):
        raise refuse("a shape that is a list of non-negative integers", shown(shape))
    if len(shape) > _LARGEST_RANK:
        raise refuse(f"a rank of at most {_LARGEST_RANK}", str(len(shape)))
    bits = _size_in_bits(shape, dtype.bits)
    if bits is None:
        raise refuse("a size below 2**63", f"shape {shown(shape)}")
    if bits > 8 * data_length:
        got = f"{bits // 8} bytes for shape {shown(shape)}"
        raise refuse(f"a size that fits the {data_length} bytes of data", got, INCOMPLETE)
    if bits % 8:
        raise refuse("a whole number of bytes", f"{bits} bits for shape {shown(shape)} of {dtype_name}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise refuse("data_offsets that are two non-negative integers", shown(offsets))
    begin, end = offsets
    if not begin <= end <= data_length:
        hint = INCOMPLETE if begin <= end else None
        raise refuse(f"data_offsets in order and within {data_length} bytes of data", shown(offsets), hint)
    if end - begin != bits // 8:
        raise refuse(f"{bits // 8} bytes for shape {shown(shape)} of {dtype_name}", str(end - begin))
    return TensorEntry(name, dtype_name, tuple(shape), begin, end)


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _size_in_bits(shape: list[int], bits: int) -> int | None:
    """Return the size of a tensor, or None where no array could have the shape: an extent of 0 excuses no other."""
    elements = 1
    for extent in shape:
        elements *= extent or 1
        if elements * (bits + 7) // 8 > _LARGEST_SIZE:
            return None
    return 0 if 0 in shape else elements * bits


def _check_coverage(entries: list[TensorEntry], data_length: int, path: Path | str) -> None:
    """Check that the tensors, in order, cover the data once and completely."""
    covered = 0
    for entry in entries:
        if entry.begin != covered:
            problem = "a gap" if entry.begin > covered else "an overlap"
            expected = f"data that begins where the data before it ends, at {covered}"
            raise refusal(path, tensor=entry.name, expected=expected, got=f"{problem}, at {entry.begin}")
        covered = entry.end
    if covered != data_length:
        expected = f"{covered} bytes of data, as the header says"
        raise refusal(path, expected=expected, got=f"{data_length}", hint="bytes no tensor claims are refused")


def _aliases(metadata: dict[str, str], tensors: dict[str, TensorEntry], path: Path | str) -> dict[str, str]:
    if ALIASES_KEY not in metadata:
        return {}
    aliases: dict[str, str] = {}
    text = metadata[ALIASES_KEY].encode("utf-8")
    for alias, name in parse_json_object(text, path, what=f"list of aliases ({ALIASES_KEY})").items():
        if not isinstance(name, str) or name not in tensors:
            raise refusal(path, tensor=alias, expected="an alias of a tensor of this file", got=shown(name))
        if alias in tensors or alias == METADATA_KEY:
            raise refusal(path, tensor=alias, expected="an alias that is no tensor itself", got="both")
        aliases[alias] = name
    return aliases
