"""Activation functions, one config for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

from pydantic import Field

from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Run
from mila.core.bound import Cursor
from mila.core.component import Component
from mila.core.shapes import row_count
from mila.kernels.signatures import ActivationFunction, Array
from mila.memory.declarations import Declaration, Lifetime, Over, gradient, output, saved, workspace
from mila.memory.storage import Shape

#: ``gelu`` is exact (by the error function), ``gelu_tanh`` is GPT-2's, ``quick_gelu`` CLIP's.
ActivationKind = Literal[
    "none",
    "relu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "tanh",
    "sigmoid",
    "leaky_relu",
    "mish",
    "elu",
    "hardswish",
    "softplus",
]


class ActivationOptions(ComponentConfig):
    """What some kinds of functions take; the others ignore it.

    Attributes:
        leaky_relu_slope: slope of ``leaky_relu`` below zero.
        elu_alpha: minus the limit of ``elu`` far below zero.
        softplus_beta: how sharp the bend of ``softplus`` is.
        softplus_threshold: where ``softplus_beta * x`` is above it, ``softplus`` is ``x`` itself.
    """

    leaky_relu_slope: float = Field(default=ActivationFunction.leaky_relu_slope)
    elu_alpha: float = Field(default=ActivationFunction.elu_alpha)
    softplus_beta: float = Field(default=ActivationFunction.softplus_beta, gt=0)
    softplus_threshold: float = Field(default=ActivationFunction.softplus_threshold)

    def activation_function(self, kind: ActivationKind) -> ActivationFunction:
        """The function of this kind with these options, as kernels take it."""
        return ActivationFunction(
            kind, self.leaky_relu_slope, self.elu_alpha, self.softplus_beta, self.softplus_threshold
        )


class ActivationConfig(ActivationOptions):
    """Config of :class:`Activation`.

    Attributes:
        kind: which function.
    """

    kind: ActivationKind = "gelu_tanh"

    @property
    def function(self) -> ActivationFunction:
        """The function, as kernels take it."""
        return self.activation_function(self.kind)


class Activation(Component[ActivationConfig]):
    """``f(x)``, element by element.

    In training, forward leaves the derivative for backward: over its input where nobody else needs that any more.
    """

    config_class = ActivationConfig
    component_type = ComponentType.ACTIVATION
    reads: ClassVar[tuple[str, ...]] = ("input",)
    is_per_position = True
    required_kernels = ("activation_forward", "activation_backward")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        return (context.input_shape,)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """In inference the output is written over the input where that is allowed."""
        shape = context.input_shape
        may_overwrite = context.overwritable[0] is Overwrite.FORWARD
        yield output(shape, context.dtype, over=0 if may_overwrite and not context.is_training else None)
        size = context.kernels.activation_forward_workspace(row_count(shape), shape[-1])
        yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.FORWARD)
        if context.is_training:
            if not may_overwrite:
                yield saved("derivative", shape, context.dtype)
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", shape, context.dtype, over=over)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """The function and, in training, its derivative."""
        (x,) = inputs
        result = self.view("output", x.shape)
        derivative = self._derivative(x) if self.is_training_mode else None
        self.kernels.activation_forward(result, derivative, x, self.config.function, self.workspace())
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """The function of one row."""
        (x,) = inputs
        return self.kernels.bind_activation_forward(
            self.view("output", x.shape), x, self.config.function, self.workspace()
        )

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """``dx = dy * f'(x)``."""
        dx = self.view("input.gradient", gradients[0].shape)
        self.kernels.activation_backward(dx, gradients[0], self._derivative(inputs[0]))
        return (dx,)

    def _derivative(self, x: Array) -> Array:
        return self.view("derivative", x.shape) if self.has_buffer("derivative") else x
