"""Token and position tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.cpu.widening import narrow, widen
from mila.kernels.cpu.workers import tile_elements
from mila.kernels.signatures import Array

#: Ids that are looked up at a time: NumPy widens them to 64 bits in a temporary.
_IDS = 4096


class CpuEmbedding(CpuFamily):
    """``EmbeddingKernels`` in NumPy."""

    def integer_range(self, ids: Array) -> tuple[int, int]:
        """Smallest and largest value of ``ids`` without narrowing; (0, -1) when there is none."""
        if ids.size == 0:
            return 0, -1
        return int(ids.min()), int(ids.max())

    def first_outside(self, ids: Array, limit: int, except_for: int | None) -> int:
        """Flat index of the first id below 0 or from ``limit`` on that is not ``except_for``; -1 when there is none."""
        flat = ids.reshape(-1)
        for low, high in _chunks(0, flat.size):
            part = flat[low:high]
            outside = (part < 0) | (part >= limit)
            if except_for is not None:
                outside &= part != except_for
            if outside.any():
                return low + int(outside.argmax())
        return -1

    def embedding_forward(self, output: Array, table: Array, ids: Array, scale: float) -> None:
        """``output (N, C) = table[ids] * scale``; ids are already checked."""
        columns = table.shape[1]
        indices = ids.reshape(-1)
        target = output.reshape(indices.size, columns)

        def body(start: int, stop: int, scratch: Array) -> None:
            for low, high in _chunks(start, stop):
                # "clip" writes straight to the output; "raise" would fill a temporary first
                np.take(table, indices[low:high], axis=0, out=target[low:high], mode="clip")
            if scale != 1.0:
                target[start:stop] *= scale

        self.for_tiles(indices.size, columns, body, passes=1)

    def embedding_forward_narrow(
        self, output: Array, table: Array, scales: Array | None, ids: Array, scale: float, workspace: Array
    ) -> None:
        """As above for a ``table (V, C)`` of a narrower dtype, and its ``scales (V,)``."""
        columns = table.shape[1]
        bits = np.dtype(f"u{table.dtype.itemsize}")  # bytes are gathered faster than what NumPy has no loops for
        indices, stored = ids.reshape(-1), table.view(bits)
        target = output.reshape(indices.size, columns)

        def body(start: int, stop: int, scratch: Array) -> None:
            found = scratch.view(bits)[: (stop - start) * columns].reshape(-1, columns)
            for low, high in _chunks(start, stop):
                part = found[low - start : high - start]
                np.take(stored, indices[low:high], axis=0, out=part, mode="clip")
                widen(target[low:high], part.view(table.dtype))
                if scales is not None:
                    target[low:high] *= np.take(scales, indices[low:high], mode="clip")[:, None]
            if scale != 1.0:
                target[start:stop] *= scale

        self.for_tiles(indices.size, columns, body, workspace, columns, passes=6)

    def embedding_forward_narrow_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``embedding_forward_narrow``'s workspace, which holds what was gathered."""
        return tile_elements(rows, columns)

    def embedding_backward(
        self, dtable: Array, dy: Array, ids: Array, scale: float, accumulate: bool, workspace: Array
    ) -> None:
        """``dtable[ids] += scale * dy`` in row order; without ``accumulate`` the table is zeroed first.

        One contiguous addition per row: several times faster than ``np.add.at``, and no temporaries.
        """
        indices = ids.reshape(-1)
        upstream = dy.reshape(indices.size, dtable.shape[1])
        if not accumulate:
            self._zero(dtable)
        scaled = np.empty(dtable.shape[1] if scale != 1.0 else 0, dtable.dtype)
        with np.errstate(all="ignore"):
            for low, high in _chunks(0, indices.size):
                for index, gradient in zip(indices[low:high].tolist(), upstream[low:high], strict=True):
                    row = dtable[index]
                    np.add(row, gradient if scale == 1.0 else np.multiply(gradient, scale, out=scaled), out=row)

    def embedding_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``embedding_backward``'s workspace: none."""
        return 0

    def embedding_backward_narrow(
        self, dtable: Array, dy: Array, ids: Array, scale: float, accumulate: bool, workspace: Array
    ) -> None:
        """As above for a half-precision ``dtable``: equal ids one after the other, in row order, rounded once."""
        indices, columns = ids.reshape(-1), dtable.shape[1]
        count = indices.size
        upstream = dy.reshape(count, columns)
        order = workspace[: 2 * count].view(np.int64)[:count]
        row, scaled = workspace[-2 * columns :].reshape(2, columns)
        if not accumulate:
            self._zero(dtable)
        np.multiply(indices, count, out=order, dtype=np.int64)
        for low, high in _chunks(0, count):
            order[low:high] += np.arange(low, high)
        order.sort()  # in place: by id, then by position
        current = -1
        with np.errstate(all="ignore"):
            for low, high in _chunks(0, count):
                for index, position in zip(*(part.tolist() for part in np.divmod(order[low:high], count)), strict=True):
                    if index != current:
                        if current >= 0:
                            narrow(dtable[current], row)
                        widen(row, dtable[index])
                        current = index
                    gradient = upstream[position]
                    np.add(row, gradient if scale == 1.0 else np.multiply(gradient, scale, out=scaled), out=row)
            if current >= 0:
                narrow(dtable[current], row)

    def embedding_backward_narrow_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``embedding_backward_narrow``'s workspace: 8 bytes for each id and its position, and two rows."""
        return 2 * rows + 2 * columns

    def position_forward(self, output: Array, x: Array, table: Array, starts: Sequence[int]) -> None:
        """``output[b, t] = x[b, t] + table[starts[b] + t]`` for ``x (B, T, C)``; ``output`` may be ``x``."""
        batch, length, columns = x.shape

        def body(start: int, stop: int, scratch: Array) -> None:
            for row in range(start // length, -(-stop // length)):
                low, high = max(start - row * length, 0), min(stop - row * length, length)
                positions = table[starts[row] + low : starts[row] + high]
                np.add(x[row, low:high], positions, out=output[row, low:high])

        self.for_tiles(batch * length, columns, body, passes=1)

    def position_backward(self, dtable: Array, dy: Array, starts: Sequence[int], accumulate: bool) -> None:
        """``dtable[starts[b] + t] += dy[b, t]``; without ``accumulate`` the table is zeroed first."""
        length, columns = dy.shape[1:]
        if not accumulate:
            self._zero(dtable)
        first = min(starts, default=0)
        reached = max(starts, default=0) + length - first

        def body(start: int, stop: int, scratch: Array) -> None:
            # Workers share the table, not the batch: no two of them add to one position.
            for gradient, offset in zip(dy, starts, strict=True):
                low, high = max(first + start, offset), min(first + stop, offset + length)
                if low < high:
                    positions = dtable[low:high]
                    np.add(positions, gradient[low - offset : high - offset], out=positions)

        self.for_tiles(reached, columns, body, passes=1)

    def gather_last(self, output: Array, x: Array, lengths: Sequence[int]) -> None:
        """``output[b, 0] = x[b, lengths[b] - 1]``, ``x (B, T, C)``; ``output`` may be the first B C values of ``x``."""
        target = output.reshape(x.shape[0], x.shape[2])
        for row, length in enumerate(lengths):  # in order: no row is overwritten before it is read
            np.copyto(target[row], x[row, length - 1])

    def _zero(self, table: Array) -> None:
        flat = table.reshape(-1)

        def body(start: int, stop: int, scratch: Array) -> None:
            flat[start:stop].fill(0.0)

        self.for_tiles(flat.size, 1, body, passes=1)


def _chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for low in range(start, stop, _IDS):
        yield low, min(stop, low + _IDS)
