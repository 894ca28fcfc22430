"""Choosing experts for rows, and moving rows to their experts and back."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.cpu.workers import tile_elements
from mila.kernels.signatures import Array

#: Rows whose 64-bit numbers are held in temporaries at a time.
_ROWS = 2048


class CpuExperts(CpuFamily):
    """``ExpertKernels`` in NumPy."""

    def top_k_forward(self, values: Array, indices: Array, x: Array, workspace: Array) -> None:
        """``values (N, k)``: the k largest of each row of ``x (N, E)``, largest first; ``indices (N, k)`` int32: where.

        Of equal values the one with the lower index comes first. NaN counts as largest, minus infinity as the smallest
        finite value. No index comes twice.
        """
        columns = x.shape[1]
        lowest = float(np.finfo(x.dtype).min)

        def body(start: int, stop: int, scratch: Array) -> None:
            for low, high in _chunks(start, stop):
                rest = scratch[: (high - low) * columns].reshape(-1, columns)
                # Only what was taken is minus infinity, so that nothing is taken twice.
                np.clip(x[low:high], lowest, math.inf, out=rest)
                first = np.arange(0, rest.size, columns)
                for rank in range(values.shape[1]):
                    taken = rest.argmax(axis=1)
                    indices[low:high, rank] = taken
                    taken += first
                    values[low:high, rank] = np.take(x[low:high].reshape(-1), taken, mode="clip")
                    rest.reshape(-1)[taken] = -math.inf

        self.for_tiles(x.shape[0], columns, body, workspace, columns, passes=2 + 2 * values.shape[1])

    def top_k_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``top_k_forward``'s workspace: the values that are left to choose from."""
        return tile_elements(rows, columns)

    def top_k_backward(self, dx: Array, dvalues: Array, indices: Array) -> None:
        """``dx[n, indices[n, j]] = dvalues[n, j]``, everything else exactly 0."""
        columns = dx.shape[1]

        def body(start: int, stop: int, scratch: Array) -> None:
            for low, high in _chunks(start, stop):
                target = dx[low:high].reshape(-1)
                target.fill(0.0)
                first = np.arange(0, target.size, columns)
                for rank in range(dvalues.shape[1]):
                    target[first + indices[low:high, rank]] = dvalues[low:high, rank]

        self.for_tiles(dx.shape[0], columns, body, passes=2)

    def group_slots(self, slots: Array, experts: Array, count: int) -> list[int]:
        """``slots (N k,)`` int32: all slots, those of expert 0 first, then those of expert 1, …; each in order.

        Returns ``count + 1`` bounds: those of expert e stand from ``bounds[e]`` to ``bounds[e + 1]``.
        """
        chosen = experts.reshape(-1)
        bounds = np.zeros(count + 1, np.int64)
        for low, high in _chunks(0, chosen.size):
            bounds[1:] += np.bincount(chosen[low:high], minlength=count)
        np.cumsum(bounds, out=bounds)
        free = bounds[:-1].copy()  # where the next slot of each expert goes
        for low, high in _chunks(0, chosen.size):
            part = chosen[low:high]
            sizes = np.bincount(part, minlength=count)
            order = np.argsort(part, kind="stable")
            places = (free - np.cumsum(sizes) + sizes)[part[order]]
            places += np.arange(high - low)
            order += low
            slots[places] = order
            free += sizes
        return [int(bound) for bound in bounds]

    def gather_rows(self, output: Array, x: Array, slots: Array, top_k: int) -> None:
        """``output[i] = x[slots[i] // top_k]`` for ``output (M, C)``, ``x (N, C)``."""

        def body(start: int, stop: int, scratch: Array) -> None:
            for low, high in _chunks(start, stop):
                np.take(x, slots[low:high] // top_k, axis=0, out=output[low:high], mode="clip")

        self.for_tiles(slots.size, x.shape[1], body, passes=1)

    def scatter_add_rows(
        self, output: Array, x: Array, weights: Array | None, slots: Array, top_k: int, workspace: Array
    ) -> None:
        """``output[slots[i] // top_k] += w[slots[i]] x[i]`` for ``output (N, C)``, ``x (M, C)``."""
        columns = x.shape[1]
        factors = None if weights is None else weights.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            # No two slots share a row: each row is read, changed and written once.
            for low, high in _chunks(start, stop):
                sums, weighed = scratch[: 2 * (high - low) * columns].reshape(2, -1, columns)
                rows, addend = slots[low:high] // top_k, x[low:high]
                np.take(output, rows, axis=0, out=sums, mode="clip")
                if factors is not None:
                    factor = np.take(factors, slots[low:high], mode="clip")
                    addend = np.multiply(addend, factor[:, None], out=weighed)
                sums += addend
                output[rows] = sums

        self.for_tiles(slots.size, columns, body, workspace, 2 * columns, passes=4)

    def scatter_add_rows_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``scatter_add_rows``'s workspace: rows of the output, and weighed rows."""
        return 2 * tile_elements(rows, columns)

    def scatter_add_rows_backward(
        self, dx: Array, dweights: Array, dy: Array, x: Array, weights: Array, slots: Array, workspace: Array
    ) -> None:
        """``dx[i] = w[slots[i]] dy[n]``, ``dw[slots[i]] = sum(dy[n] x[i])`` with ``n = slots[i] // k``."""
        columns, top_k = x.shape[1], weights.shape[1]
        factors, dots = weights.reshape(-1), dweights.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            for low, high in _chunks(start, stop):
                part, upstream = slots[low:high], scratch[: (high - low) * columns].reshape(-1, columns)
                np.take(dy, part // top_k, axis=0, out=upstream, mode="clip")
                dots[part] = np.vecdot(upstream, x[low:high])
                np.multiply(upstream, np.take(factors, part, mode="clip")[:, None], out=dx[low:high])

        self.for_tiles(slots.size, columns, body, workspace, columns, passes=4)

    def scatter_add_rows_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``scatter_add_rows_backward``'s workspace: rows of ``dy``."""
        return tile_elements(rows, columns)


def _chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for low in range(start, stop, _ROWS):
        yield low, min(stop, low + _ROWS)
