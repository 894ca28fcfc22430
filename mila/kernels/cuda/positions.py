"""Learned positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mila.kernels.cuda.family import BLOCK, SCRATCH_BYTES, Argument, ceiling
from mila.kernels.cuda.row_blocks import CudaRowBlocks, row_block
from mila.kernels.signatures import Array

#: Rows of a batch whose starts the scratch holds.
_MOST_ROWS = SCRATCH_BYTES // 8
#: Blocks along the second axis of a grid.
_MOST_BLOCKS = 65535


class CudaPositions(CudaRowBlocks):
    """The position tables of ``EmbeddingKernels`` in CUDA C++."""

    def position_forward(self, output: Array, x: Array, table: Array, starts: Sequence[int]) -> None:
        """``output[b, t] = x[b, t] + table[starts[b] + t]`` for ``x (B, T, C)``; ``output`` may be ``x``.

        ``table`` may be of a narrower dtype.
        """
        _, length, columns = x.shape
        name = "stored" if table.dtype == x.dtype else table.dtype.name
        block = row_block(x)
        for low in range(0, len(starts), _MOST_ROWS):
            part = starts[low : low + _MOST_ROWS]
            rows = slice(low, low + len(part))
            sizes = np.int64(len(part)), np.int64(length), np.int64(columns)
            arguments: list[Argument] = [output[rows], x[rows], table, *self._row_numbers(part), *sizes]
            blocks = self.row_blocks(len(part) * length, block)
            self.launch("positions", f"forward_{name}", x.dtype, blocks, block, arguments)

    def position_backward(self, dtable: Array, dy: Array, starts: Sequence[int], accumulate: bool) -> None:
        """``dtable[starts[b] + t] += dy[b, t]``; without ``accumulate`` the table is zeroed first."""
        length, columns = dy.shape[1:]
        for low in range(0, max(1, len(starts)), _MOST_ROWS):
            part = starts[low : low + _MOST_ROWS]
            first, positions = 0, dtable.shape[0]
            adds = accumulate or low > 0
            if adds:
                first = min(part, default=0)
                positions = max(part, default=0) + length - first
            sizes = np.int64(len(part)), np.int64(length), np.int64(columns), np.int64(first), np.int64(positions)
            upstream = dy[low : low + len(part)]
            arguments: list[Argument] = [dtable, upstream, *self._row_numbers(part), *sizes, np.int32(adds)]
            block = row_block(dy)
            blocks = self.row_blocks(positions, block)
            self.launch("positions", "backward", dy.dtype, blocks, block, arguments)

    def gather_last(self, output: Array, x: Array, lengths: Sequence[int]) -> None:
        """``output[b, 0] = x[b, lengths[b] - 1]``, ``x (B, T, C)``; ``output`` may be the first B C values of ``x``."""
        _, length, columns = x.shape
        for low in range(0, len(lengths), _MOST_ROWS):
            part = lengths[low : low + _MOST_ROWS]
            rows = slice(low, low + len(part))
            sizes = np.int64(len(part)), np.int64(length), np.int64(columns)
            arguments: list[Argument] = [output[rows], x[rows], *self._row_numbers(part), *sizes]
            grid = ceiling(columns, BLOCK), min(len(part), _MOST_BLOCKS)
            self.launch("positions", "gather_last", x.dtype, grid, BLOCK, arguments)

    def _row_numbers(self, values: Sequence[int]) -> tuple[Array | None, np.int64]:
        """One number for each row: in the scratch, or ``None`` and the number that all rows share."""
        if len(set(values)) <= 1:
            return None, np.int64(values[0] if len(values) else 0)
        numbers = self.launcher.scratch[: 8 * len(values)].view(np.int64)
        self.launcher.write(numbers, np.array(values, np.int64))
        return numbers, np.int64(0)
