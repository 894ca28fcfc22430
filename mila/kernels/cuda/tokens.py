"""Gathering, prepending and pooling the positions of a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mila.kernels.cuda.axes import Axis
from mila.kernels.cuda.elementwise import CudaElementwise
from mila.kernels.cuda.family import BLOCK, WARP, Argument, ceiling
from mila.kernels.cuda.reductions import CudaReductions
from mila.kernels.signatures import Array

_WARPS = BLOCK // WARP
_MOST_BLOCKS = 65535


class CudaTokens(CudaElementwise, CudaReductions):
    """``TokenKernels`` in CUDA C++."""

    def gather_token_forward(self, output: Array, x: Array, ids: Array, token_id: int | None = None) -> None:
        """``output[b] = x[b, p[b]]`` with ``p[b]`` the first position of ``token_id``, or of the largest id."""
        self._by_id("gather_token", [output, x, ids], x.shape, token_id)

    def gather_token_backward(self, dx: Array, dy: Array, ids: Array, token_id: int | None = None) -> None:
        """``dx[b, p[b]] = dy[b]``, everything else exactly 0."""
        self.fill(dx, 0.0)
        self._by_id("scatter_token", [dx, dy, ids], dx.shape, token_id)

    def prepend_forward(self, output: Array, x: Array, row: Array) -> None:
        """``output (B, T + 1, C)`` is ``row (C,)`` and then ``x (B, T, C)``, in every row of the batch."""
        batch, length, width = x.shape
        pitch = (length + 1) * width
        self.copy_rows(output, row, batch, width, output_pitch=pitch)
        self.copy_rows(output, x, batch, length * width, pitch, length * width, output_start=width)

    def prepend_backward(self, dx: Array, drow: Array | None, dy: Array, accumulate: bool) -> None:
        """``dx = dy[:, 1:]`` and, where it is given, ``drow (+)= dy[:, 0].sum(axis=0)``."""
        batch, length, width = dx.shape
        pitch = (length + 1) * width
        self.copy_rows(dx, dy, batch, length * width, length * width, pitch, x_start=width)
        if drow is not None:
            self.sum_places(drow, dy, [Axis(width, (1,))], [Axis(batch, (pitch,))], accumulate=accumulate)

    def pool_maximum_forward(self, output: Array, positions: Array | None, x: Array) -> None:
        """``output (B, C) = x (B, T, C).max(axis=1)`` and, where given, the first position of each maximum."""
        batch, length, width = x.shape
        grid = ceiling(width, WARP), min(batch, _MOST_BLOCKS)
        arguments: list[Argument] = [output, positions, x, *_sizes(batch, length, width)]
        self.launch("tokens", "pool_maximum_forward", x.dtype, grid, BLOCK, arguments)

    def pool_maximum_backward(self, dx: Array, dy: Array, positions: Array) -> None:
        """``dx[b, positions[b, c], c] = dy[b, c]``, everything else exactly 0."""
        batch, length, width = dx.shape
        grid, block = self.rows_grid(batch * length, width, dx.dtype.itemsize)
        arguments: list[Argument] = [dx, dy, positions, *_sizes(batch * length, length, width)]
        self.launch("tokens", "pool_maximum_backward", dx.dtype, grid, block, arguments)

    def _by_id(self, kernel: str, arrays: Sequence[Array], shape: Sequence[int], token_id: int | None) -> None:
        """Launch the kernel for the type of the ids, which come last; ``shape (B, T, C)``."""
        suffix = "i32" if arrays[-1].dtype == np.int32 else "i64"
        grid = self.blocks(shape[0], _WARPS)
        sought: list[np.generic] = [np.int64(0 if token_id is None else token_id), np.int32(token_id is not None)]
        arguments: list[Argument] = [*arrays, *_sizes(*shape), *sought]
        self.launch("tokens", f"{kernel}_{suffix}", arrays[0].dtype, grid, BLOCK, arguments)


def _sizes(*sizes: int) -> list[np.generic]:
    return [np.int64(size) for size in sizes]
