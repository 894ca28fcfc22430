"""Learned positions: a table row added per position."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from mila.core import ComponentType, LeafContext, Overwrite, ParameterizedConfig, Run
from mila.core.component import Component
from mila.core.initializers import normal
from mila.core.shapes import require_rank, require_width
from mila.errors import ShapeError
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

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(B, T, C) to itself, T within the table."""
        shape = require_width(self, require_rank(self, context.input_shape, "B, T, C"), self.config.embedding_dim)
        longest = max(shape[1], context.max_seq_len)
        if longest > self.config.max_seq_len:
            raise ShapeError(f"{self.path}: expected at most {self.config.max_seq_len} positions, got {longest}")
        return (shape,)

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
        furthest = max(run.starts) + x.shape[1]
        if furthest > self.config.max_seq_len and any(
            start + length > self.config.max_seq_len for start, length in zip(run.starts, run.lengths, strict=True)
        ):
            raise ShapeError(f"{self.path}: expected at most {self.config.max_seq_len} positions, got {furthest}")
        result = self.view("output", x.shape)
        self.kernels.position_forward(result, x, self.parameter_array("wpe"), run.starts)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Add to the rows that were used; the input's gradient is the output's."""
        (dy,) = gradients
        table_gradient = self.parameter_gradient("wpe")
        if table_gradient is not None:
            target, accumulate = table_gradient.contribute()
            self.kernels.position_backward(target, dy, run.starts, accumulate)
        dx = self.view("input.gradient", dy.shape)
        self.kernels.copy(dx, dy)
        return (dx,)
