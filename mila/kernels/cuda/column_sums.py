"""Sums of columns over rows, in two stages: over chunks of rows, and over the chunks."""

from __future__ import annotations

import numpy as np

from mila.kernels.cuda.family import BLOCK, WARP, Argument, ceiling
from mila.kernels.cuda.row_blocks import VECTOR_BYTES, CudaRowBlocks
from mila.kernels.signatures import Array

#: Chunks of plain column sums: as many blocks as keep a device busy where columns are few.
_MOST_CHUNKS = 128
#: Rows of a chunk below which starting a block costs more than it saves.
_LEAST_ROWS = 32


class CudaColumnSums(CudaRowBlocks):
    """What families need that sum gradients of parameters over rows. No result depends on the device."""

    def sum_columns(self, output: Array, x: Array, rows: int, accumulate: bool, workspace: Array) -> None:
        """``output (C,) (+)= x (rows, C).sum(axis=0)``; ``workspace``: ``sum_columns_workspace`` elements."""
        columns = output.size
        per_chunk = rows_per_chunk(rows, _LEAST_ROWS, _MOST_CHUNKS)
        chunks = ceiling(rows, per_chunk)
        vector = VECTOR_BYTES // x.dtype.itemsize
        by_vectors = columns % vector == 0
        grid = ceiling(columns, WARP * (vector if by_vectors else 1)), chunks
        sizes = np.int64(rows), np.int64(columns), np.int64(per_chunk)
        partial = workspace[: chunks * columns]
        arguments: list[Argument] = [partial, x, *sizes, np.int32(by_vectors)]
        self.launch("column_sums", "column_partials", x.dtype, grid, BLOCK, arguments)
        self.add_chunks(output, partial, chunks, columns, accumulate)

    def sum_columns_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``sum_columns``' workspace: a row of sums for each chunk."""
        return chunk_bound(rows, _LEAST_ROWS, _MOST_CHUNKS) * columns

    def add_chunks(self, output: Array, partial: Array, chunks: int, width: int, accumulate: bool) -> None:
        """``output (C,) (+)= partial (chunks, width)[:, :C].sum(axis=0)``; without chunks the sum is 0."""
        sizes = np.int64(chunks), np.int64(output.size), np.int64(width)
        arguments: list[Argument] = [output, partial, *sizes, np.int32(accumulate)]
        self.launch("column_sums", "column_totals", output.dtype, ceiling(output.size, WARP), BLOCK, arguments)


def rows_per_chunk(rows: int, least_rows: int, most_chunks: int) -> int:
    """How many of ``rows`` rows a chunk has: from ``least_rows`` on, and so that there are at most ``most_chunks``."""
    return max(least_rows, ceiling(rows, most_chunks))


def chunk_bound(rows: int, least_rows: int, most_chunks: int) -> int:
    """At least as many chunks as ``rows`` rows or fewer are cut into."""
    return min(ceiling(rows, least_rows), most_chunks)
