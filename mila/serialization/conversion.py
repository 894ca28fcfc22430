"""An array as little-endian bytes of a dtype, tile by tile, whatever its layout and its own float dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

TILE_BYTES = 1 << 24
FLOATS: Mapping[np.dtype[Any], float] = MappingProxyType(
    {
        np.dtype(each): float(ml_dtypes.finfo(each).max)  # type: ignore[no-untyped-call]
        for each in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
    }
)
"""The dtypes that convert to each other, with their largest finite value. Integers, truth values and FP8, which means
nothing without its scales, never become floats."""


def contiguous_tiles(array: Array) -> Iterator[Array]:
    """Yield `array` in row-major order, in pieces small enough to be made contiguous one at a time."""
    if array.flags.c_contiguous or array.nbytes <= TILE_BYTES:
        yield array
        return
    rows = max(1, TILE_BYTES * array.shape[0] // array.nbytes)
    for first in range(0, array.shape[0], rows):
        yield from contiguous_tiles(array[first] if rows == 1 else array[first : first + rows])


def byte_tiles(array: Array, dtype: np.dtype[Any]) -> Iterator[tuple[Array, bool]]:
    """Yield the bytes of `array` as `dtype`, in row-major order, a tile at a time.

    Args:
        array: any layout and byte order; its dtype is `dtype`, or both are among `FLOATS`.
        dtype: a little-endian dtype.

    Yields:
        The bytes, ``(n,)`` uint8, and whether a finite value of the tile became infinite.
    """
    own_dtype = array.dtype.newbyteorder("=")
    narrows = own_dtype != dtype and FLOATS[dtype] < FLOATS[own_dtype]
    length = TILE_BYTES // max(array.dtype.itemsize, dtype.itemsize)
    for piece in contiguous_tiles(array):
        flat = np.ascontiguousarray(piece).reshape(-1)
        for first in range(0, flat.size, length):
            tile = flat[first : first + length]
            with np.errstate(over="ignore"):
                converted = np.ascontiguousarray(tile, dtype)
            infinite = np.isinf(converted) if narrows else np.zeros((), np.bool_)
            yield converted.view(np.uint8), bool(infinite.any()) and bool(np.isfinite(tile[infinite]).any())
