"""Attention and a feed-forward layer, each normalized before and added after (Xiong et al. 2020)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mila.components.activation import ActivationKind
from mila.components.feed_forward import FeedForward, FeedForwardConfig
from mila.components.heads import HeadsConfig
from mila.components.layer_norm import LayerNorm, LayerNormConfig
from mila.components.layer_scale import LayerScale, LayerScaleConfig
from mila.components.residual import Residual
from mila.components.rms_norm import RmsNorm, RmsNormConfig
from mila.components.self_attention import SelfAttention, SelfAttentionConfig
from mila.core import Component, ComponentType, CompositeComponent, Graph, Reference


class TransformerBlockConfig(HeadsConfig):
    """Config of :class:`TransformerBlock`, whose width and heads are those of :class:`HeadsConfig`.

    Attributes:
        hidden_dim: width of the feed-forward layer.
        activation: of the feed-forward layer.
        norm: which normalization stands before attention and feed-forward layer.
        causal: whether a position sees only itself and those before.
        dropout: probability, on the attention's weights and after the activation.
        layer_scale: whether each branch has a learned factor for each feature before it joins the stream.
        layer_scale_init: these factors at first.
        epsilon: of the norms.
    """

    hidden_dim: int = Field(gt=0)
    activation: ActivationKind = "gelu"
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    causal: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)
    layer_scale: bool = False
    layer_scale_init: float = 1e-5
    epsilon: float = Field(default=1e-5, gt=0)


class TransformerBlock(CompositeComponent[TransformerBlockConfig]):
    """``h = x + gamma1 * attn(norm1(x))``, then ``h + gamma2 * ffn(norm2(h))``: (B, T, C) to itself."""

    config_class = TransformerBlockConfig
    component_type = ComponentType.TRANSFORMER_BLOCK

    @property
    def accepts_prefill_size(self) -> bool:
        """Nothing keeps the keys of earlier chunks."""
        return False

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """Attention branch, feed-forward branch."""
        (x,), config = inputs, self.config
        attention = SelfAttentionConfig(
            embedding_dim=config.embedding_dim,
            num_heads=config.num_heads,
            causal=config.causal,
            dropout=config.dropout,
            trainable=config.trainable,
        )
        h = graph.add(self._norm("norm1"), x)
        h = graph.add(SelfAttention("attn", attention), h)
        h = self._scaled(graph, "gamma1", h)
        x = graph.add(Residual("residual1"), x, h)
        feed_forward = FeedForwardConfig(
            embedding_dim=config.embedding_dim,
            hidden_dim=config.hidden_dim,
            activation=config.activation,
            dropout=config.dropout,
            trainable=config.trainable,
        )
        h = graph.add(self._norm("norm2"), x)
        h = graph.add(FeedForward("ffn", feed_forward), h)
        h = self._scaled(graph, "gamma2", h)
        return graph.add(Residual("residual2"), x, h)

    def _norm(self, name: str) -> Component[Any]:
        config = self.config
        if config.norm == "rms_norm":
            return RmsNorm(
                name,
                RmsNormConfig(normalized_dim=config.embedding_dim, epsilon=config.epsilon, trainable=config.trainable),
            )
        return LayerNorm(
            name,
            LayerNormConfig(normalized_dim=config.embedding_dim, epsilon=config.epsilon, trainable=config.trainable),
        )

    def _scaled(self, graph: Graph, name: str, x: Reference) -> Reference:
        """``x`` with its learned factors, which are stored under the name alone."""
        config = self.config
        if not config.layer_scale:
            return x
        scale = LayerScale(
            name,
            LayerScaleConfig(
                width=config.embedding_dim, init_value=config.layer_scale_init, trainable=config.trainable
            ),
        )
        scale.override_parameter("gamma", state_name="")
        return graph.add(scale, x)
