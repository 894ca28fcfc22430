"""Residual connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pydantic import Field

from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Port, Run
from mila.core.bound import Cursor
from mila.core.component import Component
from mila.core.shapes import require_equal
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Over, gradient, output
from mila.memory.storage import Shape


class ResidualConfig(ComponentConfig):
    """Config of :class:`Residual`.

    Attributes:
        scale: factor of the branch.
    """

    scale: float = Field(default=1.0)


class Residual(Component[ResidualConfig]):
    """``stream + scale * branch``."""

    config_class = ResidualConfig
    component_type = ComponentType.RESIDUAL
    ports = (Port("stream"), Port("branch"))
    is_per_position = True
    required_kernels = ("residual_forward", "scale", "copy")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """Both inputs' shape."""
        return (require_equal(self, *context.input_shapes),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """The sum goes over one of its inputs, the stream's gradient over the sum's, where the graph allows it."""
        shape = context.input_shape
        free = [port for port in (1, 0) if context.overwritable[port] is Overwrite.FORWARD]
        yield output(shape, context.dtype, over=free[0] if free else None)
        if context.is_training:
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("stream", shape, context.dtype, port=0, over=over)
            yield gradient("branch", shape, context.dtype, port=1)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Add."""
        stream, branch = inputs
        result = self.view("output", stream.shape)
        self.kernels.residual_forward(result, stream, branch, self.config.scale)
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """Add two rows."""
        stream, branch = inputs
        return self.kernels.bind_residual_forward(self.view("output", stream.shape), stream, branch, self.config.scale)

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The gradient to both, scaled for the branch."""
        (dy,) = gradients
        stream, branch = self.view("stream.gradient", dy.shape), self.view("branch.gradient", dy.shape)
        self.kernels.scale(branch, dy, self.config.scale)
        self.kernels.copy(stream, dy)
        return stream, branch
