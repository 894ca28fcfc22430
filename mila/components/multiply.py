"""Products of two inputs, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from mila.components.pairwise import Pairwise, overwritable_input
from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Run
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Over, gradient, output


class MultiplyConfig(ComponentConfig):
    """Nothing to say."""


class Multiply(Pairwise[MultiplyConfig]):
    """``a * b`` of one shape."""

    config_class = MultiplyConfig
    component_type = ComponentType.MULTIPLY
    reads: ClassVar[tuple[str, ...]] = ("a", "b")
    required_kernels = ("multiply",)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """In training each gradient may go over the other input, which only that gradient reads last."""
        shape = context.input_shape
        yield output(shape, context.dtype, over=None if context.is_training else overwritable_input(context, (1, 0)))
        if context.is_training:
            over_b, over_a = (context.overwritable[port] is not Overwrite.NEVER for port in (1, 0))
            over_output = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("a", shape, context.dtype, over=Over.INPUT if over_b else over_output, over_port=int(over_b))
            yield gradient("b", shape, context.dtype, port=1, over=Over.INPUT if over_a else None)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Multiply."""
        a, b = inputs
        result = self.view("output", a.shape)
        self.kernels.multiply(result, a, b)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """``db = dy * a``, perhaps over ``a``; then ``da = dy * b``, perhaps over ``b`` or ``dy``."""
        (dy,), (a, b) = gradients, inputs
        da, db = self.view("a.gradient", dy.shape), self.view("b.gradient", dy.shape)
        self.kernels.multiply(db, dy, a)
        self.kernels.multiply(da, dy, b)
        return da, db
