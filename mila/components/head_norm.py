"""RMS norm of every query and key head of a packed projection (Qwen3's q_norm and k_norm, Yang et al. 2025)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pydantic import Field

from mila.core import ComponentType, LeafContext, Overwrite, ParameterizedConfig, Run
from mila.core.bound import Cursor
from mila.core.component import Component
from mila.core.initializers import ones
from mila.core.shapes import require_rank, require_width, row_count
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, Over, gradient, output, parameter, saved, workspace
from mila.memory.storage import Shape


class HeadNormConfig(ParameterizedConfig):
    """Config of :class:`HeadNorm`.

    Attributes:
        num_heads: query heads H.
        num_kv_heads: key heads K, and as many value heads, which pass unchanged.
        head_dim: size D of a head.
        epsilon: added to the mean square of a head.
    """

    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    epsilon: float = Field(default=1e-5, gt=0)

    @property
    def packed_width(self) -> int:
        """Width (H + 2 K) D of the input."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


class HeadNorm(Component[HeadNormConfig]):
    """``x / sqrt(mean(x²) + epsilon) * weight`` over each query head and each key head of (B, T, (H + 2 K) D).

    In training, forward leaves the heads before the weights for backward, so that the output may be written over the
    input in both modes.
    """

    config_class = HeadNormConfig
    component_type = ComponentType.HEAD_NORM
    is_per_position = True
    required_kernels = ("head_norm_forward", "head_norm_backward")

    def parameters(self) -> Iterator[Declaration]:
        """``query_weight`` and ``key_weight``, each shared by all heads of its kind."""
        shape, trainable = (self.config.head_dim,), self.config.trainable
        for name in ("query_weight", "key_weight"):
            yield parameter(name, shape, self.dtype, ones, trainable=trainable)

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        shape = require_rank(self, context.input_shape, "B, T, (H + 2 K) D")
        return (require_width(self, shape, self.config.packed_width),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output and gradient in place where the graph allows it; what backward reads is saved."""
        shape, config, kernels = context.input_shape, self.config, context.kernels
        rows, sizes = row_count(shape), (config.num_heads, config.num_kv_heads, config.head_dim)
        yield output(shape, context.dtype, over=0 if context.overwritable[0] is Overwrite.FORWARD else None)
        yield saved("rstd", (rows, self._normed_heads), context.statistics_dtype)
        elements = kernels.head_norm_forward_workspace(rows, *sizes)
        yield workspace("forward_workspace", (elements,), context.statistics_dtype, during=Lifetime.FORWARD)
        if context.is_training:
            yield saved("normal", (rows, self._normed_heads * config.head_dim), context.dtype)
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", shape, context.dtype, over=over)
            elements = kernels.head_norm_backward_workspace(rows, *sizes)
            yield workspace("workspace", (elements,), context.statistics_dtype, during=Lifetime.BACKWARD)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Normalize heads."""
        (x,), config = inputs, self.config
        result, rows = self.view("output", x.shape), row_count(x.shape)
        self.kernels.head_norm_forward(
            result,
            self._normal(rows) if self.has_buffer("normal") else None,
            self.view("rstd", (rows, self._normed_heads)),
            x,
            self.parameter_array("query_weight"),
            self.parameter_array("key_weight"),
            config.num_heads,
            config.num_kv_heads,
            config.epsilon,
            self.workspace("forward_workspace"),
        )
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """Normalize the heads of one position."""
        (x,), config = inputs, self.config
        return self.kernels.bind_head_norm_forward(
            self.view("output", x.shape),
            x,
            self.parameter_array("query_weight"),
            self.parameter_array("key_weight"),
            config.num_heads,
            config.num_kv_heads,
            config.epsilon,
            self.workspace("forward_workspace"),
        )

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Gradients of the input and of both weights."""
        (dy,), config = gradients, self.config
        dx, rows = self.view("input.gradient", dy.shape), row_count(dy.shape)
        (query_weight, key_weight), accumulate = self.contribute("query_weight", "key_weight")
        self.kernels.head_norm_backward(
            dx,
            query_weight,
            key_weight,
            self._normal(rows),
            self.view("rstd", (rows, self._normed_heads)),
            dy,
            self.parameter_array("query_weight"),
            self.parameter_array("key_weight"),
            config.num_heads,
            config.num_kv_heads,
            accumulate,
            self.workspace(),
        )
        return (dx,)

    @property
    def _normed_heads(self) -> int:
        return self.config.num_heads + self.config.num_kv_heads

    def _normal(self, rows: int) -> Array:
        return self.view("normal", (rows, self._normed_heads * self.config.head_dim))
