"""Conversion of FP8 bytes to float32 and float64 by bit operations: exact, and several times faster than a cast."""

from __future__ import annotations

from typing import Any

import numpy as np

from mila.kernels.signatures import Array

#: By target: integer type, left shift, mask of sign and shifted bits, factor for the difference of exponent biases.
_FORMS: dict[np.dtype[Any], tuple[np.dtype[Any], int, int, float]] = {
    np.dtype(np.float32): (np.dtype(np.int32), 20, -0x78100000, 2.0**120),
    np.dtype(np.float64): (np.dtype(np.int64), 49, -0x7F02000000000000, 2.0**1016),
}
#: The bits of NaN, once shifted as if they were a number (the largest finite value is 448).
_NAN_IMAGE = 480.0


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
