"""A fixed factor."""

from __future__ import annotations

from collections.abc import Iterator

from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Run
from mila.core.component import Component
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Over, gradient, output
from mila.memory.storage import Shape


class ScaleConfig(ComponentConfig):
    """Config of :class:`Scale`.

    Attributes:
        factor: of every element.
    """

    factor: float


class Scale(Component[ScaleConfig]):
    """``factor * x``, of any shape."""

    config_class = ScaleConfig
    component_type = ComponentType.SCALE
    is_per_position = True
    required_kernels = ("scale",)

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        return (context.input_shape,)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output over the input, gradient over the output's gradient, where the graph allows it."""
        shape = context.input_shape
        yield output(shape, context.dtype, over=0 if context.overwritable[0] is Overwrite.FORWARD else None)
        if context.is_training:
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", shape, context.dtype, over=over)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Multiply."""
        result = self.view("output", inputs[0].shape)
        self.kernels.scale(result, inputs[0], self.config.factor)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The same factor."""
        dx = self.view("input.gradient", gradients[0].shape)
        self.kernels.scale(dx, gradients[0], self.config.factor)
        return (dx,)
