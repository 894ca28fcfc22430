"""Learned positions: a table row added per position."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pydantic import Field

from mila.components.positions import blocks_within, require_positions
from mila.core import ComponentType, LeafContext, Overwrite, ParameterizedConfig, Run
from mila.core.bound import Cursor
from mila.core.component import Component
from mila.core.initializers import normal
from mila.core.shapes import require_rank, require_width
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Over, gradient, output, parameter
from mila.memory.storage import Shape


class LearnedPositionEncodingConfig(ParameterizedConfig):
    """Config of :class:`LearnedPositionEncoding`.

    Attributes:
        max_seq_len: number of positions.
        embedding_dim: width C.
        initial_std: standard deviation of initial values; 1/sqrt(C) by default.
    """

    max_seq_len: int = Field(gt=0)
    embedding_dim: int = Field(gt=0)
    initial_std: float | None = Field(default=None, gt=0)


class LearnedPositionEncoding(Component[LearnedPositionEncodingConfig]):
    """``output[b, t] = input[b, t] + wpe[start[b] + t]`` for (B, T, C)."""

    config_class = LearnedPositionEncodingConfig
    component_type = ComponentType.LEARNED_POSITION_ENCODING
    is_per_position = True
    required_kernels = ("position_forward", "position_backward", "copy")

    def parameters(self) -> Iterator[Declaration]:
        """The table ``wpe``."""
        shape = (self.config.max_seq_len, self.config.embedding_dim)
        deviation = self.config.initial_std or self.config.embedding_dim**-0.5
        yield parameter("wpe", shape, self.dtype, normal(deviation), trainable=self.config.trainable)

    def takes_stored(self, parameter: str) -> bool:
        """The table."""
        return parameter == "wpe"

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(B, T, C) to itself, T within the table."""
        shape = require_width(self, require_rank(self, context.input_shape, "B, T, C"), self.config.embedding_dim)
        return (require_positions(self, shape, context.max_seq_len, self.config.max_seq_len),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output and input gradient, over the input and the output's gradient where the graph allows it."""
        shape = context.input_shape
        yield output(shape, context.dtype, over=0 if context.overwritable[0] is Overwrite.FORWARD else None)
        if context.is_training:
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", shape, context.dtype, over=over)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Add rows of the table."""
        (x,) = inputs
        result = self.view("output", x.shape)
        for rows, length, starts in blocks_within(run, x.shape[1], self.config.max_seq_len):
            inside, outside = (rows, slice(0, length)), (rows, slice(length, None))
            self.kernels.position_forward(result[inside], x[inside], self.parameter_array("wpe"), starts)
            self.kernels.copy(result[outside], x[outside])
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """Add one row of the table."""
        result = self.view("output", inputs[0].shape)
        encode = self.kernels.bind_position_forward(result, inputs[0], self.parameter_array("wpe"))
        return lambda: encode(cursor.position)

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Add to the rows that were used; the input's gradient is the output's."""
        (dy,) = gradients
        table_gradient = self.parameter_gradient("wpe")
        if table_gradient is not None:
            for rows, length, starts in blocks_within(run, dy.shape[1], self.config.max_seq_len):
                target, accumulate = table_gradient.contribute()
                self.kernels.position_backward(target, dy[rows, :length], starts, accumulate)
        dx = self.view("input.gradient", dy.shape)
        self.kernels.copy(dx, dy)
        return (dx,)
