"""Several inputs as one, one after the other along an axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from mila.core import ComponentConfig, ComponentType, LeafContext, Port, Run
from mila.core.component import Component
from mila.core.shapes import require_axis
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, gradient, output
from mila.memory.storage import Shape


class ConcatConfig(ComponentConfig):
    """Config of :class:`Concat`.

    Attributes:
        inputs: how many there are.
        axis: along which they follow each other, counted from 0; along 0 batches add up.
    """

    inputs: int = Field(default=2, ge=2)
    axis: int = Field(default=1, ge=0)


class Concat(Component[ConcatConfig]):
    """The inputs ``x0``, ``x1`` and so on, which differ at most in the extent of ``axis``, one after the other."""

    config_class = ConcatConfig
    component_type = ComponentType.CONCAT
    required_kernels = ("take_section", "put_section")

    def __init__(self, name: str, config: ConcatConfig | None = None, **arguments: Any) -> None:
        super().__init__(name, config, **arguments)
        self.ports = tuple(Port(f"x{i}") for i in range(self.config.inputs))

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The inputs' shape, with the sum of their extents along the axis."""
        return (self._joined(context.input_shapes),)

    @property
    def accepts_prefill_size(self) -> bool:
        """Axis 1 may be that of the positions."""
        return self.config.axis != 1

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """The whole, and a gradient for each input."""
        yield output(self._joined(context.input_shapes), context.dtype)
        if context.is_training:
            for port, shape in enumerate(context.input_shapes):
                yield gradient(self.ports[port].name, shape, context.dtype, port=port)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Put the inputs one after the other."""
        result = self.view("output", self._joined([x.shape for x in inputs]))
        start = 0
        for x in inputs:
            self.kernels.put_section(result, x, self.config.axis, start)
            start += x.shape[self.config.axis]
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Every input's section of the gradient."""
        found = []
        start = 0
        for port, x in zip(self.ports, inputs, strict=True):
            dx = self.view(f"{port.name}.gradient", x.shape)
            self.kernels.take_section(dx, gradients[0], self.config.axis, start)
            start += x.shape[self.config.axis]
            found.append(dx)
        return tuple(found)

    def _joined(self, shapes: tuple[Shape, ...] | list[Shape]) -> Shape:
        axis = require_axis(self, shapes[0], self.config.axis)
        before, after = shapes[0][:axis], shapes[0][axis + 1 :]
        if any(shape[:axis] != before or shape[axis + 1 :] != after for shape in shapes):
            listed = ", ".join(map(str, shapes))
            raise ShapeError(f"{self.path}: expected inputs that differ along axis {axis} only, got {listed}")
        return (*before, sum(shape[axis] for shape in shapes), *after)
