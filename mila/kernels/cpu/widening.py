"""Values that are stored in less than they are computed in: half precision, and FP8 bytes.

Rounding is to nearest, ties to even. Bfloat16 goes through NumPy's casts, which convert some thousand values at
a time; float16 and FP8 bytes go through tables and bit operations, which are several times faster than a cast.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import ml_dtypes
import numpy as np

from mila.kernels.signatures import Array

#: Stored dtypes that are computed in float32.
NARROW: tuple[np.dtype[Any], ...] = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
#: Values that are converted at a time.
_BLOCK = 8192
#: Where the upper 16 bits of 32 lie.
_HIGH_HALVES = slice(1 if sys.byteorder == "little" else 0, None, 2)
#: What a float16 that is finite is less than, and its least normal value.
_FLOAT16_INFINITY, _FLOAT16_SMALLEST_NORMAL = np.float32(65536.0), np.float32(2.0**-14)
_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
#: By target: integer type, left shift, mask of sign and shifted bits, factor for the difference of exponent biases.
_FORMS: dict[np.dtype[Any], tuple[np.dtype[Any], int, int, float]] = {
    np.dtype(np.float32): (np.dtype(np.int32), 20, -0x78100000, 2.0**120),
    np.dtype(np.float64): (np.dtype(np.int64), 49, -0x7F02000000000000, 2.0**1016),
}
#: The bits of NaN, once shifted as if they were a number (the largest finite value is 448).
_NAN_IMAGE = 480.0


def widen(output: Array, source: Array) -> None:
    """``output = source`` for a narrower ``source`` of the same shape; both contiguous."""
    if source.dtype == _FLOAT8:
        widen_float8(output, source)
    elif source.dtype == np.float16 and output.dtype == np.float32:
        _widen_float16(output.reshape(-1), source.reshape(-1))
    else:
        np.copyto(output, source, casting="unsafe")


def narrow(output: Array, source: Array) -> None:
    """``output = source`` for a narrower ``output`` of the same shape, each value rounded once; both contiguous."""
    if output.dtype == np.float16 and source.dtype == np.float32:
        _narrow_float16(output.reshape(-1), source.reshape(-1))
    else:
        np.copyto(output, source, casting="unsafe")


def add_narrow(output: Array, x: Array) -> None:
    """``output += x`` in float32 for a half-precision ``output``, each sum rounded once; both contiguous."""
    if output.dtype != np.float16:
        np.add(output, x, out=output, dtype=np.float32, casting="unsafe")
        return
    target, source = output.reshape(-1), x.reshape(-1)
    sums, terms = np.empty((2, min(_BLOCK, max(1, target.size))), np.float32)
    for low in range(0, target.size, _BLOCK):
        part = target[low : low + _BLOCK]
        total, term = sums[: part.size], terms[: part.size]
        widen(total, part)
        widen(term, source[low : low + _BLOCK])
        total += term
        narrow(part, total)


def _widen_float16(output: Array, source: Array) -> None:
    """By looking it up: NumPy's own cast takes ten times longer for subnormal values, which gradients often are."""
    bits, table = source.view(np.uint16), _float16_values()
    for low in range(0, output.size, _BLOCK):
        np.take(table, bits[low : low + _BLOCK], out=output[low : low + _BLOCK], mode="clip")


@functools.cache
def _float16_values() -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _narrow_float16(output: Array, source: Array) -> None:
    """By bit operations: NumPy's own cast takes sixty times longer for results that are subnormal.

    A magnitude ``y`` of exponent ``e`` (that of 2**-14 for what is less) is rounded to multiples of ``2**(e - 10)`` by
    adding ``2**(e + 13)``, whose last bit has that weight: the last bits of the sum count the multiples, and added to
    ``e`` they are exponent and mantissa of the result. Only 16 bits are kept, so that nothing else need be cleared.
    """
    target, high = output.view(np.uint16), source.view(np.uint16)[_HIGH_HALVES]
    first, second = np.empty((2, min(_BLOCK, max(1, output.size))), np.float32)
    for low in range(0, output.size, _BLOCK):
        rows = slice(low, min(low + _BLOCK, output.size))
        y, magic = first[: rows.stop - low], second[: rows.stop - low]
        bits, exponent = y.view(np.int32), magic.view(np.int32)
        np.abs(source[rows], out=y)
        np.minimum(y, _FLOAT16_INFINITY, out=y)  # NaN stays
        has_nan = math.isnan(y.max())
        np.maximum(y, _FLOAT16_SMALLEST_NORMAL, out=magic)
        np.bitwise_and(exponent, 0x7F800000, out=exponent)
        np.add(exponent, 13 << 23, out=exponent)
        np.add(y, magic, out=y)
        np.right_shift(exponent, 13, out=exponent)
        np.subtract(exponent, 126 << 10, out=exponent)  # both biases, the 13, and the 1024 that normal numbers count
        np.add(bits, exponent, out=bits)
        signs = exponent.view(np.uint16)[: y.size]
        np.bitwise_and(high[rows], 0x8000, out=signs)
        np.copyto(target[rows], bits, casting="unsafe")
        np.bitwise_or(target[rows], signs, out=target[rows])
        if has_nan:
            np.copyto(output[rows], np.float16(np.nan), where=np.isnan(source[rows]))


def widen_float8(output: Array, source: Array) -> None:
    """``output = source`` for ``source`` float8_e4m3fn and ``output`` float32 or float64, of one shape, contiguous.

    A byte is sign, 4 bits of exponent (bias 7) and 3 of mantissa (Micikevicius et al. 2022). Shifted to the place of
    the wider format's bits, all finite values are right but for the bias, subnormal ones included; NaN is repaired.
    """
    integer, shift, mask, factor = _FORMS[output.dtype]
    bits = output.view(integer)
    np.copyto(bits, source.view(np.int8))
    np.left_shift(bits, shift, out=bits)
    np.bitwise_and(bits, mask, out=bits)
    output *= factor
    if output.size and (output.max() == _NAN_IMAGE or output.min() == -_NAN_IMAGE):
        flat = output.reshape(-1)
        for low in range(0, flat.size, 4096):
            part = flat[low : low + 4096]
            part[np.abs(part) == _NAN_IMAGE] = np.nan
