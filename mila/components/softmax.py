"""Softmax along one axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Run
from mila.core.component import Component
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, Over, gradient, output, workspace
from mila.memory.storage import Shape


class SoftmaxConfig(ComponentConfig):
    """Config of :class:`Softmax`.

    Attributes:
        axis: along which values sum to 1; negative axes count from the last.
    """

    axis: int = -1


class Softmax(Component[SoftmaxConfig]):
    """``exp(x - max) / sum(exp(x - max))`` along an axis."""

    config_class = SoftmaxConfig
    component_type = ComponentType.SOFTMAX
    reads: ClassVar[tuple[str, ...]] = ("output",)
    required_kernels = ("softmax_forward", "softmax_backward")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        rank = len(context.input_shape)
        if not -rank <= self.config.axis < rank:
            raise ShapeError(
                f"{self.path}: axis {self.config.axis} does not exist in an input of shape {context.input_shape}"
            )
        return (context.input_shape,)

    def default_prefill_size(self, length: int) -> int:
        """One position with ``axis=-1``; any other axis may be that of the positions."""
        return 1 if self.accepts_prefill_size else length

    @property
    def accepts_prefill_size(self) -> bool:
        """Only ``axis=-1`` is surely not the axis of the positions."""
        return self.config.axis == -1

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output over the input, gradient over the output's gradient, where the graph allows it."""
        shape = context.input_shape
        yield output(shape, context.dtype, over=0 if context.overwritable[0] is Overwrite.FORWARD else None)
        size = context.kernels.softmax_workspace(shape, self.config.axis)
        yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.BOTH)
        if context.is_training:
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", shape, context.dtype, over=over)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Normalize along the axis."""
        result = self.view("output", inputs[0].shape)
        self.kernels.softmax_forward(result, inputs[0], self.config.axis, self.workspace())
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """``dx = y (dy - sum(dy y))``."""
        shape = gradients[0].shape
        dx = self.view("input.gradient", shape)
        self.kernels.softmax_backward(dx, gradients[0], self.view("output", shape), self.config.axis, self.workspace())
        return (dx,)
