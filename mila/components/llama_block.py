"""The transformer block of Llama (Touvron et al. 2023)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mila.components.activation import ActivationKind
from mila.components.attention import Attention, AttentionConfig
from mila.components.gated_mlp import GatedMlp, GatedMlpConfig
from mila.components.head_norm import HeadNorm, HeadNormConfig
from mila.components.linear import Linear, LinearConfig
from mila.components.residual import Residual
from mila.components.rms_norm import RmsNorm, RmsNormConfig
from mila.components.rope import Rope, RopeConfig
from mila.components.rope_scaling import RopeScaling
from mila.core import ComponentType, CompositeComponent, Graph, ParameterizedConfig, Reference


class LlamaBlockConfig(ParameterizedConfig):
    """Config of :class:`LlamaBlock`.

    Attributes:
        embedding_dim: width C.
        num_heads: query heads H.
        num_kv_heads: key/value heads K, a divisor of H.
        head_dim: size D of a head; C / H by default.
        hidden_dim: width of the feed-forward network.
        max_seq_len: the longest sequence allowed.
        rope_theta: base of the rotary wavelengths.
        rope_scaling: of the rotary frequencies; none by default.
        norm_epsilon: of the norms, ``qk_norm`` included.
        sliding_window: how many positions a position sees at most; all by default.
        kv_cache: whether an inference build keeps keys and values.
        qkv_bias: whether the projection of queries, keys and values has a bias.
        out_bias: whether the projection that ends the attention branch has a bias.
        mlp_bias: whether the projections of the feed-forward network have biases.
        qk_norm: whether every query and key head is normalized before it is turned.
        gate_activation: the function of the feed-forward network's gate.
    """

    embedding_dim: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    hidden_dim: int = Field(gt=0)
    max_seq_len: int = Field(gt=0)
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    norm_epsilon: float = Field(default=1e-5, gt=0)
    sliding_window: int | None = Field(default=None, gt=0)
    kv_cache: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    gate_activation: ActivationKind = "silu"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} must divide num_heads {self.num_heads}")
        if self.head_dim is None and self.embedding_dim % self.num_heads:
            raise ValueError(
                f"num_heads {self.num_heads} must divide embedding_dim {self.embedding_dim}, or give head_dim"
            )
        if self.head_size % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {self.head_size}")
        return self

    @property
    def head_size(self) -> int:
        """Size D of a head."""
        return self.head_dim or self.embedding_dim // self.num_heads


class LlamaBlock(CompositeComponent[LlamaBlockConfig]):
    """``x + attention(norm(x))`` with rotary positions, then ``x + gated_mlp(norm(x))``."""

    config_class = LlamaBlockConfig
    component_type = ComponentType.LLAMA_BLOCK

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """Attention branch, feed-forward branch."""
        (x,), config = inputs, self.config
        norm = RmsNormConfig(
            normalized_dim=config.embedding_dim, epsilon=config.norm_epsilon, trainable=config.trainable
        )
        h = graph.add(RmsNorm("norm_1", norm), x)
        h = self._attend(graph, h)
        x = graph.add(Residual("residual_1"), x, h)
        h = graph.add(RmsNorm("norm_2", norm), x)
        mlp = GatedMlpConfig(
            embedding_dim=config.embedding_dim,
            hidden_dim=config.hidden_dim,
            bias=config.mlp_bias,
            gate_activation=config.gate_activation,
            trainable=config.trainable,
        )
        h = graph.add(GatedMlp("mlp", mlp), h)
        return graph.add(Residual("residual_2"), x, h)

    def _attend(self, graph: Graph, x: Reference) -> Reference:
        config = self.config
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_size
        qkv_width = (heads + 2 * kv_heads) * size
        h = graph.add(Linear("qkv_proj", self._linear(config.embedding_dim, qkv_width, config.qkv_bias)), x)
        if config.qk_norm:
            head_norm = HeadNormConfig(
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=size,
                epsilon=config.norm_epsilon,
                trainable=config.trainable,
            )
            h = graph.add(HeadNorm("qk_norm", head_norm), h)
        rope = RopeConfig(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=size,
            theta=config.rope_theta,
            scaling=config.rope_scaling,
            max_seq_len=config.max_seq_len,
        )
        h = graph.add(Rope("rope", rope), h)
        attention = AttentionConfig(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=size,
            sliding_window=config.sliding_window,
            kv_cache=config.kv_cache,
        )
        h = graph.add(Attention("attention", attention), h)
        return graph.add(Linear("out_proj", self._linear(heads * size, config.embedding_dim, config.out_bias)), h)

    def _linear(self, in_features: int, out_features: int, bias: bool) -> LinearConfig:
        return LinearConfig(
            in_features=in_features, out_features=out_features, bias=bias, trainable=self.config.trainable
        )
