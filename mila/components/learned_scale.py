"""A learned factor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from mila.core import ComponentType, LeafContext, Overwrite, ParameterizedConfig, Run
from mila.core.component import Component
from mila.core.initializers import constant
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Over, gradient, output, parameter
from mila.memory.storage import Shape


class LearnedScaleConfig(ParameterizedConfig):
    """Config of :class:`LearnedScale`.

    Attributes:
        init_value: the factor at first; 0 lets a branch start as if it were not there.
    """

    init_value: float = 0.0


class LearnedScale(Component[LearnedScaleConfig]):
    """``gamma * x``, of any shape; ``gamma`` (1) serves all elements."""

    config_class = LearnedScaleConfig
    component_type = ComponentType.LEARNED_SCALE
    reads: ClassVar[tuple[str, ...]] = ("input",)
    is_per_position = True
    required_kernels = ("learned_scale_forward", "learned_scale_backward")

    def parameters(self) -> Iterator[Declaration]:
        """The factor ``gamma``."""
        initializer = constant(self.config.init_value)
        yield parameter("gamma", (1,), self.dtype, initializer, trainable=self.config.trainable)

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        return (context.input_shape,)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """In inference the output may go over the input; in training that is needed until backward."""
        shape = context.input_shape
        may_overwrite = context.overwritable[0] is Overwrite.FORWARD and not context.is_training
        yield output(shape, context.dtype, over=0 if may_overwrite else None)
        if context.is_training:
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", shape, context.dtype, over=over)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Multiply."""
        result = self.view("output", inputs[0].shape)
        self.kernels.learned_scale_forward(result, inputs[0], self.parameter_array("gamma"))
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """``dx = gamma dy``; ``dgamma = sum(dy x)``."""
        dx = self.view("input.gradient", gradients[0].shape)
        (dgamma,), accumulate = self.contribute("gamma")
        gamma = self.parameter_array("gamma")
        self.kernels.learned_scale_backward(dx, dgamma, gradients[0], inputs[0], gamma, accumulate)
        return (dx,)
