"""Choosing experts for rows, and moving rows to their experts and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mila.kernels.cuda.family import BLOCK, FLOAT32, SCRATCH_BYTES, WARP, Argument
from mila.kernels.cuda.row_blocks import CudaRowBlocks, row_block
from mila.kernels.signatures import Array

#: Experts whose bounds the scratch holds.
_MOST_EXPERTS = SCRATCH_BYTES // 8
#: Rows of a block whose warps have one each.
_ROWS_PER_BLOCK = BLOCK // WARP


class CudaExperts(CudaRowBlocks):
    """``ExpertKernels`` in CUDA C++."""

    def top_k_forward(self, values: Array, indices: Array, x: Array, workspace: Array) -> None:
        """``values (N, k)``: the k largest of each row of ``x (N, E)``, largest first; ``indices (N, k)`` int32: where.

        Of equal values the one with the lower index comes first. NaN counts as largest, minus infinity as the smallest
        finite value. No index comes twice.
        """
        rows, columns = x.shape
        sizes = np.int64(rows), np.int64(columns), np.int64(values.shape[1])
        blocks = self.blocks(rows, _ROWS_PER_BLOCK)
        self.launch("experts", "top_k_forward", x.dtype, blocks, BLOCK, [values, indices, x, *sizes])

    def top_k_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``top_k_forward``'s workspace: none."""
        return 0

    def top_k_backward(self, dx: Array, dvalues: Array, indices: Array) -> None:
        """``dx[n, indices[n, j]] = dvalues[n, j]``, everything else exactly 0."""
        sizes = [np.int64(size) for size in (*dx.shape, dvalues.shape[1])]
        arguments: list[Argument] = [dx, dvalues, indices, *sizes]
        self.launch("experts", "top_k_backward", dx.dtype, self.blocks(dx.size), BLOCK, arguments)

    def group_slots(self, slots: Array, experts: Array, count: int) -> list[int]:
        """``slots (N k,)`` int32: all slots, those of expert 0 first, then those of expert 1, …; each in order.

        Returns ``count + 1`` bounds: those of expert e stand from ``bounds[e]`` to ``bounds[e + 1]``.
        """
        bounds: list[int] = []
        for first in range(0, count, _MOST_EXPERTS):
            blocks = min(_MOST_EXPERTS, count - first)
            found = self.launcher.scratch[: 8 * blocks].view(np.int64)
            arguments: list[Argument] = [slots, found, experts, np.int64(experts.size), np.int32(first)]
            self.launch("experts", "group_slots", FLOAT32, blocks, BLOCK, arguments)
            bounds.extend(self.launcher.read(found).tolist())
        return [*bounds, experts.size]

    def gather_rows(self, output: Array, x: Array, slots: Array, top_k: int) -> None:
        """``output[i] = x[slots[i] // top_k]`` for ``output (M, C)``, ``x (N, C)``."""
        self._launch_for_slots("gather_rows", [output, x, slots], slots.size, x, top_k)

    def scatter_add_rows(
        self, output: Array, x: Array, weights: Array | None, slots: Array, top_k: int, workspace: Array
    ) -> None:
        """``output[slots[i] // top_k] += w[slots[i]] x[i]`` for ``output (N, C)``, ``x (M, C)``."""
        self._launch_for_slots("scatter_add_rows", [output, x, weights, slots], slots.size, x, top_k)

    def scatter_add_rows_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``scatter_add_rows``'s workspace: none."""
        return 0

    def scatter_add_rows_backward(
        self, dx: Array, dweights: Array, dy: Array, x: Array, weights: Array, slots: Array, workspace: Array
    ) -> None:
        """``dx[i] = w[slots[i]] dy[n]``, ``dw[slots[i]] = sum(dy[n] x[i])`` with ``n = slots[i] // k``."""
        arrays = [dx, dweights, dy, x, weights, slots]
        self._launch_for_slots("scatter_add_rows_backward", arrays, slots.size, x, weights.shape[1])

    def scatter_add_rows_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``scatter_add_rows_backward``'s workspace: none."""
        return 0

    def _launch_for_slots(self, kernel: str, arrays: Sequence[Array | None], count: int, x: Array, top_k: int) -> None:
        """Launch a kernel that has a block for each of ``count`` slots."""
        columns = x.shape[1]
        block = row_block(x)
        arguments: list[Argument] = [*arrays, np.int64(count), np.int64(columns), np.int32(top_k)]
        self.launch("experts", kernel, x.dtype, self.row_blocks(count, block), block, arguments)
