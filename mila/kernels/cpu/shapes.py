"""Shape kernels: sections, permutations, padding, and sums along an axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array

#: Elements of NumPy's buffers where arrays with gaps are added, which has three of them: 96 KB at most.
_BUFFER = 4096
#: One place of an axis after padding, and the place before padding that it holds.
_Section = tuple[slice, slice]


class CpuShapes(CpuFamily):
    """``ShapeKernels`` in NumPy."""

    def take_section(self, output: Array, x: Array, axis: int, start: int) -> None:
        """``output`` is the part of ``x`` from ``start`` on along ``axis``, as long as ``output`` is there."""
        self._copy(output, x[_along(axis, start, start + output.shape[axis])], axis + 1)

    def put_section(self, output: Array, x: Array, axis: int, start: int) -> None:
        """Write ``x`` into ``output`` from ``start`` on along ``axis``; the rest of ``output`` stays."""
        self._copy(output[_along(axis, start, start + x.shape[axis])], x, axis + 1)

    def permute(self, output: Array, x: Array, axes: Sequence[int]) -> None:
        """Axis i of ``output`` is axis ``axes[i]`` of ``x``."""
        self._copy(output, x.transpose(axes), len(axes))

    def pad_forward(self, output: Array, x: Array, pads: Sequence[tuple[int, int]], mode: str, value: float) -> None:
        """``x`` with ``pads[axis] = (before, after)`` more elements along every axis; axis 0 has none.

        Modes: ``constant`` (``value``), ``reflect`` (mirrored at the edge, which is not repeated), ``replicate``.
        """
        places = list(_places(x.shape[1:], pads[1:], mode))

        def body(start: int, stop: int, scratch: Array) -> None:
            target, source = output[start:stop], x[start:stop]
            if mode == "constant":
                target.fill(value)
            for there, here in places:
                np.copyto(target[there], source[here])

        self.for_tiles(output.shape[0], math.prod(output.shape[1:]), body, passes=1)

    def pad_backward(self, dx: Array, dy: Array, pads: Sequence[tuple[int, int]], mode: str) -> None:
        """Every element of ``dx`` is the sum of ``dy`` over the places that hold it."""
        (centre, _), *others = _places(dx.shape[1:], pads[1:], mode)

        def body(start: int, stop: int, scratch: Array) -> None:
            target, source = dx[start:stop], dy[start:stop]
            np.copyto(target, source[centre])
            np.setbufsize(_BUFFER)  # until the end of the task
            for there, here in others:
                np.add(target[here], source[there], out=target[here])

        self.for_tiles(dx.shape[0], math.prod(dx.shape[1:]), body, passes=1)

    def sum_axis(self, output: Array, x: Array, axis: int, factor: float) -> None:
        """``output = factor * x.sum(axis)``; ``output`` may keep ``axis`` with extent 1."""
        source = _fold(x, axis)
        outer, size, inner = source.shape
        target = output.reshape(outer, inner)

        def body(start: int, stop: int, scratch: Array) -> None:
            sums = target[start:stop]
            if inner == 1:
                self.row_sums(sums[:, 0], source[start:stop, :, 0])
            else:
                np.add.reduce(source[start:stop], axis=1, out=sums)
            if factor != 1.0:
                np.multiply(sums, factor, out=sums)

        self.for_tiles(outer, size * inner, body, passes=1)

    def spread_axis(self, dx: Array, dy: Array, axis: int, factor: float) -> None:
        """``factor * dy`` at every place of ``dx`` along ``axis``: the gradient of ``sum_axis``."""
        target = _fold(dx, axis)
        outer, size, inner = target.shape
        source = dy.reshape(outer, 1, inner)

        def body(start: int, stop: int, scratch: Array) -> None:
            np.multiply(source[start:stop], factor, out=target[start:stop])

        self.for_tiles(outer, size * inner, body, passes=1)

    def _copy(self, output: Array, x: Array, axes: int) -> None:
        """Copy in tiles along the first of the leading ``axes`` that is longer than 1: a batch of one is shared too."""
        axis = next((i for i in range(axes) if output.shape[i] > 1), 0)

        def body(start: int, stop: int, scratch: Array) -> None:
            part = _along(axis, start, stop)
            np.copyto(output[part], x[part])

        rows = output.shape[axis]
        self.for_tiles(rows, output.size // max(1, rows), body, passes=1)


def _along(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, stop))


def _fold(x: Array, axis: int) -> Array:
    """``x`` as (outer, n, inner) around ``axis``."""
    return x.reshape(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))


def _places(
    extents: Sequence[int], pads: Sequence[tuple[int, int]], mode: str
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Index after padding and index before it, of the boxes that together fill all places; the whole of it first."""
    sections = [_SECTIONS[mode](extent, *pair) for extent, pair in zip(extents, pads, strict=True)]
    for box in itertools.product(*sections):
        there, here = zip(*box, strict=True)
        yield (slice(None), *there), (slice(None), *here)


def _centre(extent: int, before: int, after: int) -> list[_Section]:
    return [(slice(before, before + extent), slice(0, extent))]


def _reflected(extent: int, before: int, after: int) -> list[_Section]:
    end = before + extent
    last = extent - 2 - after
    left = (slice(0, before), slice(before, 0, -1))
    right = (slice(end, end + after), slice(extent - 2, last if last >= 0 else None, -1))
    return [*_centre(extent, before, after), *[left] * (before > 0), *[right] * (after > 0)]


def _replicated(extent: int, before: int, after: int) -> list[_Section]:
    """One place after the other: the gradient adds up what they hold."""
    end = before + extent
    left = [(slice(i, i + 1), slice(0, 1)) for i in range(before)]
    right = [(slice(i, i + 1), slice(extent - 1, extent)) for i in range(end, end + after)]
    return [*_centre(extent, before, after), *left, *right]


_SECTIONS: dict[str, Callable[[int, int, int], list[_Section]]] = {
    "constant": _centre,
    "reflect": _reflected,
    "replicate": _replicated,
}
