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
from mila.core import Graph, Reference
from mila.models.language_model import LanguageModel, LanguageModelConfig


class LlamaConfig(LanguageModelConfig):
    """Config of :class:`LlamaTransformer`.

    Attributes:
        num_kv_heads: key/value heads, a divisor of the query heads; as many by default.
        hidden_dim: width of the feed-forward networks.
        head_dim: size D of a head; C / H by default.
        rope_theta: base of the rotary wavelengths.
        norm_epsilon: of the norms.
        sliding_window: how many positions a position sees at most; all by default.
    """

    num_kv_heads: int | None = Field(default=None, gt=0)
    hidden_dim: int = Field(gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    rope_theta: float = Field(default=10000.0, gt=0)
    norm_epsilon: float = Field(default=1e-5, gt=0)
    sliding_window: int | None = Field(default=None, gt=0)
    tie_word_embeddings: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.block_config()
        return self

    def block_config(self) -> LlamaBlockConfig:
        """The config of every block."""
        return LlamaBlockConfig(
            embedding_dim=self.embedding_dim,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads or self.num_heads,
            head_dim=self.head_dim,
            hidden_dim=self.hidden_dim,
            max_seq_len=self.max_seq_len,
            rope_theta=self.rope_theta,
            norm_epsilon=self.norm_epsilon,
            sliding_window=self.sliding_window,
            kv_cache=True,
            trainable=self.trainable,
        )


class LlamaTransformer(LanguageModel[LlamaConfig]):
    """Token embeddings, blocks with rotary positions, a last norm, and a head; no biases."""

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
        block = config.block_config()
        for layer in range(config.num_layers):
            h = graph.add(LlamaBlock(f"block_{layer}", block), h)
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
