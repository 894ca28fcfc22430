"""Scaled dot-product attention of queries to keys and values that lie apart, without projections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from mila.core import ComponentConfig, ComponentType, LeafContext, Port, Run
from mila.core.component import Component
from mila.core.initializers import key_of
from mila.core.shapes import require_rank, require_width
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, gradient, output, saved, workspace
from mila.memory.storage import Shape

_MASK_64 = (1 << 64) - 1


class ContextAttentionConfig(ComponentConfig):
    """Config of :class:`ContextAttention`.

    Attributes:
        num_heads: heads H.
        head_dim: size D of a head.
        causal: whether query t sees keys 0 to t only; T and S are equal then.
        probability: share of the weights that become zero in training; the others are divided by what is left.
    """

    num_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    causal: bool = False
    probability: float = Field(default=0.0, ge=0, lt=1)


class ContextAttention(Component[ContextAttentionConfig]):
    """Queries (B, T, H D) attend to keys and values (B, S, H D) of their row, scaled by 1/sqrt(D), to (B, T, H D).

    They see all of them or, if the config says ``causal``, those of positions up to their own; S is T then.

    As in :class:`Attention` there is no matrix of all scores, and dropped weights are drawn again in backward.
    """

    config_class = ContextAttentionConfig
    component_type = ComponentType.CONTEXT_ATTENTION
    ports = (Port("queries"), Port("keys"), Port("values"))
    reads: ClassVar[tuple[str, ...]] = ("queries", "keys", "values", "output")
    is_random = True
    required_kernels = ("context_attention_forward", "context_attention_backward")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The queries' shape."""
        queries, keys, values = (require_rank(self, shape, "B, T, H D") for shape in context.input_shapes)
        for shape in context.input_shapes:
            require_width(self, shape, self.config.num_heads * self.config.head_dim)
        if keys != values or queries[0] != keys[0]:
            raise ShapeError(
                f"{self.path}: expected keys and values of one shape, with a row for each of the {queries[0]} of the "
                f"queries, got {keys} and {values}"
            )
        if self.config.causal and queries[1] != keys[1]:
            raise ShapeError(
                f"{self.path}: causal attention expected as many queries as keys, got {queries[1]} and {keys[1]}"
            )
        return (queries,)

    @property
    def accepts_prefill_size(self) -> bool:
        """A chunk would cut the context as well."""
        return False

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output, row statistics, gradients, and blocks of scores."""
        (batch, length, width), keys, _ = context.input_shapes
        config, kernels, dtype = self.config, context.kernels, context.statistics_dtype
        probability = config.probability if context.is_training else 0.0
        sizes = (length, keys[1], config.num_heads, config.head_dim, probability)
        yield output((batch, length, width), context.dtype)
        elements = kernels.context_attention_forward_workspace(*sizes)
        yield workspace("workspace", (elements,), dtype, during=Lifetime.FORWARD)
        if context.is_training:
            yield saved("log_sum_exp", (batch, config.num_heads, length), dtype)
            for port, shape in enumerate(context.input_shapes):
                yield gradient(self.ports[port].name, shape, context.dtype, port=port)
            elements = kernels.context_attention_backward_workspace(*sizes)
            yield workspace("backward_workspace", (elements,), dtype, during=Lifetime.BACKWARD)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Attend."""
        queries, keys, values = inputs
        result = self.view("output", queries.shape)
        self.kernels.context_attention_forward(
            result,
            self._statistics(queries.shape) if self.has_buffer("log_sum_exp") else None,
            queries,
            keys,
            values,
            self.config.num_heads,
            self.config.causal,
            self._scale,
            self.config.probability if run.is_training else 0.0,
            self._key(run),
            self.workspace(),
        )
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Gradients of queries, keys and values, with the same weights dropped."""
        (queries, keys, values), (dy,) = inputs, gradients
        dqueries, dkeys, dvalues = (
            self.view(f"{port.name}.gradient", x.shape) for port, x in zip(self.ports, inputs, strict=True)
        )
        self.kernels.context_attention_backward(
            dqueries,
            dkeys,
            dvalues,
            self._statistics(queries.shape),
            dy,
            self.view("output", queries.shape),
            queries,
            keys,
            values,
            self.config.num_heads,
            self.config.causal,
            self._scale,
            self.config.probability if run.is_training else 0.0,
            self._key(run),
            self.workspace("backward_workspace"),
        )
        return dqueries, dkeys, dvalues

    def _statistics(self, shape: Shape) -> Array:
        return self.view("log_sum_exp", (shape[0], self.config.num_heads, shape[1]))

    @property
    def _scale(self) -> float:
        return float(self.config.head_dim**-0.5)

    def _key(self, run: Run) -> int:
        return key_of(f"{run.seed}/{self.state_path}/{run.step}") & _MASK_64
