"""Token tables, and the checks of ids."""

from __future__ import annotations

import numpy as np

from mila.kernels.cuda.elementwise import CudaElementwise
from mila.kernels.cuda.family import BLOCK, FLOAT32, WARP, Argument, DType, ceiling
from mila.kernels.cuda.row_blocks import VECTOR_BYTES, CudaRowBlocks, row_block
from mila.kernels.signatures import Array

#: Blocks that look at ids, each of which leaves two numbers in the scratch.
_MOST_BLOCKS = 512
#: Ids that a block looks at before another is worth starting.
_IDS_PER_BLOCK = 4 * BLOCK
_INT64 = np.iinfo(np.int64)

#: Sorted runs of keys that a pass makes one of.
_RUNS = 8
#: Rows of a table's gradient that a block works on at most, and blocks above which it takes several.
_TABLE_ROWS = 64
_ENOUGH_BLOCKS = 2048
#: Blocks along the columns: a lane of theirs adds up a vector of columns, or a single one.
_MOST_COLUMN_BLOCKS = 65535


class CudaEmbedding(CudaElementwise, CudaRowBlocks):
    """The token tables of ``EmbeddingKernels`` in CUDA C++."""

    def integer_range(self, ids: Array) -> tuple[int, int]:
        """Smallest and largest value of ``ids`` without narrowing; (0, -1) when there is none."""
        if ids.size == 0:
            return 0, -1
        found = self._look_at_ids(f"range_{ids.dtype.name}", ids, 2, [])
        return min(found[::2]), max(found[1::2])

    def first_outside(self, ids: Array, limit: int, except_for: int | None) -> int:
        """Flat index of the first id below 0 or from ``limit`` on that is not ``except_for``; -1 when there is none."""
        exception = np.int64(except_for or 0), np.int32(except_for is not None)
        found = self._look_at_ids(f"first_outside_{ids.dtype.name}", ids, 1, [np.int64(limit), *exception])
        first = min(found, default=_INT64.max)
        return -1 if first == _INT64.max else first

    def embedding_forward(self, output: Array, table: Array, ids: Array, scale: float) -> None:
        """``output (N, C) = table[ids] * scale``; ids are already checked."""
        self._look_up("stored", output, table, None, ids, scale)

    def embedding_forward_narrow(
        self, output: Array, table: Array, scales: Array | None, ids: Array, scale: float, workspace: Array
    ) -> None:
        """As above for a ``table (V, C)`` of a narrower dtype, and its ``scales (V,)``. Bytes are float8_e4m3fn."""
        self._look_up(narrow_name(table), output, table, scales, ids, scale)

    def embedding_forward_narrow_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``embedding_forward_narrow``'s workspace: none."""
        return 0

    def embedding_backward(
        self, dtable: Array, dy: Array, ids: Array, scale: float, accumulate: bool, workspace: Array
    ) -> None:
        """``dtable[ids] += scale * dy`` in row order; without ``accumulate`` the table is zeroed first.

        The values of ``dtable`` are each rounded once. Where results need not repeat, rows are added to a float32
        ``dtable`` by atomic additions, in any order, each rounded: no ids are sorted.
        """
        self._add_up("stored", dtable, dy, ids, scale, accumulate, workspace)

    def embedding_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``embedding_backward``'s workspace: twice 8 bytes for each id and its row."""
        return 4 * rows

    def embedding_backward_narrow(
        self, dtable: Array, dy: Array, ids: Array, scale: float, accumulate: bool, workspace: Array
    ) -> None:
        """As above for a ``dtable`` of bfloat16 or float16."""
        self._add_up(narrow_name(dtable), dtable, dy, ids, scale, accumulate, workspace)

    def embedding_backward_narrow_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``embedding_backward_narrow``'s workspace: as many."""
        return self.embedding_backward_workspace(rows, columns)

    def _look_up(
        self, table_name: str, output: Array, table: Array, scales: Array | None, ids: Array, scale: float
    ) -> None:
        columns = table.shape[1]
        block = row_block(output)
        numbers = np.int64(ids.size), np.int64(columns), np.float32(scale)
        arguments: list[Argument] = [output, table, scales, ids, *numbers]
        kernel = f"forward_{table_name}_{ids.dtype.name}"
        self.launch("embedding", kernel, output.dtype, self.row_blocks(ids.size, block), block, arguments)

    def _add_up(
        self,
        table_name: str,
        dtable: Array,
        dy: Array,
        ids: Array,
        scale: float,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        if not self.is_deterministic and dtable.dtype == FLOAT32:
            if not accumulate:
                self.fill(dtable, 0.0)
            self._add_in_any_order(dtable, dy, ids, scale)
            return
        table_rows, columns = dtable.shape
        row_bits = max(0, ids.size - 1).bit_length()
        keys = self._sorted_keys(ids, row_bits, dy.dtype, workspace)
        vector = VECTOR_BYTES // dy.dtype.itemsize
        column_blocks = ceiling(columns, WARP * (vector if columns % vector == 0 else 1))
        rows_per_block = min(_TABLE_ROWS, max(1, ceiling(table_rows * column_blocks, _ENOUGH_BLOCKS)))
        grid = self.blocks(table_rows, rows_per_block), min(column_blocks, _MOST_COLUMN_BLOCKS)
        sizes = np.int64(ids.size), np.int64(table_rows), np.int64(columns)
        numbers = np.int32(rows_per_block), np.int32(row_bits), np.float32(scale), np.int32(accumulate)
        arguments: list[Argument] = [dtable, dy, keys, *sizes, *numbers]
        self.launch("embedding_backward", f"backward_{table_name}", dy.dtype, grid, BLOCK, arguments)

    def _sorted_keys(self, ids: Array, row_bits: int, dtype: DType, workspace: Array) -> Array:
        """Ids with their rows, in order: tiles first, then longer runs, from one half of the workspace to the other."""
        count, blocks = ids.size, self.blocks(ids.size)
        keys, others = workspace[: 2 * count].view(np.int64), workspace[2 * count : 4 * count].view(np.int64)
        arguments: list[Argument] = [keys, ids, np.int64(count), np.int32(row_bits)]
        self.launch("embedding_backward", f"sort_{ids.dtype.name}", dtype, blocks, BLOCK, arguments)
        run = BLOCK
        while run < count:
            arguments = [others, keys, np.int64(count), np.int64(run)]
            self.launch("embedding_backward", "merge", dtype, blocks, BLOCK, arguments)
            keys, others, run = others, keys, _RUNS * run
        return keys

    def _add_in_any_order(self, dtable: Array, dy: Array, ids: Array, scale: float) -> None:
        block = row_block(dy)
        arguments: list[Argument] = [dtable, dy, ids, np.int64(ids.size), np.int64(dtable.shape[1]), np.float32(scale)]
        kernel = f"add_rows_{ids.dtype.name}"
        self.launch("embedding_unordered", kernel, dy.dtype, self.row_blocks(ids.size, block), block, arguments)

    def _look_at_ids(self, kernel: str, ids: Array, results: int, numbers: list[np.generic]) -> list[int]:
        """What each block found, ``results`` numbers of each."""
        blocks = min(ceiling(ids.size, _IDS_PER_BLOCK), _MOST_BLOCKS)
        if blocks == 0:
            return []
        found = self.launcher.scratch[: 8 * blocks * results].view(np.int64)
        self.launch("ids", kernel, FLOAT32, blocks, BLOCK, [found, ids, np.int64(ids.size), *numbers])
        return [int(value) for value in self.launcher.read(found)]


def narrow_name(table: Array) -> str:
    """What kernels call the dtype of a narrower table; single bytes are float8_e4m3fn, which CuPy has no dtype for."""
    return "float8" if table.dtype.itemsize == 1 else table.dtype.name
