"""A learned token before each sequence."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from mila.core import ComponentType, LeafContext, ParameterizedConfig, Run
from mila.core.component import Component
from mila.core.initializers import normal
from mila.core.shapes import require_rank, require_width
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, gradient, output, parameter
from mila.memory.storage import Shape


class ClsTokenConfig(ParameterizedConfig):
    """Config of :class:`ClsToken`.

    Attributes:
        embedding_dim: width C.
        initial_std: standard deviation of initial values.
    """

    embedding_dim: int = Field(gt=0)
    initial_std: float = Field(default=0.02, gt=0)


class ClsToken(Component[ClsTokenConfig]):
    """(B, T, C) to (B, T + 1, C): ``token`` (1, 1, C), then the input."""

    config_class = ClsTokenConfig
    component_type = ComponentType.CLS_TOKEN
    required_kernels = ("prepend_forward", "prepend_backward")

    def parameters(self) -> Iterator[Declaration]:
        """The token."""
        shape = (1, 1, self.config.embedding_dim)
        yield parameter("token", shape, self.dtype, normal(self.config.initial_std), trainable=self.config.trainable)

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(B, T, C) to (B, T + 1, C)."""
        shape = require_width(self, require_rank(self, context.input_shape, "B, T, C"), self.config.embedding_dim)
        return ((shape[0], shape[1] + 1, shape[2]),)

    @property
    def accepts_prefill_size(self) -> bool:
        """The token stands before the whole sequence, not before each chunk."""
        return False

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """The output and the gradient of the input."""
        yield output(self.output_shapes(context)[0], context.dtype)
        if context.is_training:
            yield gradient("input", context.input_shape, context.dtype)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Copy the token and the input."""
        (x,) = inputs
        result = self.view("output", (x.shape[0], x.shape[1] + 1, x.shape[2]))
        self.kernels.prepend_forward(result, x, self.parameter_array("token").reshape(-1))
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The first position's gradient is the token's, summed over the batch; the rest is the input's."""
        (dy,) = gradients
        dx = self.view("input.gradient", (dy.shape[0], dy.shape[1] - 1, dy.shape[2]))
        (dtoken,), accumulate = self.contribute("token")
        self.kernels.prepend_backward(dx, None if dtoken is None else dtoken.reshape(-1), dy, accumulate)
        return (dx,)
