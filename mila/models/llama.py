"""Llama and the models that share its graph (Touvron et al. 2023)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mila.components import (
    LastPosition,
    Linear,
    LinearConfig,
    LlamaBlock,
    LlamaBlockConfig,
    RmsNorm,
    RmsNormConfig,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from mila.components.activation import ActivationKind
from mila.components.rope_scaling import RopeScaling
from mila.core import Graph, Reference
from mila.models.language_model import LanguageModel, LanguageModelConfig


class LlamaConfig(LanguageModelConfig):
    """Config of :class:`LlamaTransformer`.

    Attributes:
        num_kv_heads: key/value heads, a divisor of the query heads; as many by default.
        hidden_dim: width of the feed-forward networks.
        head_dim: size D of a head; C / H by default.
        rope_theta: base of the rotary wavelengths.
        rope_scaling: of the rotary frequencies; none by default.
        norm_epsilon: of the norms.
        sliding_window: how many positions a position sees at most; all by default.
        sliding_layers: the layers, in ascending order, that have the window; by default all of them.
        qkv_bias: whether the projections of queries, keys and values have biases.
        out_bias: whether the projections that end the attention branches have biases.
        mlp_bias: whether the projections of the feed-forward networks have biases.
        qk_norm: whether every query and key head is normalized before it is turned.
        gate_activation: the function of the feed-forward networks' gates.
    """

    num_kv_heads: int | None = Field(default=None, gt=0)
    hidden_dim: int = Field(gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    norm_epsilon: float = Field(default=1e-5, gt=0)
    sliding_window: int | None = Field(default=None, gt=0)
    sliding_layers: tuple[int, ...] | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    gate_activation: ActivationKind = "silu"
    tie_word_embeddings: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.block_config(0)
        layers = self.sliding_layers
        if layers is not None:
            if self.sliding_window is None:
                raise ValueError(f"sliding_layers needs sliding_window, got sliding_layers {layers} without one")
            if list(layers) != sorted(set(layers)) or any(not 0 <= layer < self.num_layers for layer in layers):
                raise ValueError(
                    f"sliding_layers must be ascending and between 0 and num_layers - 1 = {self.num_layers - 1}, "
                    f"got {layers}"
                )
        return self

    def block_config(self, layer: int) -> LlamaBlockConfig:
        """The config of the block of ``layer``, counted from 0."""
        has_window = self.sliding_layers is None or layer in self.sliding_layers
        return LlamaBlockConfig(
            embedding_dim=self.embedding_dim,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads or self.num_heads,
            head_dim=self.head_dim,
            hidden_dim=self.hidden_dim,
            max_seq_len=self.max_seq_len,
            rope_theta=self.rope_theta,
            rope_scaling=self.rope_scaling,
            norm_epsilon=self.norm_epsilon,
            sliding_window=self.sliding_window if has_window else None,
            kv_cache=True,
            qkv_bias=self.qkv_bias,
            out_bias=self.out_bias,
            mlp_bias=self.mlp_bias,
            qk_norm=self.qk_norm,
            gate_activation=self.gate_activation,
            trainable=self.trainable,
        )


class LlamaTransformer(LanguageModel[LlamaConfig]):
    """Token embeddings, blocks with rotary positions, a last norm, and a head without bias."""

    config_class = LlamaConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """The forward pass."""
        (ids,), config = inputs, self.config
        embedding = TokenEmbedding(
            "embedding",
            TokenEmbeddingConfig(
                vocab_size=config.vocab_size, embedding_dim=config.embedding_dim, trainable=config.trainable
            ),
        )
        h = graph.add(embedding, ids)
        for layer in range(config.num_layers):
            h = graph.add(LlamaBlock(f"block_{layer}", config.block_config(layer)), h)
        norm = RmsNormConfig(
            normalized_dim=config.embedding_dim, epsilon=config.norm_epsilon, trainable=config.trainable
        )
        h = graph.add(RmsNorm("norm_f", norm), h)
        h = graph.add(LastPosition("last_position"), h)
        head = LinearConfig(
            in_features=config.embedding_dim,
            out_features=config.vocab_size,
            bias=False,
            trainable=config.trainable,
        )
        return graph.add(Linear("lm_head", head, tied_to=embedding if config.tie_word_embeddings else None), h)
