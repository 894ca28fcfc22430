"""Sections along an axis: a first one and the rest, or equal ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import Field

from mila.core import ComponentConfig, ComponentType, LeafContext, Run
from mila.core.component import Component
from mila.core.shapes import require_axis
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, gradient, output
from mila.memory.storage import Shape


class SectionsConfig(ComponentConfig):
    """What all configs of sections have in common.

    Attributes:
        dim: the axis that is cut, counted from 0, the batch.
    """

    dim: int = Field(default=1, ge=0)


SectionsConfigT = TypeVar("SectionsConfigT", bound=SectionsConfig)


class Sections(Component[SectionsConfigT]):
    """Base of components whose outputs are consecutive sections of the input along ``config.dim``."""

    required_kernels = ("take_section", "put_section")

    def extents(self, extent: int) -> tuple[int, ...]:
        """The extents of the sections of an axis of ``extent``; :class:`ShapeError` where there are none."""
        raise NotImplementedError

    def section_shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shapes of the sections of an input of ``shape``."""
        dim = require_axis(self, shape, self.config.dim)
        return tuple((*shape[:dim], extent, *shape[dim + 1 :]) for extent in self.extents(shape[dim]))

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape, with each section's extent."""
        return self.section_shapes(context.input_shape)

    @property
    def accepts_prefill_size(self) -> bool:
        """Axis 1 may be that of the positions."""
        return self.config.dim != 1

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """One output per section, and the gradient of the whole."""
        for port, (name, shape) in enumerate(zip(self.output_names, self.output_shapes(context), strict=True)):
            yield output(shape, context.dtype, name=name, port=port)
        if context.is_training:
            yield gradient("input", context.input_shape, context.dtype)

    def forward_step(self, run: Run, *inputs: Array) -> tuple[Array, ...]:
        """Copy every section."""
        (x,), dim = inputs, self.config.dim
        shapes = self.section_shapes(x.shape)
        results = tuple(self.view(name, shape) for name, shape in zip(self.output_names, shapes, strict=True))
        for start, result in zip(_starts(results, dim), results, strict=False):
            self.kernels.take_section(result, x, dim, start)
        return results

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Put the sections together again."""
        dx, dim = self.view("input.gradient", inputs[0].shape), self.config.dim
        for start, dy in zip(_starts(gradients, dim), gradients, strict=False):
            self.kernels.put_section(dx, dy, dim, start)
        return (dx,)


class SplitConfig(SectionsConfig):
    """Config of :class:`Split`.

    Attributes:
        size: extent of the first section.
        dim: the axis that is cut, counted from 0; not the batch.
    """

    size: int = Field(gt=0)
    dim: int = Field(default=1, ge=1)


class Split(Sections[SplitConfig]):
    """The ``first`` ``size`` elements along an axis, and the ``rest``, of which there must be one at least."""

    config_class = SplitConfig
    component_type = ComponentType.SPLIT
    output_names = ("first", "rest")

    def extents(self, extent: int) -> tuple[int, ...]:
        """``size`` and what is left."""
        size = self.config.size
        if extent <= size:
            raise ShapeError(f"{self.path}: axis {self.config.dim} expected more than {size} elements, got {extent}")
        return size, extent - size


class ChunkConfig(SectionsConfig):
    """Config of :class:`Chunk`.

    Attributes:
        chunks: number of sections.
        dim: the axis that is cut, counted from 0, the batch.
    """

    chunks: int = Field(gt=0)


class Chunk(Sections[ChunkConfig]):
    """``chunks`` equal sections along an axis: the outputs ``out0``, ``out1`` and so on."""

    config_class = ChunkConfig
    component_type = ComponentType.CHUNK

    def __init__(self, name: str, config: ChunkConfig | None = None, **arguments: Any) -> None:
        super().__init__(name, config, **arguments)
        self.output_names = tuple(f"out{i}" for i in range(self.config.chunks))

    def extents(self, extent: int) -> tuple[int, ...]:
        """Equal parts."""
        chunks = self.config.chunks
        if extent % chunks:
            raise ShapeError(f"{self.path}: axis {self.config.dim} expected a multiple of {chunks}, got {extent}")
        return (extent // chunks,) * chunks


def _starts(sections: tuple[Array, ...], dim: int) -> Iterator[int]:
    """Where each section starts, and where the last one ends."""
    return itertools.accumulate((section.shape[dim] for section in sections), initial=0)
