"""Attention of a sequence to itself, with its projections (Vaswani et al. 2017)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mila.components.context_attention import ContextAttention, ContextAttentionConfig
from mila.components.heads import HeadsConfig
from mila.components.linear import projection
from mila.components.rope import Rope, RopeConfig
from mila.core import ComponentType, CompositeComponent, Graph, Reference


class SelfAttentionConfig(HeadsConfig):
    """Config of :class:`SelfAttention`, whose width and heads are those of :class:`HeadsConfig`.

    Attributes:
        causal: whether a position sees only itself and those before.
        dropout: probability, on the attention's weights.
        bias: whether the projections have biases.
        rope: whether queries and keys are turned by their position, half of a head against the other half, base 10000
            (Su et al. 2021); C / H is even then.
        max_seq_len: the longest sequence that ``rope`` allows. A limit only: memory follows the built length.
    """

    causal: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)
    bias: bool = True
    rope: bool = False
    max_seq_len: int = Field(default=1_048_576, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rope and self.head_dim % 2:
            raise ValueError(f"embedding_dim / num_heads must be even with rope, got {self.head_dim}")
        return self


class SelfAttention(CompositeComponent[SelfAttentionConfig]):
    """``o_proj(attention(q_proj(x), k_proj(x), v_proj(x)))``: (B, T, C) to itself; there is no cache."""

    config_class = SelfAttentionConfig
    component_type = ComponentType.SELF_ATTENTION

    @property
    def accepts_prefill_size(self) -> bool:
        """Nothing keeps the keys of earlier chunks."""
        return False

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """Project, turn, attend, project back."""
        config, width = self.config, self.config.embedding_dim
        queries = graph.add(projection("q_proj", width, width, config), *inputs)
        keys = graph.add(projection("k_proj", width, width, config), *inputs)
        values = graph.add(projection("v_proj", width, width, config), *inputs)
        if config.rope:
            rope = RopeConfig(
                num_heads=config.num_heads,
                num_kv_heads=0,
                head_dim=config.head_dim,
                max_seq_len=config.max_seq_len,
            )
            queries = graph.add(Rope("q_rope", rope), queries)
            keys = graph.add(Rope("k_rope", rope), keys)
        attention = ContextAttentionConfig(
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            causal=config.causal,
            probability=config.dropout,
        )
        h = graph.add(ContextAttention("attention", attention), queries, keys, values)
        return graph.add(projection("o_proj", width, width, config), h)
