"""Sections, permutations, padding, and sums along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mila.kernels.signatures.arrays import Array


class ShapeKernels(Protocol):
    """Sections, permutations, padding, and sums along an axis; axes count from 0."""

    def take_section(self, output: Array, x: Array, axis: int, start: int) -> None:
        """``output`` is the part of ``x`` from ``start`` on along ``axis``, as long as ``output`` is there."""

    def put_section(self, output: Array, x: Array, axis: int, start: int) -> None:
        """Write ``x`` into ``output`` from ``start`` on along ``axis``; the rest of ``output`` stays."""

    def permute(self, output: Array, x: Array, axes: Sequence[int]) -> None:
        """Axis i of ``output`` is axis ``axes[i]`` of ``x``."""

    def pad_forward(self, output: Array, x: Array, pads: Sequence[tuple[int, int]], mode: str, value: float) -> None:
        """``x`` with ``pads[axis] = (before, after)`` more elements along every axis; axis 0 has none.

        Modes: ``constant`` (``value``), ``reflect`` (mirrored at the edge, which is not repeated; fewer elements than
        the axis has), ``replicate`` (the edge repeated).
        """

    def pad_backward(self, dx: Array, dy: Array, pads: Sequence[tuple[int, int]], mode: str) -> None:
        """Every element of ``dx`` is the sum of ``dy`` over the places that hold it."""

    def sum_axis(self, output: Array, x: Array, axis: int, factor: float) -> None:
        """``output = factor * x.sum(axis)``; ``output`` may keep ``axis`` with extent 1."""

    def spread_axis(self, dx: Array, dy: Array, axis: int, factor: float) -> None:
        """``factor * dy`` at every place of ``dx`` along ``axis``: the gradient of ``sum_axis``."""
