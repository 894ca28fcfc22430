"""Gathering, prepending and pooling the positions of a sequence."""

from __future__ import annotations

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array

#: Positions that are compared with an id at a time.
_COMPARED = 4096


class CpuTokens(CpuFamily):
    """``TokenKernels`` in NumPy."""

    def gather_token_forward(self, output: Array, x: Array, ids: Array, token_id: int | None = None) -> None:
        """``output[b] = x[b, p[b]]`` with ``p[b]`` the first position of ``token_id``, or of the largest id."""

        def body(start: int, stop: int, scratch: Array) -> None:
            for row in range(start, stop):
                np.copyto(output[row], x[row, _position(ids[row], token_id)])

        self.for_tiles(x.shape[0], x.shape[2], body, passes=1)

    def gather_token_backward(self, dx: Array, dy: Array, ids: Array, token_id: int | None = None) -> None:
        """``dx[b, p[b]] = dy[b]``, everything else exactly 0."""

        def body(start: int, stop: int, scratch: Array) -> None:
            dx[start:stop].fill(0.0)
            for row in range(start, stop):
                np.copyto(dx[row, _position(ids[row], token_id)], dy[row])

        self.for_tiles(dx.shape[0], dx.shape[1] * dx.shape[2], body, passes=1)

    def prepend_forward(self, output: Array, x: Array, row: Array) -> None:
        """``output (B, T + 1, C)`` is ``row (C,)`` and then ``x (B, T, C)``, in every row of the batch."""

        def body(start: int, stop: int, scratch: Array) -> None:
            np.copyto(output[start:stop, 0], row)
            np.copyto(output[start:stop, 1:], x[start:stop])

        self.for_tiles(x.shape[0], x.shape[1] * x.shape[2], body, passes=1)

    def prepend_backward(self, dx: Array, drow: Array | None, dy: Array, accumulate: bool) -> None:
        """``dx = dy[:, 1:]`` and, where it is given, ``drow (+)= dy[:, 0].sum(axis=0)``."""

        def body(start: int, stop: int, scratch: Array) -> None:
            np.copyto(dx[start:stop], dy[start:stop, 1:])

        self.for_tiles(dx.shape[0], dx.shape[1] * dx.shape[2], body, passes=1)
        if drow is not None:
            if not accumulate:
                drow.fill(0.0)
            with np.errstate(all="ignore"):
                for first in dy[:, 0]:
                    np.add(drow, first, out=drow)

    def pool_maximum_forward(self, output: Array, positions: Array | None, x: Array) -> None:
        """``output (B, C) = x (B, T, C).max(axis=1)`` and, where given, the first position of each maximum."""

        def body(start: int, stop: int, scratch: Array) -> None:
            largest, source = output[start:stop], x[start:stop]
            if positions is None:
                np.maximum.reduce(source, axis=1, out=largest)
                return
            # NumPy's argmax along an axis that is not the last copies its input.
            found = positions[start:stop]
            found.fill(0)
            np.copyto(largest, source[:, 0])
            larger, is_number = np.empty(largest.shape, np.bool_), np.empty(largest.shape, np.bool_)
            for position in range(1, source.shape[1]):
                candidate = source[:, position]
                np.less_equal(candidate, largest, out=larger)
                np.logical_not(larger, out=larger)  # larger, or either is NaN
                np.equal(largest, largest, out=is_number)
                np.logical_and(larger, is_number, out=larger)
                np.copyto(largest, candidate, where=larger)
                np.copyto(found, position, where=larger)

        self.for_tiles(x.shape[0], x.shape[1] * x.shape[2], body, passes=4)

    def pool_maximum_backward(self, dx: Array, dy: Array, positions: Array) -> None:
        """``dx[b, positions[b, c], c] = dy[b, c]``, everything else exactly 0."""

        def body(start: int, stop: int, scratch: Array) -> None:
            dx[start:stop].fill(0.0)
            chosen = np.empty(dy[start:stop].shape, np.bool_)
            for position in range(dx.shape[1]):
                np.equal(positions[start:stop], position, out=chosen)
                np.copyto(dx[start:stop, position], dy[start:stop], where=chosen)

        self.for_tiles(dx.shape[0], dx.shape[1] * dx.shape[2], body, passes=2)


def _position(ids: Array, token_id: int | None) -> int:
    """The first position of an id in ``ids (T,)``, 0 where there is none; of the largest where it is ``None``."""
    if token_id is None:
        return int(ids.argmax())
    for start in range(0, ids.size, _COMPARED):
        is_it = np.equal(ids[start : start + _COMPARED], token_id)
        first = int(is_it.argmax())
        if is_it[first]:
            return start + first
    return 0
