"""A learned factor for each feature (Touvron et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from mila.core import ComponentType, LeafContext, Overwrite, ParameterizedConfig, Run
from mila.core.component import Component
from mila.core.initializers import constant
from mila.core.shapes import require_width, row_count
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, Over, gradient, output, parameter, workspace
from mila.memory.storage import Shape


class LayerScaleConfig(ParameterizedConfig):
    """Config of :class:`LayerScale`.

    Attributes:
        width: width C of the last axis.
        init_value: all factors at first; a small one lets a deep network start with its branches almost closed.
    """

    width: int = Field(gt=0)
    init_value: float = 1e-5


class LayerScale(Component[LayerScaleConfig]):
    """``gamma * x`` for (…, C): ``gamma`` (C) has a factor for each feature."""

    config_class = LayerScaleConfig
    component_type = ComponentType.LAYER_SCALE
    reads: ClassVar[tuple[str, ...]] = ("input",)
    is_per_position = True
    required_kernels = ("layer_scale_forward", "layer_scale_backward")

    def parameters(self) -> Iterator[Declaration]:
        """The factors ``gamma``."""
        config = self.config
        initializer = constant(config.init_value)
        yield parameter("gamma", (config.width,), self.dtype, initializer, trainable=config.trainable)

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        return (require_width(self, context.input_shape, self.config.width),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """In inference the output may go over the input; in training that is needed until backward."""
        shape = context.input_shape
        may_overwrite = context.overwritable[0] is Overwrite.FORWARD and not context.is_training
        yield output(shape, context.dtype, over=0 if may_overwrite else None)
        if context.is_training:
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", shape, context.dtype, over=over)
            size = context.kernels.layer_scale_backward_workspace(row_count(shape), shape[-1])
            yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.BACKWARD)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Multiply."""
        result = self.view("output", inputs[0].shape)
        self.kernels.layer_scale_forward(result, inputs[0], self.parameter_array("gamma"))
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """``dx = gamma dy``; ``dgamma = sum(dy x)`` over all rows."""
        dx = self.view("input.gradient", gradients[0].shape)
        (dgamma,), accumulate = self.contribute("gamma")
        gamma = self.parameter_array("gamma")
        self.kernels.layer_scale_backward(dx, dgamma, gradients[0], inputs[0], gamma, accumulate, self.workspace())
        return (dx,)
