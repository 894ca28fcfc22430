"""The same elements in the same order under another shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Run
from mila.core.component import Component, ConfigT
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Over, gradient, output
from mila.memory.storage import Shape


class Reinterpretation(Component[ConfigT]):
    """Base of components that only say the shape of a row anew: no copy is made where the graph allows it."""

    required_kernels = ("copy",)

    def new_shape(self, shape: Shape) -> Shape:
        """The shape of the output for an input of ``shape``; :class:`ShapeError` where it does not fit."""
        raise NotImplementedError

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """As many elements in every row of the batch."""
        return (self.new_shape(context.input_shape),)

    @property
    def accepts_prefill_size(self) -> bool:
        """Axes are mixed."""
        return False

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output over the input, gradient over the output's gradient, where the graph allows it."""
        over = 0 if context.overwritable[0] is Overwrite.FORWARD else None
        yield output(self.new_shape(context.input_shape), context.dtype, over=over)
        if context.is_training:
            gradient_over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", context.input_shape, context.dtype, over=gradient_over)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Copy, unless the bytes are the same."""
        (x,) = inputs
        result = self.view("output", self.new_shape(x.shape))
        self.kernels.copy(result, x)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The gradient in the input's shape."""
        dx = self.view("input.gradient", inputs[0].shape)
        self.kernels.copy(dx, gradients[0])
        return (dx,)


class ReshapeConfig(ComponentConfig):
    """Config of :class:`Reshape`.

    Attributes:
        dims: the extents after the batch.
    """

    dims: tuple[Annotated[int, Field(gt=0)], ...] = Field(min_length=1)


class Reshape(Reinterpretation[ReshapeConfig]):
    """(B, …) to (B, *dims), where both have as many elements."""

    config_class = ReshapeConfig
    component_type = ComponentType.RESHAPE

    def new_shape(self, shape: Shape) -> Shape:
        """(B, *dims)."""
        dims = self.config.dims
        expected = math.prod(dims)
        if math.prod(shape[1:]) != expected or len(shape) == 1:
            raise ShapeError(f"{self.path}: expected {expected} elements after the batch, as {dims} has, got {shape}")
        return (shape[0], *dims)


class FlattenConfig(ComponentConfig):
    """Nothing to say."""


class Flatten(Reinterpretation[FlattenConfig]):
    """(B, …) to (B, F): all axes after the batch as one."""

    config_class = FlattenConfig
    component_type = ComponentType.FLATTEN

    def new_shape(self, shape: Shape) -> Shape:
        """(B, F)."""
        if len(shape) == 1:
            raise ShapeError(f"{self.path}: expected an input of 2 or more axes, got {shape}")
        return (shape[0], math.prod(shape[1:]))
