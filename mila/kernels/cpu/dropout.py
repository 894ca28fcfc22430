"""Dropout whose mask is computed, not stored: a pure function of a key and the position of an element."""

from __future__ import annotations

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array

_INCREMENT = 0x9E3779B97F4A7C15
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_MODULUS = 1 << 64

#: Elements of the tiles of all threads together; each takes three 64-bit integers of workspace.
_TILE = 131072
#: 64-bit integers that drawing one element takes.
INTEGERS = 3
#: Workspace per element in units of float32, and a reserve for the alignment of 64-bit integers.
_PER_ELEMENT = 6


class CpuDropout(CpuFamily):
    """The dropout kernel of ``ElementwiseKernels``."""

    def dropout(self, output: Array, x: Array, probability: float, key: int, workspace: Array) -> None:
        """``output = x * mask / (1 - p)``; ``output`` may be ``x``.

        Element i is kept where the upper half of ``mix(key + (i + 1) * 0x9E3779B97F4A7C15)`` is at least
        ``round(p * 2**32)``, with the mix of SplitMix64 (Steele, Lea & Flood 2014).
        """
        target, source = output.reshape(-1), x.reshape(-1)
        integers = workspace[: workspace.size // 2 * 2].view(np.uint64)

        def body(start: int, stop: int, scratch: Array) -> None:
            drop(target[start:stop], source[start:stop], start, probability, key, scratch)

        self.for_tiles(source.size, 1, body, integers, INTEGERS, passes=20)

    def dropout_workspace(self, rows: int, columns: int) -> int:
        """Elements (of the stored dtype) of ``dropout``'s workspace: enough for float32, twice enough for float64."""
        return _PER_ELEMENT * min(rows * columns, _TILE)


def drop(output: Array, x: Array, number: int, probability: float, key: int, integers: Array, stride: int = 0) -> None:
    """``dropout`` of ``x``, whose elements have the numbers from ``number`` on; ``output`` may be ``x``.

    Both are contiguous. Where ``x`` has two axes, the numbers of a row begin ``stride`` after those of the row before.
    ``integers``: at least ``INTEGERS`` 64-bit integers for each element.
    """
    threshold = round(probability * 2**32)
    if threshold >= 2**32:
        output.fill(0.0)
        return
    offsets, bits, spare = integers[: INTEGERS * x.size].reshape(INTEGERS, -1)
    _fill_offsets(offsets, x.shape[-1], stride)
    first = (key + number * _INCREMENT) % _MODULUS
    np.add(offsets, np.uint64(first), out=bits)
    _mix(bits, spare)
    mask = spare.view(np.bool_)[: bits.size]
    np.greater_equal(bits, np.uint64(threshold << 32), out=mask)
    factors = bits.view(x.dtype)[: bits.size]
    np.multiply(mask, 1.0 / (1.0 - probability), out=factors)
    np.multiply(x.reshape(-1), factors, out=output.reshape(-1))


def _fill_offsets(offsets: Array, columns: int, stride: int) -> None:
    """``offsets[r * columns + c] = (r * stride + c + 1) * increment`` modulo 2**64."""
    offsets.fill(_INCREMENT)
    if columns < offsets.size:
        offsets[columns::columns] = (stride - columns + 1) * _INCREMENT % _MODULUS
    np.add.accumulate(offsets, out=offsets)


def _mix(bits: Array, spare: Array) -> None:
    """The finaliser of SplitMix64, in place."""
    for shift, multiplier in ((30, _FIRST_FACTOR), (27, _SECOND_FACTOR)):
        np.right_shift(bits, np.uint64(shift), out=spare)
        np.bitwise_xor(bits, spare, out=bits)
        np.multiply(bits, multiplier, out=bits)
    np.right_shift(bits, np.uint64(31), out=spare)
    np.bitwise_xor(bits, spare, out=bits)
