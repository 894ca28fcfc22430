"""One value per row of a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from mila.core import ComponentConfig, ComponentType, LeafContext, Run
from mila.core.component import Component
from mila.core.shapes import require_rank
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, gradient, output, saved
from mila.memory.storage import INT32, Shape


class PoolTokensConfig(ComponentConfig):
    """Config of :class:`PoolTokens`.

    Attributes:
        mode: the mean, the first or the last position, or the largest value of each column.
    """

    mode: Literal["mean", "first", "last", "max"] = "mean"


class PoolTokens(Component[PoolTokensConfig]):
    """(B, T, C) to (B, C), over all T positions.

    Among equal largest values the first has the gradient.
    """

    config_class = PoolTokensConfig
    component_type = ComponentType.POOL_TOKENS
    required_kernels = (
        "pool_maximum_forward",
        "pool_maximum_backward",
        "sum_axis",
        "spread_axis",
        "take_section",
        "put_section",
        "fill",
    )

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(B, T, C) to (B, C)."""
        batch, _, width = require_rank(self, context.input_shape, "B, T, C")
        return ((batch, width),)

    @property
    def accepts_prefill_size(self) -> bool:
        """The pool is one of the whole sequence."""
        return False

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """The output, the input's gradient and, of ``max``, where in the sequence each value stood."""
        (shape,) = self.output_shapes(context)
        yield output(shape, context.dtype)
        if context.is_training:
            if self.config.mode == "max":
                yield saved("positions", shape, INT32)
            yield gradient("input", context.input_shape, context.dtype)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Pool."""
        (x,) = inputs
        batch, length, width = x.shape
        result = self.view("output", (batch, width))
        if self.config.mode == "mean":
            self.kernels.sum_axis(result, x, 1, 1 / length)
        elif self.config.mode == "max":
            positions = self.view("positions", (batch, width)) if self.is_training_mode else None
            self.kernels.pool_maximum_forward(result, positions, x)
        else:
            self.kernels.take_section(result.reshape(batch, 1, width), x, 1, self._position(length))
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """An equal share to all positions, or everything to the ones that were taken."""
        (dy,), (batch, length, width) = gradients, inputs[0].shape
        dx = self.view("input.gradient", (batch, length, width))
        if self.config.mode == "mean":
            self.kernels.spread_axis(dx, dy, 1, 1 / length)
        elif self.config.mode == "max":
            self.kernels.pool_maximum_backward(dx, dy, self.view("positions", dy.shape))
        else:
            self.kernels.fill(dx, 0.0)
            self.kernels.put_section(dx, dy.reshape(batch, 1, width), 1, self._position(length))
        return (dx,)

    def _position(self, length: int) -> int:
        return 0 if self.config.mode == "first" else length - 1
