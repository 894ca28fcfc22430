"""Axes of arrays as kernels take them: few of them, since neighbours that are visited as one become one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mila.errors import DeviceError

#: As in ``axes.cuh``.
MOST_AXES: Final = 8
_AXES: Final = np.dtype(
    [("extents", np.int64, MOST_AXES), ("strides", np.int64, MOST_AXES), ("count", np.int64)], align=True
)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a walk through several arrays: how long, and how far apart its elements are in each of them."""

    extent: int
    strides: tuple[int, ...]


def walk(extents: Sequence[int], *strides: Sequence[int]) -> list[Axis]:
    """The axes of a walk with ``strides`` in each array, the last fastest: none of extent 1, neighbours joined.

    Two neighbours are one axis where in every array the first one's stride is the length of the second.
    """
    axes: list[Axis] = []
    for extent, *steps in zip(extents, *strides, strict=True):
        if extent == 1:
            continue
        if axes and all(before == extent * step for before, step in zip(axes[-1].strides, steps, strict=True)):
            axes[-1] = Axis(axes[-1].extent * extent, tuple(steps))
        else:
            axes.append(Axis(extent, tuple(steps)))
    return axes


def strides_of(shape: Sequence[int]) -> list[int]:
    """Distances in elements between neighbours along each axis of a C-contiguous array."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def places(axes: Iterable[Axis], array: int = 0) -> np.void:
    """``Axes`` of a walk's places in the array of that number.

    Raises:
        DeviceError: for more than 8 axes.
    """
    listed = list(axes)
    if len(listed) > MOST_AXES:
        raise DeviceError(f"CUDA kernels: expected at most {MOST_AXES} axes that cannot be joined, got {len(listed)}")
    structure = np.zeros(1, _AXES)
    structure["extents"][0, : len(listed)] = [axis.extent for axis in listed]
    structure["strides"][0, : len(listed)] = [axis.strides[array] for axis in listed]
    structure["count"][0] = len(listed)
    scalar: np.void = structure[0]
    return scalar


def size_of(axes: Iterable[Axis]) -> int:
    """How many places a walk visits."""
    return math.prod(axis.extent for axis in axes)
