"""The base of all CPU kernel families: their workers, and the loop over row tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mila.kernels.cpu.blas import blas_threads
from mila.kernels.cpu.workers import INLINE_ELEMENTS, TILE_ELEMENTS, Task, Workers, split, worker_workspace
from mila.kernels.signatures import Array

#: ``body(start, stop, scratch)`` works on rows ``start`` to ``stop``; ``scratch``: the worker's slice of the workspace.
TileBody = Callable[[int, int, Array], None]

#: Longest vector of ones that is kept for sums by matrix-vector products.
_LONGEST_ONES = 4096
#: The vectors themselves, by dtype; nobody writes to them.
_ONES: dict[np.dtype[Any], Array] = {
    np.dtype(dtype): np.ones(_LONGEST_ONES, dtype) for dtype in (np.float32, np.float64)
}
#: Passes over the data that ``INLINE_ELEMENTS`` was measured for.
_PASSES = 8
#: Tiles of kernels that need no workspace may be larger.
_FREE_TILE_ELEMENTS = 2 * TILE_ELEMENTS


class CpuFamily:
    """What the kernel families share. Stateless but for the workers."""

    def __init__(self, workers: Workers) -> None:
        """Use ``workers``, which may be shared."""
        self.workers = workers

    def run(self, task: Task, count: int) -> None:
        """``Workers.run`` with NumPy's floating-point warnings off.

        Formulas avoid overflow for finite values; non-finite values pass through as numbers, without a word.
        """

        def quiet(index: int) -> None:
            with np.errstate(all="ignore"):
                task(index)

        self.workers.run(quiet, count)

    @contextmanager
    def products(self) -> Iterator[None]:
        """BLAS at as many threads as there are workers, and NumPy's floating-point warnings off."""
        blas = blas_threads()
        region = blas.begin(self.workers.threads)
        try:
            with np.errstate(all="ignore"):
                yield
        finally:
            blas.end(region)

    def worker_count(self, rows: int, columns: int, passes: int = _PASSES) -> int:
        """How many workers share ``rows`` of ``columns`` elements: one for little work, at most one per row.

        ``passes`` is the kernel's work per element, in additions.
        """
        if rows * columns * passes < INLINE_ELEMENTS * _PASSES:
            return 1
        return max(1, min(self.workers.threads, rows))

    def for_tiles(
        self,
        rows: int,
        columns: int,
        body: TileBody,
        workspace: Array | None = None,
        per_row: int = 0,
        passes: int = _PASSES,
    ) -> None:
        """Call ``body`` for tiles that cover ``rows``, each worker its contiguous share in order.

        A tile has at most a worker's share of the tile budget (never more than half of it), and no more rows than its
        slice of ``workspace`` has room for at ``per_row`` elements each. Tiles are large, and calls few: two threads
        that meet at the interpreter lock after every short call wait for each other more than they compute.
        """
        count = self.worker_count(rows, columns, passes)
        scratch = _ONES[np.dtype(np.float32)][:0] if workspace is None else workspace
        if per_row:
            count = max(1, min(count, scratch.size // per_row))
        budget = TILE_ELEMENTS if per_row else _FREE_TILE_ELEMENTS
        step = max(1, budget // max(2, count) // max(1, columns))
        if per_row:
            step = max(1, min(step, scratch.size // count // per_row))

        def task(index: int) -> None:
            own = worker_workspace(scratch, index, count)
            start, stop = split(rows, index, count)
            for low in range(start, stop, step):
                body(low, min(stop, low + step), own)

        self.run(task, count)

    def row_sums(self, output: Array, x: Array) -> None:
        """``output (N,) = x (N, C).sum(axis=1)``, by a matrix-vector product where C allows: several times faster."""
        columns = x.shape[1]
        if columns <= _LONGEST_ONES:
            np.matmul(x, _ONES[x.dtype][:columns], out=output)
        else:
            np.add.reduce(x, axis=1, out=output)

    def column_sums(self, output: Array, x: Array, row: Array) -> None:
        """``output (C,) += x (N, C).sum(axis=0)`` with a scratch ``row (C,)``."""
        for low in range(0, x.shape[0], _LONGEST_ONES):
            part = x[low : low + _LONGEST_ONES]
            np.matmul(_ONES[x.dtype][: part.shape[0]], part, out=row)
            output += row
