"""GGUF files as bytes, right and wrong, written by hand from the specification."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_NUMBERS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "u8": 10, "i8": 11, "f8": 12}
_STRING, _BOOLEAN, _ARRAY = 8, 7, 9
_TYPES = {np.dtype("<f4"): 0, np.dtype("<f2"): 1, np.dtype(ml_dtypes.bfloat16): 30}


class Raw(NamedTuple):
    """A tensor of any type: its number, its shape in NumPy's order, its bytes; the offset is the next free one."""

    kind: int
    shape: tuple[int, ...]
    content: bytes
    offset: int | None = None


class Typed(NamedTuple):
    """A value of the metadata with its type: a number's, as NumPy names it, or of the format."""

    kind: str | int
    value: Any


Metadata = Mapping[str, Any]
Tensors = Mapping[str, Array | Raw] | Sequence[tuple[str, Array | Raw]]


def text_bytes(text: str | bytes) -> bytes:
    content = text if isinstance(text, bytes) else text.encode("utf-8")
    return struct.pack("<Q", len(content)) + content


def value_bytes(value: Any) -> bytes:
    """A value with its type: whole numbers as u4, others as f4, lists of texts, NumPy's arrays."""
    if isinstance(value, Typed):
        if isinstance(value.kind, int):
            return struct.pack("<I", value.kind) + bytes(value.value)
        return struct.pack("<I", _NUMBERS[value.kind]) + np.array(value.value, f"<{value.kind}").tobytes()
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOLEAN, value)
    if isinstance(value, int):
        return value_bytes(Typed("u4", value))
    if isinstance(value, float):
        return value_bytes(Typed("f4", value))
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + text_bytes(value)
    if isinstance(value, np.ndarray):
        kind = _NUMBERS[value.dtype.str[1:]]
        return struct.pack("<IIQ", _ARRAY, kind, value.size) + value.tobytes()
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(text_bytes, value))


def pairs_bytes(metadata: Metadata) -> bytes:
    return b"".join(text_bytes(key) + value_bytes(value) for key, value in metadata.items())


def raw(array: Array | Raw) -> Raw:
    return array if isinstance(array, Raw) else Raw(_TYPES[array.dtype], array.shape, array.tobytes())


def gguf_bytes(metadata: Metadata, tensors: Tensors, *, version: int = 3, alignment: int = 32) -> bytes:
    """A whole file: header, records, padding, data."""
    items = [(name, raw(array)) for name, array in (tensors.items() if isinstance(tensors, Mapping) else tensors)]
    records, data = b"", b""
    for name, tensor in items:
        offset = len(data) if tensor.offset is None else tensor.offset
        extents = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        records += text_bytes(name) + struct.pack("<I", len(tensor.shape)) + extents
        records += struct.pack("<IQ", tensor.kind, offset)
        data += tensor.content + b"\0" * (-len(tensor.content) % alignment)
    header = b"GGUF" + struct.pack("<IQQ", version, len(items), len(metadata)) + pairs_bytes(metadata) + records
    return header + b"\0" * (-len(header) % alignment) + data


def random_array(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape) * 0.3 / math.sqrt(shape[-1])
    return values.astype(dtype)
