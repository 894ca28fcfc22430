"""Softmax along any axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mila.kernels.cuda.family import BLOCK, WARP, Argument
from mila.kernels.cuda.row_blocks import CudaRowBlocks, row_block
from mila.kernels.signatures import Array

#: Rows up to this long are a warp's work; longer ones a block's.
_WARP_COLUMNS = 1024
#: Rows of a block whose warps have one each.
_ROWS_PER_BLOCK = BLOCK // WARP
#: Threads of the largest block.
_MOST_THREADS = 512


class CudaSoftmax(CudaRowBlocks):
    """The softmax kernels of ``NormalizationKernels`` in CUDA C++.

    An array is seen as (outer, n, inner) with ``axis`` in the middle; the last axis (inner = 1) has kernels of its own.
    """

    def softmax_forward(self, output: Array, x: Array, axis: int, workspace: Array) -> None:
        """Max-shifted softmax along ``axis``; ``output`` may be ``x``."""
        self._launch_softmax("softmax_forward", [output, x], axis)

    def softmax_backward(self, dx: Array, dy: Array, y: Array, axis: int, workspace: Array) -> None:
        """``dx = y (dy - sum(dy y))``; ``dx`` may be ``dy``."""
        self._launch_softmax("softmax_backward", [dx, dy, y], axis)

    def softmax_workspace(self, shape: Sequence[int], axis: int) -> int:
        """Elements of the workspace of both softmax kernels: none."""
        return 0

    def _launch_softmax(self, kernel: str, arrays: list[Array], axis: int) -> None:
        shape, dtype = arrays[0].shape, arrays[0].dtype
        axis %= len(shape)
        outer, size, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        if inner != 1:
            arguments: list[Argument] = [*arrays, np.int64(outer), np.int64(size), np.int64(inner)]
            self.launch("softmax", f"{kernel}_strided", dtype, self.blocks(outer * inner), BLOCK, arguments)
            return
        arguments = [*arrays, np.int64(outer), np.int64(size)]
        if size <= _WARP_COLUMNS:
            self.launch("softmax", f"{kernel}_warps", dtype, self.blocks(outer, _ROWS_PER_BLOCK), BLOCK, arguments)
        else:
            block = row_block(arrays[0].reshape(outer, size), _MOST_THREADS)
            self.launch("softmax", f"{kernel}_blocks", dtype, self.row_blocks(outer, block), block, arguments)
