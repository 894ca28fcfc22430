"""Attention of a sequence to a context, with its projections (Vaswani et al. 2017)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mila.components.context_attention import ContextAttention, ContextAttentionConfig
from mila.components.linear import Linear, LinearConfig
from mila.core import ComponentType, CompositeComponent, Graph, ParameterizedConfig, Port, Reference


class CrossAttentionConfig(ParameterizedConfig):
    """Config of :class:`CrossAttention`.

    Attributes:
        embedding_dim: width C of the sequence, and of the heads together.
        num_heads: heads, a divisor of C.
        context_dim: width of the context; C by default.
        bias: whether the projections have biases.
        dropout: probability, on the attention's weights.
    """

    embedding_dim: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    context_dim: int | None = Field(default=None, gt=0)
    bias: bool = True
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.embedding_dim % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} must divide embedding_dim {self.embedding_dim}")
        return self


class CrossAttention(CompositeComponent[CrossAttentionConfig]):
    """``o_proj(attention(q_proj(x), k_proj(context), v_proj(context)))``: every position sees the whole context."""

    config_class = CrossAttentionConfig
    component_type = ComponentType.CROSS_ATTENTION
    ports = (Port("x"), Port("context"))

    @property
    def accepts_prefill_size(self) -> bool:
        """A chunk would cut the context as well."""
        return False

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """X (B, T, C) and context (B, S, context_dim) to (B, T, C)."""
        (x, context), config = inputs, self.config
        width, heads = config.embedding_dim, config.num_heads
        attention = ContextAttentionConfig(num_heads=heads, head_dim=width // heads, probability=config.dropout)
        queries = graph.add(self._projection("q_proj", width), x)
        keys = graph.add(self._projection("k_proj", config.context_dim or width), context)
        values = graph.add(self._projection("v_proj", config.context_dim or width), context)
        h = graph.add(ContextAttention("attention", attention), queries, keys, values)
        return graph.add(self._projection("o_proj", width), h)

    def _projection(self, name: str, in_features: int) -> Linear:
        config = self.config
        return Linear(
            name,
            LinearConfig(
                in_features=in_features,
                out_features=config.embedding_dim,
                bias=config.bias,
                initialization="fan_in",
                trainable=config.trainable,
            ),
        )
