"""Attention of a sequence to a context, with its projections (Vaswani et al. 2017)."""

from __future__ import annotations

from pydantic import Field

from mila.components.context_attention import ContextAttention, ContextAttentionConfig
from mila.components.heads import HeadsConfig
from mila.components.linear import projection
from mila.core import ComponentType, CompositeComponent, Graph, Port, Reference


class CrossAttentionConfig(HeadsConfig):
    """Config of :class:`CrossAttention`, whose width and heads are those of :class:`HeadsConfig`.

    Attributes:
        context_dim: width of the context; C by default.
        bias: whether the projections have biases.
        dropout: probability, on the attention's weights.
    """

    context_dim: int | None = Field(default=None, gt=0)
    bias: bool = True
    dropout: float = Field(default=0.0, ge=0, lt=1)


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
        width, context_width = config.embedding_dim, config.context_dim or config.embedding_dim
        attention = ContextAttentionConfig(
            num_heads=config.num_heads, head_dim=config.head_dim, probability=config.dropout
        )
        queries = graph.add(projection("q_proj", width, width, config), x)
        keys = graph.add(projection("k_proj", context_width, width, config), context)
        values = graph.add(projection("v_proj", context_width, width, config), context)
        h = graph.add(ContextAttention("attention", attention), queries, keys, values)
        return graph.add(projection("o_proj", width, width, config), h)
