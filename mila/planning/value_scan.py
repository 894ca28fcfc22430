"""Looking at every value of a stored tensor once, by tiles."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from mila.errors import CheckpointError
from mila.models.gguf_import.ggml_types import check_readable, to_float32
from mila.planning.stored_content import TILE_BYTES, Array, StoredContent, StoredTensor

#: The bits of the exponent: all of them are set in infinities and NaN alone.
_EXPONENTS: dict[str, tuple[str, int]] = {
    "float16": ("<u2", 0x7C00),
    "bfloat16": ("<u2", 0x7F80),
    "float32": ("<u4", 0x7F800000),
    "float64": ("<u8", 0x7FF0 << 48),
}
_REAL_OF_COMPLEX = {"complex64": "float32"}
#: Blocks of 4 bits become eight times as many bytes.
_BLOCK_TILE_BYTES = 1 << 18
_DIGEST_BYTES = 16


@dataclass
class ValueScan:
    """What was seen of one tensor.

    Attributes:
        nan: how many values are NaN.
        infinite: how many are infinite.
        invalid_booleans: how many truth values are neither 0 nor 1.
        digest: of its bytes, where it was asked for and they are not one value over and over.
        unreadable: why its values could not be looked at; its bytes were all the same.
    """

    nan: int = 0
    infinite: int = 0
    invalid_booleans: int = 0
    digest: bytes | None = None
    unreadable: str | None = None


def scan(
    content: StoredContent, tensor: StoredTensor, *, with_digest: bool, on_read: Callable[[int], None]
) -> ValueScan:
    """Read a tensor once.

    Args:
        content: open.
        tensor: of the content.
        with_digest: whether its bytes may be those of another tensor.
        on_read: called with the bytes of every read.

    Raises:
        CheckpointError: the file changed, or cannot be read.
    """
    found = ValueScan()
    look = _look_of(content, tensor, found)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES) if with_digest else None
    first: Array | None = None
    is_constant = True
    for tile in content.tiles(tensor, TILE_BYTES if tensor.block is None else _BLOCK_TILE_BYTES):
        look(tile)
        if digest is not None:
            digest.update(tile.data)
            units = tile.reshape(-1, tensor.unit_bytes)
            first = units[0].copy() if first is None else first
            is_constant = is_constant and bool((units == first).all())
        on_read(tile.size)
    if digest is not None and not is_constant:
        found.digest = digest.digest()
    return found


def _look_of(content: StoredContent, tensor: StoredTensor, found: ValueScan) -> Callable[[Array], None]:
    """What counts the values in the bytes of a tile."""
    if tensor.block is not None:
        block = tensor.block
        try:
            check_readable([block], content.files[tensor.file].path)
        except CheckpointError as error:
            found.unreadable = str(error)
            return _look_at_nothing
        return lambda tile: _count(to_float32(tile.reshape(1, -1), block).reshape(-1), found)
    if tensor.numpy_dtype is None:
        return _look_at_nothing
    name = _REAL_OF_COMPLEX.get(tensor.dtype, tensor.dtype)
    if name in _EXPONENTS:
        dtype = np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
        return lambda tile: _count(tile.view(dtype), found)
    if tensor.dtype.startswith("float8"):
        every = np.arange(256, dtype=np.uint8).view(tensor.numpy_dtype).astype(np.float32)
        nan, infinite = np.isnan(every), np.isinf(every)
        return lambda tile: _count_bytes(tile, nan, infinite, found)
    if tensor.dtype == "bool":
        return lambda tile: _count_booleans(tile, found)
    return _look_at_nothing


def _look_at_nothing(tile: Array) -> None:
    """Any bytes are integers, and below a byte every pattern is a number."""


def _count(values: Array, found: ValueScan) -> None:
    kind, exponent = _EXPONENTS[values.dtype.name]
    mask = np.dtype(kind).type(exponent)
    is_odd = (values.view(kind) & mask) == mask
    count = int(np.count_nonzero(is_odd))
    if count:
        nan = int(np.count_nonzero(np.isnan(values[is_odd])))
        found.nan += nan
        found.infinite += count - nan


def _count_bytes(tile: Array, nan: Array, infinite: Array, found: ValueScan) -> None:
    counts = np.bincount(tile, minlength=256)
    found.nan += int(counts[nan].sum())
    found.infinite += int(counts[infinite].sum())


def _count_booleans(tile: Array, found: ValueScan) -> None:
    found.invalid_booleans += int(np.count_nonzero(tile > 1))
