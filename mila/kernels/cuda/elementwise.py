"""Elementwise kernels: copies, sums, dropout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mila.kernels.cuda.family import BLOCK, FLOAT32, Argument, CudaFamily, ceiling
from mila.kernels.signatures import Array

_MODULUS = 1 << 64
#: Bytes that a thread reads or writes at once where addresses allow it.
_VECTOR_BYTES = 16
#: Most blocks along the second axis of a grid.
_MOST_BLOCKS = 65535

Grid = tuple[int, int]


def single(value: float) -> np.float32:
    """The nearest float32, as kernels take numbers; beyond its range infinity."""
    with np.errstate(over="ignore"):
        return np.float32(value)


class CudaElementwise(CudaFamily):
    """``ElementwiseKernels`` in CUDA C++, but for activations."""

    def copy(self, output: Array, x: Array) -> None:
        """``output = x``; equal shapes and dtypes. Nothing happens where they are the same bytes."""
        self.copy_rows(output, x, 1, x.size)

    def cast(self, output: Array, x: Array) -> None:
        """``output = x``; equal shapes, float dtypes. Rounds to nearest, ties to even, overflows to infinity."""
        self.launch_flat(f"cast_from_{x.dtype.name}", output, x)

    def fill(self, output: Array, value: float) -> None:
        """``output = value``, for any dtype of at most 8 bytes."""
        with np.errstate(over="ignore"):  # beyond the dtype's range is infinity
            pattern = np.full(8 // output.dtype.itemsize, value, output.dtype).view(np.uint64)[0]
        grid, block = self.rows_grid(1, output.nbytes, 1)
        self.launch("elementwise", "fill", FLOAT32, grid, block, [output, np.int64(output.nbytes), pattern])

    def add_in_place(self, output: Array, x: Array) -> None:
        """``output += x``; equal shapes, float dtypes. Each sum is rounded once."""
        self.launch_flat(f"add_{x.dtype.name}", output, x)

    def residual_forward(self, output: Array, a: Array, b: Array, scale: float) -> None:
        """``output = a + scale * b``; ``output`` may be ``a`` or ``b``."""
        self.launch_flat("residual", output, a, b, scalars=[single(scale)])

    def scale(self, output: Array, x: Array, factor: float) -> None:
        """``output = factor * x``; ``output`` may be ``x``."""
        self.launch_flat("scale", output, x, scalars=[single(factor)])

    def dropout(self, output: Array, x: Array, probability: float, key: int, workspace: Array) -> None:
        """``output = x * mask / (1 - p)``; ``output`` may be ``x``. The mask is the CPU's, bit for bit."""
        threshold = round(probability * 2**32)
        if threshold >= 2**32:
            self.fill(output, 0.0)
            return
        scalars: list[np.generic] = [
            np.uint64(key % _MODULUS),
            np.uint64(threshold),
            np.float32(1.0 / (1.0 - probability)),
        ]
        self.launch_flat("dropout", output, x, scalars=scalars)

    def dropout_workspace(self, rows: int, columns: int) -> int:
        """None: every thread computes the mask of its own elements."""
        return 0

    # ---- for other families ------------------------------------------------------------------------------------------

    def launch_flat(self, kernel: str, output: Array, *inputs: Array, scalars: Sequence[np.generic] = ()) -> None:
        """Launch a kernel of ``elementwise.cu`` on arrays of one size: output, inputs, size, ``scalars``."""
        grid, block = self.rows_grid(1, output.size, output.dtype.itemsize)
        arguments: list[Argument] = [output, *inputs, np.int64(output.size), *scalars]
        self.launch("elementwise", kernel, output.dtype, grid, block, arguments)

    def copy_rows(
        self,
        output: Array,
        x: Array,
        rows: int,
        columns: int,
        output_pitch: int = 0,
        x_pitch: int = 0,
        output_start: int = 0,
        x_start: int = 0,
    ) -> None:
        """Copy ``rows`` rows of ``columns`` elements of any one dtype.

        The first begins at ``x_start`` and ``output_start``, each of the others a pitch after the one before: all are
        counts of elements. With a pitch of 0 for ``x`` one row is copied to many.
        """
        size = x.dtype.itemsize
        grid, block = self.rows_grid(rows, columns, size)
        sizes = (columns, output_pitch, x_pitch, output_start, x_start)
        arguments: list[Argument] = [output, x, np.int64(rows), *(np.int64(number * size) for number in sizes)]
        self.launch("elementwise", "copy_rows", FLOAT32, grid, block, arguments)

    def rows_grid(self, rows: int, columns: int, itemsize: int) -> tuple[Grid, Grid]:
        """Grid and block for the loops of ``rows.cuh`` over elements of ``itemsize`` bytes, read by vectors.

        Threads that columns do not need take more rows; blocks beyond what runs at once would only wait.
        """
        vectors = ceiling(columns * itemsize, _VECTOR_BYTES)
        width = min(BLOCK, 1 << max(0, vectors - 1).bit_length())
        height = BLOCK // width
        most = self.blocks(rows * max(1, vectors))
        across = min(ceiling(vectors, width), most)
        down = min(ceiling(rows, height), ceiling(most, max(1, across)), _MOST_BLOCKS)
        return (across, down), (width, height)
