"""Softmax along any axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array

#: Most statistics that a workspace holds; more rows than that share them tile by tile.
_MOST_STATISTICS = 65536


class CpuSoftmax(CpuFamily):
    """The softmax kernels of ``NormalizationKernels`` in NumPy.

    An array is seen as (outer, n, inner) with ``axis`` in the middle. The last axis (inner = 1) has the fast path.
    """

    def softmax_forward(self, output: Array, x: Array, axis: int, workspace: Array) -> None:
        """Max-shifted softmax along ``axis``; ``output`` may be ``x``."""
        outer, size, inner = _fold(x.shape, axis)
        target, source = output.reshape(outer, size, inner), x.reshape(outer, size, inner)

        def last(start: int, stop: int, scratch: Array) -> None:
            y, part, statistic = target[start:stop, :, 0], source[start:stop, :, 0], scratch[: stop - start]
            np.maximum.reduce(part, axis=1, out=statistic)
            np.subtract(part, statistic[:, None], out=y)
            np.exp(y, out=y)
            self.row_sums(statistic, y)
            np.reciprocal(statistic, out=statistic)
            y *= statistic[:, None]

        def middle(start: int, stop: int, scratch: Array) -> None:
            y, statistic = target[start:stop], scratch[: (stop - start) * inner].reshape(-1, inner)
            np.maximum.reduce(source[start:stop], axis=1, out=statistic)
            np.subtract(source[start:stop], statistic[:, None], out=y)
            np.exp(y, out=y)
            np.add.reduce(y, axis=1, out=statistic)
            y /= statistic[:, None]

        if size and inner:
            self.for_tiles(outer, size * inner, last if inner == 1 else middle, workspace, inner, passes=14)

    def softmax_backward(self, dx: Array, dy: Array, y: Array, axis: int, workspace: Array) -> None:
        """``dx = y (dy - sum(dy y))``; ``dx`` may be ``dy``."""
        outer, size, inner = _fold(y.shape, axis)
        target, upstream, probabilities = (array.reshape(outer, size, inner) for array in (dx, dy, y))

        def body(start: int, stop: int, scratch: Array) -> None:
            d, p = upstream[start:stop], probabilities[start:stop]
            statistic = scratch[: (stop - start) * inner].reshape(-1, inner)
            if inner == 1:
                np.vecdot(d[:, :, 0], p[:, :, 0], out=statistic[:, 0])
            else:
                np.vecdot(d.swapaxes(1, 2), p.swapaxes(1, 2), out=statistic)
            result = target[start:stop]
            np.subtract(d, statistic[:, None], out=result)
            result *= p

        if size and inner:
            self.for_tiles(outer, size * inner, body, workspace, inner, passes=4)

    def softmax_workspace(self, shape: Sequence[int], axis: int) -> int:
        """Elements of the workspace of both softmax kernels: a maximum or a sum per row."""
        outer, _, inner = _fold(shape, axis)
        return min(outer, max(1, _MOST_STATISTICS // max(1, inner))) * inner


def _fold(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """``shape`` as (outer, n, inner) around ``axis``, which may count from the end."""
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
