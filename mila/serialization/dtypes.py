"""The dtypes of the safetensors format, and the NumPy dtypes that hold them.

The format stores everything little-endian. The sub-byte dtypes pack their elements, which no NumPy dtype does (those
of ``ml_dtypes`` take a byte for each element), so they are known, sized and listed, but their data cannot be read.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from mila.errors import DTypeError


class FormatDType(NamedTuple):
    """One dtype of the format: its name there, its bits for each element, and the NumPy dtype, if there is one."""

    name: str
    bits: int
    numpy_dtype: np.dtype[Any] | None


_ALL = (
    FormatDType("BOOL", 8, np.dtype(np.bool_)),
    FormatDType("F4", 4, None),
    FormatDType("F6_E2M3", 6, None),
    FormatDType("F6_E3M2", 6, None),
    FormatDType("U8", 8, np.dtype(np.uint8)),
    FormatDType("I8", 8, np.dtype(np.int8)),
    FormatDType("F8_E5M2", 8, np.dtype(ml_dtypes.float8_e5m2)),
    FormatDType("F8_E4M3", 8, np.dtype(ml_dtypes.float8_e4m3fn)),
    FormatDType("F8_E8M0", 8, np.dtype(ml_dtypes.float8_e8m0fnu)),
    FormatDType("F8_E4M3FNUZ", 8, np.dtype(ml_dtypes.float8_e4m3fnuz)),
    FormatDType("F8_E5M2FNUZ", 8, np.dtype(ml_dtypes.float8_e5m2fnuz)),
    FormatDType("I16", 16, np.dtype("<i2")),
    FormatDType("U16", 16, np.dtype("<u2")),
    FormatDType("F16", 16, np.dtype("<f2")),
    FormatDType("BF16", 16, np.dtype(ml_dtypes.bfloat16)),
    FormatDType("I32", 32, np.dtype("<i4")),
    FormatDType("U32", 32, np.dtype("<u4")),
    FormatDType("F32", 32, np.dtype("<f4")),
    FormatDType("C64", 64, np.dtype("<c8")),
    FormatDType("F64", 64, np.dtype("<f8")),
    FormatDType("I64", 64, np.dtype("<i8")),
    FormatDType("U64", 64, np.dtype("<u8")),
)

FORMAT_DTYPES = MappingProxyType({each.name: each for each in _ALL})
"""Every dtype of the format by its name there."""

_BY_NUMPY_DTYPE = MappingProxyType({each.numpy_dtype: each for each in _ALL if each.numpy_dtype is not None})


def format_dtype(dtype: npt.DTypeLike | str) -> FormatDType:
    """Return the format's dtype for a NumPy dtype of either byte order, or for a name of the format (``"BF16"``).

    Raises:
        DTypeError: the format has no such dtype.
    """
    if isinstance(dtype, str) and dtype in FORMAT_DTYPES:
        return FORMAT_DTYPES[dtype]
    try:
        little_endian = np.dtype(dtype).newbyteorder("<")
    except TypeError as error:
        raise DTypeError(f"expected a dtype, got {dtype!r}") from error
    found = _BY_NUMPY_DTYPE.get(little_endian)
    if found is None:
        raise DTypeError(f"expected a dtype that safetensors can store, got {np.dtype(dtype)}")
    return found
