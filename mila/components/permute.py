"""Other orders of the axes after the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from pydantic import Field, model_validator

from mila.core import ComponentConfig, ComponentType, LeafContext, Run
from mila.core.component import Component, ConfigT
from mila.core.shapes import require_axis
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, gradient, output
from mila.memory.storage import Shape


class Permutation(Component[ConfigT]):
    """Base of components that order the axes of their input anew; axis 0, the batch, stays."""

    required_kernels = ("permute",)

    def order(self, shape: Shape) -> tuple[int, ...]:
        """For each axis of the output, that of an input of ``shape``; :class:`ShapeError` where there is none."""
        raise NotImplementedError

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's extents in their new order."""
        return (self._permuted(context.input_shape),)

    @property
    def accepts_prefill_size(self) -> bool:
        """The axis of the positions may move."""
        return False

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output and gradient."""
        yield output(self._permuted(context.input_shape), context.dtype)
        if context.is_training:
            yield gradient("input", context.input_shape, context.dtype)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Copy in the new order."""
        (x,) = inputs
        result = self.view("output", self._permuted(x.shape))
        self.kernels.permute(result, x, self.order(x.shape))
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Copy back in the old order."""
        dx = self.view("input.gradient", inputs[0].shape)
        order = self.order(dx.shape)
        self.kernels.permute(dx, gradients[0], [order.index(axis) for axis in range(len(order))])
        return (dx,)

    def _permuted(self, shape: Shape) -> Shape:
        return tuple(shape[axis] for axis in self.order(shape))


class PermuteConfig(ComponentConfig):
    """Config of :class:`Permute`.

    Attributes:
        axes: which axis of the input becomes axis 1, 2 and so on of the output: all axes but 0, each once.
    """

    axes: tuple[int, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sorted(self.axes) != list(range(1, len(self.axes) + 1)):
            raise ValueError(f"axes must be 1 to {len(self.axes)}, each once, got {self.axes}")
        return self


class Permute(Permutation[PermuteConfig]):
    """Axis i of the output, from 1 on, is axis ``axes[i - 1]`` of the input."""

    config_class = PermuteConfig
    component_type = ComponentType.PERMUTE

    def order(self, shape: Shape) -> tuple[int, ...]:
        """The batch, then ``axes``."""
        axes = self.config.axes
        if len(shape) != len(axes) + 1:
            raise ShapeError(f"{self.path}: expected an input of {len(axes) + 1} axes for axes {axes}, got {shape}")
        return (0, *axes)


class TransposeConfig(ComponentConfig):
    """Config of :class:`Transpose`.

    Attributes:
        dim0, dim1: the axes that change places, counted from 0; neither is the batch.
    """

    dim0: int = Field(ge=1)
    dim1: int = Field(ge=1)


class Transpose(Permutation[TransposeConfig]):
    """Two axes change places."""

    config_class = TransposeConfig
    component_type = ComponentType.TRANSPOSE

    def order(self, shape: Shape) -> tuple[int, ...]:
        """All axes, two of them exchanged."""
        first, second = (require_axis(self, shape, dim) for dim in (self.config.dim0, self.config.dim1))
        axes = list(range(len(shape)))
        axes[first], axes[second] = axes[second], axes[first]
        return tuple(axes)
