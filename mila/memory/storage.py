"""Sizes of stored elements, and dtypes by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from mila.errors import DTypeError

Shape = tuple[int, ...]
DType = np.dtype[Any]

#: Dtypes whose elements are narrower than the byte that NumPy gives them in memory.
_BITS: dict[DType, int] = {
    np.dtype(ml_dtypes.float4_e2m1fn): 4,
    np.dtype(ml_dtypes.int4): 4,
    np.dtype(ml_dtypes.uint4): 4,
    np.dtype(ml_dtypes.int2): 2,
    np.dtype(ml_dtypes.uint2): 2,
    np.dtype(ml_dtypes.float6_e2m3fn): 6,
    np.dtype(ml_dtypes.float6_e3m2fn): 6,
}

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
INT32 = np.dtype(np.int32)
FLOAT8_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)

_NETWORK_DTYPES: dict[str, DType] = {
    "float32": FLOAT32,
    "float64": FLOAT64,
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def element_count(shape: Sequence[int]) -> int:
    """Number of elements of an array of ``shape``, as an unbounded integer."""
    return math.prod(shape)


def storage_bytes(dtype: DType | type[Any] | str, elements: int) -> int:
    """Bytes that ``elements`` values of ``dtype`` occupy when packed: whole bytes, sub-byte dtypes rounded up once."""
    resolved = np.dtype(dtype)
    bits = _BITS.get(resolved, resolved.itemsize * 8)
    return -(-elements * bits // 8)


def network_dtype(dtype: DType | type[Any] | str) -> DType:
    """The stored dtype of a network: float32, float64, bfloat16 or float16; anything else is a :class:`DTypeError`."""
    if isinstance(dtype, str):
        if dtype in _NETWORK_DTYPES:
            return _NETWORK_DTYPES[dtype]
    else:
        try:
            resolved = np.dtype(dtype)
        except TypeError:
            resolved = INT32  # like anything else that is no dtype of a network
        if resolved in _NETWORK_DTYPES.values():
            return resolved
    raise DTypeError(f"dtype: expected one of {', '.join(_NETWORK_DTYPES)}, got {dtype!r}")


def accumulation_dtype(dtype: DType) -> DType:
    """The dtype of optimizer moments and statistics: float64 for float64 networks, float32 otherwise."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def align_up(size: int, alignment: int) -> int:
    """The smallest multiple of ``alignment`` that is at least ``size``."""
    return -(-size // alignment) * alignment
