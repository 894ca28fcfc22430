"""Arithmetic of whole arrays: differences, products, broadcast sums, bounds, learned factors."""

from __future__ import annotations

import numpy as np

from mila.kernels.cuda.axes import Axis, places, size_of, strides_of, walk
from mila.kernels.cuda.column_sums import rows_per_chunk
from mila.kernels.cuda.elementwise import CudaElementwise, single
from mila.kernels.cuda.family import BLOCK, WARP, Argument, ceiling
from mila.kernels.cuda.reductions import CudaReductions
from mila.kernels.signatures import Array

#: Rows of a chunk below which starting a block costs more than it saves, and most chunks.
_LEAST_ROWS, _MOST_CHUNKS = 32, 128
#: The same for flat arrays.
_LEAST_ELEMENTS, _MOST_FLAT_CHUNKS = 4096, 1024


class CudaArithmetic(CudaElementwise, CudaReductions):
    """``ArithmeticKernels`` in CUDA C++."""

    def subtract(self, output: Array, a: Array, b: Array) -> None:
        """``output = a - b``; ``output`` may be ``a`` or ``b``."""
        self.launch_flat("subtract", output, a, b)

    def multiply(self, output: Array, a: Array, b: Array) -> None:
        """``output = a * b``; ``output`` may be ``a`` or ``b``."""
        self.launch_flat("multiply", output, a, b)

    def broadcast_add(self, output: Array, a: Array, b: Array) -> None:
        """``output = a + b``; equal ranks, axes of extent 1 stretch; ``output`` may be whichever has its shape."""
        axes = walk(output.shape, _stretched(a, output), _stretched(b, output)) or [Axis(1, (1, 1))]
        *outer, last = axes
        rows, columns = size_of(outer), last.extent
        steps = [np.int32(stride != 0) for stride in last.strides]
        grid, block = self.rows_grid(rows, columns, output.dtype.itemsize)
        scalars = [places(outer, 0), places(outer, 1), np.int64(rows), np.int64(columns), *steps]
        self.launch("arithmetic", "broadcast_add", output.dtype, grid, block, [output, a, b, *scalars])

    def broadcast_sum(self, dx: Array, dy: Array) -> None:
        """``dx = dy`` summed over the axes in which ``dx`` has extent 1; ``dx`` of the same shape may be ``dy``."""
        if dx.shape == dy.shape:
            self.copy(dx, dy)
            return
        axes = walk(dy.shape, strides_of(dy.shape), _stretched(dx, dy))
        kept = [Axis(axis.extent, axis.strides[:1]) for axis in axes if axis.strides[1]]
        reduced = [Axis(axis.extent, axis.strides[:1]) for axis in axes if not axis.strides[1]]
        self.sum_places(dx, dy, kept, reduced)

    def clamp_forward(self, output: Array, x: Array, minimum: float, maximum: float) -> None:
        """``output = min(max(x, minimum), maximum)``, NaN stays; ``output`` may be ``x``."""
        self.launch_flat("clamp_forward", output, x, scalars=[single(minimum), single(maximum)])

    def clamp_backward(self, dx: Array, dy: Array, x: Array, minimum: float, maximum: float) -> None:
        """``dx = dy`` where ``minimum <= x <= maximum``, else exactly 0; ``dx`` may be ``dy`` or ``x``."""
        self.launch_flat("clamp_backward", dx, dy, x, scalars=[single(minimum), single(maximum)])

    def learned_scale_forward(self, output: Array, x: Array, gamma: Array) -> None:
        """``output = gamma[0] * x``; ``gamma (1,)``; ``output`` may be ``x``."""
        grid, block = self.rows_grid(1, x.size, x.dtype.itemsize)
        self.launch("elementwise", "learned_scale", x.dtype, grid, block, [output, x, gamma, np.int64(x.size)])

    def learned_scale_backward(
        self, dx: Array, dgamma: Array | None, dy: Array, x: Array, gamma: Array, accumulate: bool
    ) -> None:
        """``dx = gamma[0] * dy`` and, where it is given, ``dgamma (1,) (+)= sum(dy * x)``; ``dx`` may be ``dy``."""
        if dgamma is not None:
            per_chunk = rows_per_chunk(x.size, _LEAST_ELEMENTS, _MOST_FLAT_CHUNKS)
            chunks = ceiling(x.size, per_chunk)
            partial = self.launcher.scratch.view(np.float32)[:chunks]
            arguments: list[Argument] = [partial, dy, x, np.int64(x.size), np.int64(per_chunk)]
            self.launch("reductions", "products", x.dtype, chunks, BLOCK, arguments)
            self.add_chunks(dgamma, partial, chunks, 1, accumulate)
        self.learned_scale_forward(dx, dy, gamma)

    def layer_scale_forward(self, output: Array, x: Array, gamma: Array) -> None:
        """``output = gamma * x`` along the last axis; ``gamma (C,)``; ``output`` may be ``x``."""
        columns = gamma.size
        rows = x.size // max(1, columns)
        grid, block = self.rows_grid(rows, columns, x.dtype.itemsize)
        arguments: list[Argument] = [output, x, gamma, np.int64(rows), np.int64(columns)]
        self.launch("arithmetic", "layer_scale", x.dtype, grid, block, arguments)

    def layer_scale_backward(
        self,
        dx: Array,
        dgamma: Array | None,
        dy: Array,
        x: Array,
        gamma: Array,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """``dx = gamma * dy``; ``dgamma (C,) (+)= sum(dy * x)`` over rows, where it is given; ``dx`` may be ``dy``."""
        if dgamma is not None:
            columns = gamma.size
            rows = x.size // max(1, columns)
            per_chunk = rows_per_chunk(rows, _LEAST_ROWS, _MOST_CHUNKS)
            chunks = ceiling(rows, per_chunk)
            partial = workspace[: chunks * columns]
            arguments: list[Argument] = [partial, dy, x, np.int64(rows), np.int64(columns), np.int64(per_chunk)]
            grid = ceiling(columns, WARP), chunks
            self.launch("reductions", "column_products", x.dtype, grid, BLOCK, arguments)
            self.add_chunks(dgamma, partial, chunks, columns, accumulate)
        self.layer_scale_forward(dx, dy, gamma)

    def layer_scale_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``layer_scale_backward``'s workspace: a row of sums for each chunk of rows."""
        return ceiling(rows, rows_per_chunk(rows, _LEAST_ROWS, _MOST_CHUNKS)) * columns

    def matrix_product_forward(self, output: Array, a: Array, b: Array) -> None:
        """``output (B, N, M) = a (B, N, K) @ b (B, K, M)``."""
        self.launcher.multiply(output, a, b)

    def matrix_product_backward(self, da: Array, db: Array, dy: Array, a: Array, b: Array) -> None:
        """``db = a.T @ dy`` and then ``da = dy @ b.T``, matrix by matrix; ``da`` may be ``a``."""
        self.launcher.multiply(db, a, dy, transpose_a=True)
        self.launcher.multiply(da, dy, b, transpose_b=True)


def _stretched(x: Array, whole: Array) -> list[int]:
    """Strides of ``x`` along the axes of ``whole``: 0 where ``x`` has extent 1 and stretches."""
    pairs = zip(x.shape, whole.shape, strides_of(x.shape), strict=True)
    return [stride if extent == other else 0 for extent, other, stride in pairs]
