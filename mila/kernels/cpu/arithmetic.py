"""Arithmetic of whole arrays: differences, products, broadcast sums, bounds, learned factors."""

from __future__ import annotations

import math

import numpy as np

from mila.kernels.cpu.elementwise import CpuElementwise
from mila.kernels.cpu.linear import CpuLinear
from mila.kernels.signatures import Array

#: Elements whose comparisons and products are held at a time: 8 KB of booleans.
_BLOCK = 8192


class CpuArithmetic(CpuLinear, CpuElementwise):
    """``ArithmeticKernels`` in NumPy."""

    def subtract(self, output: Array, a: Array, b: Array) -> None:
        """``output = a - b``; ``output`` may be ``a`` or ``b``."""
        self._combine(np.subtract, output, a, b)

    def multiply(self, output: Array, a: Array, b: Array) -> None:
        """``output = a * b``; ``output`` may be ``a`` or ``b``."""
        self._combine(np.multiply, output, a, b)

    def broadcast_add(self, output: Array, a: Array, b: Array) -> None:
        """``output = a + b``; equal ranks, axes of extent 1 stretch; ``output`` may be whichever has its shape."""
        left, right = np.broadcast_to(a, output.shape), np.broadcast_to(b, output.shape)

        def body(start: int, stop: int, scratch: Array) -> None:
            np.add(left[start:stop], right[start:stop], out=output[start:stop])

        self.for_tiles(output.shape[0], math.prod(output.shape[1:]), body, passes=1)

    def broadcast_sum(self, dx: Array, dy: Array) -> None:
        """``dx = dy`` summed over the axes in which ``dx`` has extent 1; ``dx`` of the same shape may be ``dy``."""
        axes = tuple(axis for axis, extent in enumerate(dx.shape) if extent != dy.shape[axis])
        if axes:

            def add(index: int) -> None:
                np.add.reduce(dy, axis=axes, keepdims=True, out=dx)

            self.run(add, 1)
        else:
            self.copy(dx, dy)

    def clamp_forward(self, output: Array, x: Array, minimum: float, maximum: float) -> None:
        """``output = min(max(x, minimum), maximum)``, NaN stays; ``output`` may be ``x``."""
        target, source = output.reshape(-1), x.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            np.maximum(source[start:stop], minimum, out=target[start:stop])
            np.minimum(target[start:stop], maximum, out=target[start:stop])

        self.for_tiles(source.size, 1, body, passes=2)

    def clamp_backward(self, dx: Array, dy: Array, x: Array, minimum: float, maximum: float) -> None:
        """``dx = dy`` where ``minimum <= x <= maximum``, else exactly 0; ``dx`` may be ``dy`` or ``x``."""
        target, upstream, source = dx.reshape(-1), dy.reshape(-1), x.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            for low in range(start, stop, _BLOCK):
                high = min(stop, low + _BLOCK)
                inside = source[low:high] >= minimum
                inside &= source[low:high] <= maximum
                np.copyto(target[low:high], upstream[low:high])
                np.copyto(target[low:high], 0.0, where=np.logical_not(inside, out=inside))

        self.for_tiles(source.size, 1, body, passes=4)

    def learned_scale_forward(self, output: Array, x: Array, gamma: Array) -> None:
        """``output = gamma[0] * x``; ``gamma (1,)``; ``output`` may be ``x``."""
        self.scale(output, x, float(gamma[0]))

    def learned_scale_backward(
        self, dx: Array, dgamma: Array | None, dy: Array, x: Array, gamma: Array, accumulate: bool
    ) -> None:
        """``dx = gamma[0] * dy`` and, where it is given, ``dgamma (1,) (+)= sum(dy * x)``; ``dx`` may be ``dy``."""
        if dgamma is not None:
            upstream, source = dy.reshape(-1), x.reshape(-1)

            def add(index: int) -> None:
                # Blocks of one size, added in float64: the sum does not depend on the number of threads.
                blocks = range(0, upstream.size, _BLOCK)
                total = sum(float(np.dot(upstream[low : low + _BLOCK], source[low : low + _BLOCK])) for low in blocks)
                dgamma[0] = total + dgamma[0] if accumulate else total

            self.run(add, 1)
        self.scale(dx, dy, float(gamma[0]))

    def matrix_product_forward(self, output: Array, a: Array, b: Array) -> None:
        """``output (B, N, M) = a (B, N, K) @ b (B, K, M)``."""
        with self.products():
            np.matmul(a, b, out=output)

    def matrix_product_backward(self, da: Array, db: Array, dy: Array, a: Array, b: Array) -> None:
        """``db = a.T @ dy`` and then ``da = dy @ b.T``, matrix by matrix; ``da`` may be ``a``."""
        with self.products():
            np.matmul(a.swapaxes(1, 2), dy, out=db)
            np.matmul(dy, b.swapaxes(1, 2), out=da)

    def _combine(self, function: np.ufunc, output: Array, a: Array, b: Array) -> None:
        target, left, right = output.reshape(-1), a.reshape(-1), b.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            function(left[start:stop], right[start:stop], out=target[start:stop])

        self.for_tiles(target.size, 1, body, passes=1)
