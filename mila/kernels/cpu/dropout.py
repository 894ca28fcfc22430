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
        threshold = round(probability * 2**32)
        if threshold >= 2**32:
            target.fill(0.0)
            return
        lowest_kept = np.uint64(threshold << 32)
        factor = 1.0 / (1.0 - probability)
        integers = workspace[: workspace.size // 2 * 2].view(np.uint64)

        def body(start: int, stop: int, scratch: Array) -> None:
            offsets, bits, spare = scratch[: 3 * (stop - start)].reshape(3, -1)
            _fill_offsets(offsets)
            first = (key + start * _INCREMENT) % _MODULUS
            np.add(offsets, np.uint64(first), out=bits)
            _mix(bits, spare)
            mask = spare.view(np.bool_)[: bits.size]
            np.greater_equal(bits, lowest_kept, out=mask)
            factors = bits.view(x.dtype)[: bits.size]
            np.multiply(mask, factor, out=factors)
            np.multiply(source[start:stop], factors, out=target[start:stop])

        self.for_tiles(source.size, 1, body, integers, 3, passes=20)

    def dropout_workspace(self, rows: int, columns: int) -> int:
        """Elements (of the stored dtype) of ``dropout``'s workspace: enough for float32, twice enough for float64."""
        return _PER_ELEMENT * min(rows * columns, _TILE)


def _fill_offsets(offsets: Array) -> None:
    """``offsets[j] = (j + 1) * increment`` modulo 2**64."""
    offsets.fill(_INCREMENT)
    np.add.accumulate(offsets, out=offsets)


def _mix(bits: Array, spare: Array) -> None:
    """The finaliser of SplitMix64, in place."""
    for shift, multiplier in ((30, _FIRST_FACTOR), (27, _SECOND_FACTOR)):
        np.right_shift(bits, np.uint64(shift), out=spare)
        np.bitwise_xor(bits, spare, out=bits)
        np.multiply(bits, multiplier, out=bits)
    np.right_shift(bits, np.uint64(31), out=spare)
    np.bitwise_xor(bits, spare, out=bits)
