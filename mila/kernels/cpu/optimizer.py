"""Flat passes over whole arenas: AdamW, the global norm, the search for non-finite elements."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.cpu.widening import NARROW, narrow, widen
from mila.kernels.cpu.workers import tile_elements
from mila.kernels.signatures import Array

#: Elements of one dot product: short enough for float32 sums to stay accurate.
_DOT_ELEMENTS = 4096
#: Elements that are inspected at a time, one byte of temporary each.
_INSPECTED = 32768
#: Sums of squares outside this range may have lost something to overflow or underflow of float32 squares.
_TRUSTED_SQUARES = (1e-24, math.inf)


class CpuOptimizer(CpuFamily):
    """``OptimizerKernels`` in NumPy."""

    def adamw(
        self,
        parameters: Array,
        first_moment: Array,
        second_moment: Array,
        gradients: Array,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
        step: int,
        gradient_scale: float,
        workspace: Array,
    ) -> None:
        """One decoupled AdamW step (Loshchilov & Hutter 2019) over flat arrays of equal length; ``step`` from 1.

        With the moments stored as ``M = m / (1 - beta1)`` and ``V = v / (1 - beta2)``, their recurrences are
        ``M = beta1 M + g`` and ``V = beta2 V + g²``. The bias-corrected moments are ``m̂ = a M``, ``v̂ = c² V`` with
        ``a = (1 - beta1) / (1 - beta1^step)`` and ``c² = (1 - beta2) / (1 - beta2^step)``, and so
        ``learning_rate m̂ / (sqrt(v̂) + epsilon) = (learning_rate a / c) M / (sqrt(V) + epsilon / c)``.
        """
        first_correction = (1.0 - beta1) / (1.0 - beta1**step)
        second_correction = math.sqrt((1.0 - beta2) / (1.0 - beta2**step))
        rate = learning_rate * first_correction / second_correction
        offset = epsilon / second_correction
        kept = 1.0 - learning_rate * weight_decay

        def advance(p: Array, m: Array, v: Array, g: Array, t: Array) -> None:
            if gradient_scale != 1.0:
                g = np.multiply(g, gradient_scale, out=t)
            m *= beta1
            m += g
            np.multiply(g, g, out=t)
            v *= beta2
            v += t
            np.sqrt(v, out=t)
            t += offset
            np.divide(m, t, out=t)
            t *= rate
            if kept != 1.0:
                p *= kept
            p -= t

        def body(start: int, stop: int, scratch: Array) -> None:
            p, m, v = parameters[start:stop], first_moment[start:stop], second_moment[start:stop]
            advance(p, m, v, gradients[start:stop], scratch[: stop - start])

        def widened_body(start: int, stop: int, scratch: Array) -> None:
            p, g, t = scratch[: 3 * (stop - start)].reshape(3, -1)
            widen(p, parameters[start:stop])
            widen(g, gradients[start:stop])
            advance(p, first_moment[start:stop], second_moment[start:stop], g, t)
            narrow(parameters[start:stop], p)

        if parameters.dtype in NARROW:
            self.for_tiles(parameters.size, 1, widened_body, workspace, 3, passes=16)
        else:
            self.for_tiles(parameters.size, 1, body, workspace, 1, passes=12)

    def adamw_workspace(self, elements: int, dtype: np.dtype[Any]) -> int:
        """Elements of ``adamw``'s workspace for parameters of ``dtype``."""
        return (3 if dtype in NARROW else 1) * tile_elements(elements, 1)

    def global_norm(self, gradients: Array) -> float:
        """Euclidean norm of a flat array, tiles summed in float64; infinite or NaN exactly when an element is."""
        flat = gradients.reshape(-1)
        partial: dict[int, float] = {}

        def body(start: int, stop: int, scratch: Array) -> None:
            if flat.dtype in NARROW:
                partial[start] = _narrow_squares(flat[start:stop])
                return
            whole = stop - (stop - start) % _DOT_ELEMENTS
            rows, rest = flat[start:whole].reshape(-1, _DOT_ELEMENTS), flat[whole:stop]
            partial[start] = float(np.vecdot(rows, rows).sum(dtype=np.float64)) + float(np.dot(rest, rest))

        self.for_tiles(flat.size, 1, body, passes=1)
        total = sum(partial[low] for low in sorted(partial))
        if _TRUSTED_SQUARES[0] < total < _TRUSTED_SQUARES[1]:
            return math.sqrt(total)
        return _scaled_norm(flat)

    def first_non_finite(self, x: Array) -> int:
        """Flat index of the first element that is not finite, or -1."""
        flat = x.reshape(-1)
        found: list[int] = []

        def body(start: int, stop: int, scratch: Array) -> None:
            for low in range(start, stop, _INSPECTED):
                finite = np.isfinite(flat[low : min(stop, low + _INSPECTED)])
                if not finite.all():
                    found.append(low + int(finite.argmin()))
                    return

        self.for_tiles(flat.size, 1, body, passes=1)
        return min(found, default=-1)


def _narrow_squares(flat: Array) -> float:
    """Sum of the squares of half-precision values, which float64 holds whatever they are."""
    total, wide = 0.0, np.empty(min(_DOT_ELEMENTS, flat.size), np.float32)
    for low in range(0, flat.size, _DOT_ELEMENTS):
        part = wide[: min(_DOT_ELEMENTS, flat.size - low)]
        widen(part, flat[low : low + _DOT_ELEMENTS])
        double = part.astype(np.float64)
        total += float(np.dot(double, double))
    return total


def _scaled_norm(flat: Array) -> float:
    """The norm by way of the largest magnitude, for squares that overflow or underflow."""
    largest = max(abs(float(flat.max())), abs(float(flat.min()))) if flat.size else 0.0
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    total = 0.0
    scaled = np.empty(min(flat.size, 2 * _DOT_ELEMENTS), np.float64)
    for low in range(0, flat.size, scaled.size):
        part = flat[low : low + scaled.size]
        quotients = np.divide(part, largest, out=scaled[: part.size], dtype=np.float64)
        total += float(np.dot(quotients, quotients))
    return min(largest * math.sqrt(total), sys.float_info.max)
