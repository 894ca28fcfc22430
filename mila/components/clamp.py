"""Values held between two bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from pydantic import model_validator

from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Run
from mila.core.component import Component
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Over, gradient, output
from mila.memory.storage import Shape


class ClampConfig(ComponentConfig):
    """Config of :class:`Clamp`.

    Attributes:
        minimum: smallest value of the output.
        maximum: largest value of the output.
    """

    minimum: float
    maximum: float

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} must be at most maximum {self.maximum}")
        return self


class Clamp(Component[ClampConfig]):
    """``min(max(x, minimum), maximum)``, of any shape; NaN stays NaN.

    As PyTorch's ``clamp``, the bounds themselves pass the gradient on.
    """

    config_class = ClampConfig
    component_type = ComponentType.CLAMP
    reads: ClassVar[tuple[str, ...]] = ("input",)
    is_per_position = True
    required_kernels = ("clamp_forward", "clamp_backward")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        return (context.input_shape,)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """In inference the output may go over the input; in training that is needed until backward."""
        shape = context.input_shape
        may_overwrite = context.overwritable[0] is Overwrite.FORWARD and not context.is_training
        yield output(shape, context.dtype, over=0 if may_overwrite else None)
        if context.is_training:
            over = Over.INPUT if context.overwritable[0] is not Overwrite.NEVER else None
            yield gradient(
                "input", shape, context.dtype, over=Over.GRADIENT if context.gradient_overwritable[0] else over
            )

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Hold between the bounds."""
        result = self.view("output", inputs[0].shape)
        self.kernels.clamp_forward(result, inputs[0], self.config.minimum, self.config.maximum)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The gradient where the input was within the bounds, else exactly 0."""
        dx = self.view("input.gradient", gradients[0].shape)
        self.kernels.clamp_backward(dx, gradients[0], inputs[0], self.config.minimum, self.config.maximum)
        return (dx,)
