"""Gated activations: SwiGLU and its relatives (Shazeer 2020)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from mila.components.activation import ActivationKind, ActivationOptions
from mila.core import ComponentType, LeafContext, Overwrite, Run
from mila.core.bound import Cursor
from mila.core.component import Component
from mila.core.shapes import row_count
from mila.errors import ShapeError
from mila.kernels.signatures import ActivationFunction, Array
from mila.memory.declarations import Declaration, Lifetime, Over, gradient, output, workspace
from mila.memory.storage import Shape


class SwigluConfig(ActivationOptions):
    """Config of :class:`Swiglu`.

    Attributes:
        gate_activation: the function of the gate; ``silu`` makes it SwiGLU, ``gelu_tanh`` GeGLU.
    """

    gate_activation: ActivationKind = "silu"

    @property
    def gate_function(self) -> ActivationFunction:
        """The function of the gate, as kernels take it."""
        return self.activation_function(self.gate_activation)


class Swiglu(Component[SwigluConfig]):
    """``f(x[..., :F]) * x[..., F:]``: (…, 2F) to (…, F), the gate in the first half."""

    config_class = SwigluConfig
    component_type = ComponentType.SWIGLU
    reads: ClassVar[tuple[str, ...]] = ("input",)
    is_per_position = True
    required_kernels = ("gated_forward", "gated_backward")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(…, 2F) to (…, F)."""
        shape = context.input_shape
        if shape[-1] % 2:
            raise ShapeError(
                f"{self.path}: expected an even last axis of gate and value, got an input of shape {shape}"
            )
        return ((*shape[:-1], shape[-1] // 2),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """The input's gradient is written over the input where nobody else needs that any more."""
        shape, kernels = context.input_shape, context.kernels
        rows, width = row_count(shape), shape[-1] // 2
        yield output((*shape[:-1], width), context.dtype)
        size = kernels.gated_forward_workspace(rows, width)
        yield workspace("forward_workspace", (size,), context.statistics_dtype, during=Lifetime.FORWARD)
        if context.is_training:
            over = None if context.overwritable[0] is Overwrite.NEVER else Over.INPUT
            yield gradient("input", shape, context.dtype, over=over)
            size = kernels.gated_backward_workspace(rows, width)
            yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.BACKWARD)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Gate the second half by the first."""
        (x,) = inputs
        result = self.view("output", (*x.shape[:-1], x.shape[-1] // 2))
        self.kernels.gated_forward(result, x, self.config.gate_function, self.workspace("forward_workspace"))
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """Gate one row."""
        (x,) = inputs
        return self.kernels.bind_gated_forward(
            self.view("output", (*x.shape[:-1], x.shape[-1] // 2)),
            x,
            self.config.gate_function,
            self.workspace("forward_workspace"),
        )

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Gradients of gate and value."""
        (x,) = inputs
        dx = self.view("input.gradient", x.shape)
        self.kernels.gated_backward(dx, gradients[0], x, self.config.gate_function, self.workspace())
        return (dx,)
