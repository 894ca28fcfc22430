"""Shape kernels: sections, permutations, padding, and sums along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from mila.errors import DeviceError
from mila.kernels.cuda.axes import MOST_AXES, Axis, places, size_of, strides_of, walk
from mila.kernels.cuda.elementwise import CudaElementwise, single
from mila.kernels.cuda.family import BLOCK, Argument, ceiling
from mila.kernels.cuda.reductions import CudaReductions
from mila.kernels.signatures import Array

#: Rows and columns of a tile that is transposed.
_TILE = 32
#: The names of padding modes, in the order of the kernels' ``Mode``.
_MODES: Final = ("constant", "reflect", "replicate")
#: ``Pads`` of ``shapes.cu``.
_PADS: Final = np.dtype(
    [
        ("extents", np.int64, MOST_AXES),
        ("before", np.int64, MOST_AXES),
        ("after", np.int64, MOST_AXES),
        ("count", np.int64),
    ],
    align=True,
)


class CudaShapes(CudaElementwise, CudaReductions):
    """``ShapeKernels`` in CUDA C++."""

    def take_section(self, output: Array, x: Array, axis: int, start: int) -> None:
        """``output`` is the part of ``x`` from ``start`` on along ``axis``, as long as ``output`` is there."""
        outer, length, inner = _fold(output.shape, axis)
        pitch = x.shape[axis] * inner
        self.copy_rows(output, x, outer, length * inner, length * inner, pitch, 0, start * inner)

    def put_section(self, output: Array, x: Array, axis: int, start: int) -> None:
        """Write ``x`` into ``output`` from ``start`` on along ``axis``; the rest of ``output`` stays."""
        outer, length, inner = _fold(x.shape, axis)
        pitch = output.shape[axis] * inner
        self.copy_rows(output, x, outer, length * inner, pitch, length * inner, start * inner, 0)

    def permute(self, output: Array, x: Array, axes: Sequence[int]) -> None:
        """Axis i of ``output`` is axis ``axes[i]`` of ``x``."""
        strides = strides_of(x.shape)
        walked = walk(output.shape, strides_of(output.shape), [strides[axis] for axis in axes]) or [Axis(1, (1, 1))]
        if walked[-1].strides[1] == 1 or not x.size:
            self._permute_rows(output, x, walked)
        else:
            self._permute_tiles(output, x, walked)

    def pad_forward(self, output: Array, x: Array, pads: Sequence[tuple[int, int]], mode: str, value: float) -> None:
        """``x`` with ``pads[axis] = (before, after)`` more elements along every axis; axis 0 has none.

        Modes: ``constant`` (``value``), ``reflect`` (mirrored at the edge, which is not repeated), ``replicate``.
        """
        scalars = [_pads(x.shape, pads), np.int64(output.size), np.int32(_MODES.index(mode)), single(value)]
        self.launch("shapes", "pad_forward", x.dtype, self.blocks(output.size), BLOCK, [output, x, *scalars])

    def pad_backward(self, dx: Array, dy: Array, pads: Sequence[tuple[int, int]], mode: str) -> None:
        """Every element of ``dx`` is the sum of ``dy`` over the places that hold it."""
        scalars = [_pads(dx.shape, pads), np.int64(dx.size), np.int32(_MODES.index(mode))]
        self.launch("shapes", "pad_backward", dx.dtype, self.blocks(dx.size), BLOCK, [dx, dy, *scalars])

    def sum_axis(self, output: Array, x: Array, axis: int, factor: float) -> None:
        """``output = factor * x.sum(axis)``; ``output`` may keep ``axis`` with extent 1."""
        outer, length, inner = _fold(x.shape, axis)
        kept = walk((outer, inner), (length * inner, 1))
        self.sum_places(output, x, kept, [Axis(length, (inner,))], factor)

    def spread_axis(self, dx: Array, dy: Array, axis: int, factor: float) -> None:
        """``factor * dy`` at every place of ``dx`` along ``axis``: the gradient of ``sum_axis``."""
        outer, length, inner = _fold(dx.shape, axis)
        steps = inner > 1
        rows, columns, repeats = (outer * length, inner, length) if steps else (outer, length, 1)
        grid, block = self.rows_grid(rows, columns, dx.dtype.itemsize)
        sizes = np.int64(rows), np.int64(columns), np.int64(repeats)
        arguments: list[Argument] = [dx, dy, *sizes, np.int32(steps), single(factor)]
        self.launch("arithmetic", "spread", dx.dtype, grid, block, arguments)

    def _permute_rows(self, output: Array, x: Array, walked: Sequence[Axis]) -> None:
        """The last axis stays the last: its rows are copied whole."""
        *outer, last = walked
        rows, columns = size_of(outer), last.extent
        grid, block = self.rows_grid(rows, columns, x.dtype.itemsize)
        arguments: list[Argument] = [output, x, places(outer, 1), np.int64(rows), np.int64(columns)]
        self.launch("shapes", "permute_rows", x.dtype, grid, block, arguments)

    def _permute_tiles(self, output: Array, x: Array, walked: Sequence[Axis]) -> None:
        """The last axis of ``x`` goes elsewhere: together with the last of ``output`` it makes matrices."""
        *outer, last = walked
        (from_last,) = (axis for axis in outer if axis.strides[1] == 1)
        matrices = [axis for axis in outer if axis is not from_last]
        rows, columns, count = last.extent, from_last.extent, size_of(matrices)
        sizes = (np.int64(size) for size in (count, rows, columns, from_last.strides[0], last.strides[1]))
        grid = self.blocks(count * ceiling(rows, _TILE) * ceiling(columns, _TILE), 1)
        arguments: list[Argument] = [output, x, places(matrices, 0), places(matrices, 1), *sizes]
        self.launch("shapes", "permute_tiles", x.dtype, grid, BLOCK, arguments)


def _fold(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """The shape as (outer, n, inner) around ``axis``."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _pads(shape: Sequence[int], pads: Sequence[tuple[int, int]]) -> np.void:
    """``Pads`` of an array of that shape; neighbours without pads are one axis.

    Raises:
        DeviceError: for more than 8 axes.
    """
    axes: list[tuple[int, int, int]] = []
    for extent, (before, after) in zip(shape, pads, strict=True):
        if axes and axes[-1][1:] == (0, 0) == (before, after):
            axes[-1] = (axes[-1][0] * extent, 0, 0)
        else:
            axes.append((extent, before, after))
    if len(axes) > MOST_AXES:
        raise DeviceError(f"CUDA kernels: expected at most {MOST_AXES} axes with padding, got {len(axes)}")
    structure = np.zeros(1, _PADS)
    for name, values in zip(("extents", "before", "after"), zip(*axes, strict=True), strict=True):
        structure[name][0, : len(axes)] = values
    structure["count"][0] = len(axes)
    scalar: np.void = structure[0]
    return scalar
