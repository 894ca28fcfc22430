"""Sums in which axes of extent 1 stretch."""

from __future__ import annotations

from collections.abc import Iterator

from mila.components.pairwise import overwritable_input
from mila.core import ComponentConfig, ComponentType, LeafContext, Port, Run
from mila.core.component import Component
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Over, gradient, output
from mila.memory.storage import Shape


class BroadcastAddConfig(ComponentConfig):
    """Nothing to say."""


class BroadcastAdd(Component[BroadcastAddConfig]):
    """``a + b`` of one rank, where an axis of extent 1 stretches to the other's extent."""

    config_class = BroadcastAddConfig
    component_type = ComponentType.BROADCAST_ADD
    ports = (Port("a"), Port("b"))
    required_kernels = ("broadcast_add", "broadcast_sum")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The larger extent of each axis."""
        return (self._stretched(*context.input_shapes),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Over whatever has the output's shape, where the graph allows it."""
        (shape,) = self.output_shapes(context)
        whole = [port for port in (1, 0) if context.input_shapes[port] == shape]
        yield output(shape, context.dtype, over=overwritable_input(context, whole))
        if context.is_training:
            a, b = context.input_shapes
            may_overwrite = context.gradient_overwritable[0] and a == shape
            yield gradient("a", a, context.dtype, over=Over.GRADIENT if may_overwrite else None)
            yield gradient("b", b, context.dtype, port=1)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Add."""
        a, b = inputs
        result = self.view("output", self._stretched(a.shape, b.shape))
        self.kernels.broadcast_add(result, a, b)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The gradient, summed over the axes that were stretched; first for ``b``: ``a``'s may be ``dy`` itself."""
        (dy,), (a, b) = gradients, inputs
        da, db = self.view("a.gradient", a.shape), self.view("b.gradient", b.shape)
        self.kernels.broadcast_sum(db, dy)
        self.kernels.broadcast_sum(da, dy)
        return da, db

    def _stretched(self, a: Shape, b: Shape) -> Shape:
        if len(a) != len(b) or any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
            raise ShapeError(
                f"{self.path}: expected two inputs of one rank, with equal extents or 1 in each axis, got {a} and {b}"
            )
        return tuple(map(max, a, b))
