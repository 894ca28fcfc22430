"""Sums over some axes of an array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mila.kernels.cuda.axes import Axis, places, size_of
from mila.kernels.cuda.column_sums import CudaColumnSums
from mila.kernels.cuda.family import BLOCK, SCRATCH_BYTES, WARP, ceiling
from mila.kernels.signatures import Array

_WARPS = BLOCK // WARP
_MOST_BLOCKS = 65535
#: Sums of parts that the scratch has room for.
_MOST_PARTIAL_SUMS = SCRATCH_BYTES // 4
#: Warps, or blocks of eight, above which nothing is gained by parts.
_ENOUGH_WARPS = 4096
_ENOUGH_BLOCKS = _MOST_PARTIAL_SUMS // WARP
#: Places below which a part costs more than it saves.
_LEAST_PER_WARP = 256
_LEAST_PER_BLOCK = 64


class CudaReductions(CudaColumnSums):
    """What families need that sum over axes. No result depends on the device."""

    def sum_places(
        self,
        output: Array,
        x: Array,
        kept: Sequence[Axis],
        reduced: Sequence[Axis],
        factor: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """``output (+)= factor *`` the sum of ``x`` over the axes ``reduced``, for each place of the axes ``kept``.

        Axes are in the order of ``x``, each with its stride in ``x``.
        """
        if kept and kept[-1].strides == (1,):
            self._reduce_columns(output, x, kept[:-1], reduced, kept[-1].extent, factor, accumulate)
        else:
            self._reduce_rows(output, x, kept, reduced, factor, accumulate)

    def _reduce_columns(
        self,
        output: Array,
        x: Array,
        kept: Sequence[Axis],
        reduced: Sequence[Axis],
        columns: int,
        factor: float,
        accumulate: bool,
    ) -> None:
        rows, count, tiles = size_of(kept), size_of(reduced), ceiling(columns, WARP)
        parts = _parts(count, _LEAST_PER_BLOCK, rows * tiles, _ENOUGH_BLOCKS)
        per_part, partial = ceiling(count, parts), self._partial(output, parts)
        sizes = np.int64(rows), np.int64(columns), np.int64(count), np.int64(per_part)
        scalars = [places(kept), places(reduced), *sizes, np.float32(factor), np.int32(accumulate)]
        grid = tiles, min(rows, _MOST_BLOCKS), parts
        self.launch("reductions", "reduce_columns", x.dtype, grid, BLOCK, [output, partial, x, *scalars])
        if partial is not None:
            self.add_chunks(output, partial, parts, output.size, accumulate)

    def _reduce_rows(
        self,
        output: Array,
        x: Array,
        kept: Sequence[Axis],
        reduced: Sequence[Axis],
        factor: float,
        accumulate: bool,
    ) -> None:
        rows, count = size_of(kept), size_of(reduced)
        parts = _parts(count, _LEAST_PER_WARP, rows, _ENOUGH_WARPS)
        per_part, partial = ceiling(count, parts), self._partial(output, parts)
        sizes = np.int64(rows), np.int64(count), np.int64(per_part)
        scalars = [places(kept), places(reduced), *sizes, np.float32(factor), np.int32(accumulate)]
        grid = self.blocks(rows, _WARPS), parts
        self.launch("reductions", "reduce_rows", x.dtype, grid, BLOCK, [output, partial, x, *scalars])
        if partial is not None:
            self.add_chunks(output, partial, parts, output.size, accumulate)

    def _partial(self, output: Array, parts: int) -> Array | None:
        if parts == 1:
            return None
        scratch: Array = self.launcher.scratch.view(np.float32)
        return scratch[: parts * output.size]


def _parts(count: int, least: int, sums: int, enough: int) -> int:
    """Parts of each of ``sums`` sums of ``count`` values: by the shape alone."""
    return max(1, min(ceiling(count, least), enough // max(1, sums)))
