"""Elementwise kernels: copies, sums, activations, gated activations."""

from __future__ import annotations

import numpy as np

from mila.kernels.cpu.activations import SCRATCH, activate, activate_with_derivative
from mila.kernels.cpu.family import CpuFamily
from mila.kernels.cpu.widening import NARROW, add_narrow, narrow, widen
from mila.kernels.cpu.workers import split, tile_elements
from mila.kernels.signatures import ActivationFunction, Array

#: Elements of the products that ``residual_forward`` makes for a scale other than one: 32 to 64 KB.
_BLOCK = 8192
#: The work of a typical activation per element, in additions.
_PASSES = 20


class CpuElementwise(CpuFamily):
    """``ElementwiseKernels`` in NumPy, but for dropout."""

    def copy(self, output: Array, x: Array) -> None:
        """``output = x``; equal shapes and dtypes. Nothing happens where they are the same bytes."""
        if output.__array_interface__["data"] == x.__array_interface__["data"]:
            return
        target, source = output.reshape(-1), x.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            np.copyto(target[start:stop], source[start:stop])

        self.for_tiles(source.size, 1, body, passes=1)

    def cast(self, output: Array, x: Array) -> None:
        """``output = x``; equal shapes, float dtypes. Rounds to nearest, ties to even, overflows to infinity."""
        target, source = output.reshape(-1), x.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            convert(target[start:stop], source[start:stop])

        convert = narrow if target.itemsize < source.itemsize else widen
        self.for_tiles(source.size, 1, body, passes=2)

    def fill(self, output: Array, value: float) -> None:
        """``output = value``. Fresh memory costs the system time with every page, and less on several threads."""
        flat = output.reshape(-1)
        count = self.worker_count(flat.size, 1, passes=1)
        if count == 1:  # often a few bytes: the hand-over to the workers would take most of the time
            with np.errstate(all="ignore"):
                flat.fill(value)
            return

        def task(index: int) -> None:
            start, stop = split(flat.size, index, count)
            flat[start:stop].fill(value)

        self.run(task, count)

    def add_in_place(self, output: Array, x: Array) -> None:
        """``output += x``; equal shapes. A half-precision ``output`` is added to in float32 and rounded once."""
        if output.dtype not in NARROW:
            self.residual_forward(output, output, x, 1.0)
            return
        target, source = output.reshape(-1), x.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            add_narrow(target[start:stop], source[start:stop])

        self.for_tiles(source.size, 1, body, passes=4)

    def residual_forward(self, output: Array, a: Array, b: Array, scale: float) -> None:
        """``output = a + scale * b``; ``output`` may be ``a`` or ``b``."""
        target, left, right = output.reshape(-1), a.reshape(-1), b.reshape(-1)

        def add(start: int, stop: int, scratch: Array) -> None:
            np.add(left[start:stop], right[start:stop], out=target[start:stop])

        def add_scaled(start: int, stop: int, scratch: Array) -> None:
            # NumPy has no fused a + s b: a small block of products is made, never a whole array of them.
            for low in range(start, stop, _BLOCK):
                high = min(stop, low + _BLOCK)
                np.add(left[low:high], np.multiply(right[low:high], scale), out=target[low:high])

        self.for_tiles(left.size, 1, add if scale == 1.0 else add_scaled, passes=1)

    def scale(self, output: Array, x: Array, factor: float) -> None:
        """``output = factor * x``; ``output`` may be ``x``."""
        target, source = output.reshape(-1), x.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            np.multiply(source[start:stop], factor, out=target[start:stop])

        self.for_tiles(source.size, 1, body, passes=1)

    def activation_forward(
        self, output: Array, derivative: Array | None, x: Array, function: ActivationFunction, workspace: Array
    ) -> None:
        """``output = f(x)`` and, where given, ``derivative = f'(x)``.

        ``derivative`` may be ``x``; ``output`` may be ``x`` when no derivative is asked for. Unknown kinds raise
        ``ConfigurationError``.
        """
        target, source = output.reshape(-1), x.reshape(-1)
        slope = None if derivative is None else derivative.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            part = scratch[: SCRATCH * (stop - start)].reshape(SCRATCH, -1)
            if slope is None:
                activate(function, target[start:stop], source[start:stop], part)
            else:
                activate_with_derivative(function, target[start:stop], slope[start:stop], source[start:stop], part)

        self.for_tiles(source.size, 1, body, workspace, SCRATCH, _PASSES)

    def activation_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``activation_forward``'s workspace."""
        return SCRATCH * tile_elements(rows * columns, 1)

    def activation_backward(self, dx: Array, dy: Array, derivative: Array) -> None:
        """``dx = dy * derivative``; ``dx`` may be ``dy`` or ``derivative``."""
        target, upstream, slope = dx.reshape(-1), dy.reshape(-1), derivative.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            np.multiply(upstream[start:stop], slope[start:stop], out=target[start:stop])

        self.for_tiles(target.size, 1, body, passes=1)

    def gated_forward(self, output: Array, x: Array, function: ActivationFunction, workspace: Array) -> None:
        """``output (N, F) = f(x[:, :F]) * x[:, F:]`` for ``x (N, 2F)``: contiguous halves, gate first."""
        columns = output.shape[-1]
        target, source = output.reshape(-1, columns), x.reshape(-1, 2 * columns)

        def body(start: int, stop: int, scratch: Array) -> None:
            part = scratch[: SCRATCH * (stop - start) * columns].reshape(SCRATCH, -1, columns)
            result = target[start:stop]
            activate(function, result, source[start:stop, :columns], part)
            np.multiply(result, source[start:stop, columns:], out=result)

        self.for_tiles(target.shape[0], columns, body, workspace, SCRATCH * columns, _PASSES)

    def gated_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``gated_forward``'s workspace; ``columns`` is F."""
        return SCRATCH * tile_elements(rows, columns)

    def gated_backward(self, dx: Array, dy: Array, x: Array, function: ActivationFunction, workspace: Array) -> None:
        """``dx[:, :F] = dy f'(gate) up``, ``dx[:, F:] = dy f(gate)``; ``dx`` may be ``x``."""
        columns = dy.shape[-1]
        target, source, upstream = dx.reshape(-1, 2 * columns), x.reshape(-1, 2 * columns), dy.reshape(-1, columns)

        def body(start: int, stop: int, scratch: Array) -> None:
            parts = scratch[: (SCRATCH + 2) * (stop - start) * columns].reshape(SCRATCH + 2, -1, columns)
            value, slope = parts[SCRATCH], parts[SCRATCH + 1]
            gate, up = source[start:stop, :columns], source[start:stop, columns:]
            activate_with_derivative(function, value, slope, gate, parts[:SCRATCH])
            np.multiply(slope, up, out=slope)
            np.multiply(upstream[start:stop], slope, out=target[start:stop, :columns])
            np.multiply(upstream[start:stop], value, out=target[start:stop, columns:])

        self.for_tiles(upstream.shape[0], columns, body, workspace, (SCRATCH + 2) * columns, _PASSES)

    def gated_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``gated_backward``'s workspace; ``columns`` is F."""
        return (SCRATCH + 2) * tile_elements(rows, columns)
