"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from mila.components import (
    Dropout,
    DropoutConfig,
    GptBlock,
    GptBlockConfig,
    LastPosition,
    LayerNorm,
    LayerNormConfig,
    LearnedPositionEncoding,
    LearnedPositionEncodingConfig,
    Linear,
    LinearConfig,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from mila.components.activation import ActivationKind
from mila.core import Graph, Reference
from mila.models.language_model import LanguageModel, LanguageModelConfig


class GptConfig(LanguageModelConfig):
    """Config of :class:`GptTransformer`.

    Attributes:
        hidden_dim: width of the feed-forward networks; 4 C by default.
        bias: whether projections and norms have biases; the head has none.
        activation: of the feed-forward networks.
        norm_epsilon: of the norms.
        dropout: probability, on the embeddings and on both branches of each block.
        attention_scaling: the factor of the attention's scores: 1/sqrt(head size); 1; or, in layer i counted from 1,
            1/(i sqrt(head size)).
        initial_std: of initial weights; projections that end a branch have it divided by sqrt(2 layers).
    """

    hidden_dim: int | None = Field(default=None, gt=0)
    bias: bool = True
    activation: ActivationKind = "gelu_tanh"
    norm_epsilon: float = Field(default=1e-5, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    attention_scaling: Literal["head_dim", "none", "head_dim_and_layer"] = "head_dim"
    initial_std: float = Field(default=0.02, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.block_config(0)
        return self

    def block_config(self, layer: int) -> GptBlockConfig:
        """The config of the block of ``layer``, counted from 0."""
        return GptBlockConfig(
            embedding_dim=self.embedding_dim,
            num_heads=self.num_heads,
            hidden_dim=self.hidden_dim,
            bias=self.bias,
            activation=self.activation,
            norm_epsilon=self.norm_epsilon,
            dropout=self.dropout,
            attention_scale=self._attention_scale(layer),
            kv_cache=True,
            initial_std=self.initial_std,
            residual_initial_std=self.initial_std / math.sqrt(2 * max(1, self.num_layers)),
            trainable=self.trainable,
        )

    def _attention_scale(self, layer: int) -> float | None:
        if self.attention_scaling == "head_dim":
            return None
        if self.attention_scaling == "none":
            return 1.0
        return 1.0 / (math.sqrt(self.embedding_dim // self.num_heads) * (layer + 1))


class GptTransformer(LanguageModel[GptConfig]):
    """Token and position embeddings, blocks, a last norm, and a head without bias."""

    config_class = GptConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """The forward pass."""
        (ids,), config = inputs, self.config
        width, deviation = config.embedding_dim, config.initial_std
        embedding = TokenEmbedding(
            "embedding",
            TokenEmbeddingConfig(
                vocab_size=config.vocab_size,
                embedding_dim=width,
                initial_std=deviation,
                trainable=config.trainable,
            ),
        )
        positions = LearnedPositionEncodingConfig(
            max_seq_len=config.max_seq_len, embedding_dim=width, initial_std=deviation, trainable=config.trainable
        )
        h = graph.add(embedding, ids)
        h = graph.add(LearnedPositionEncoding("positions", positions), h)
        h = graph.add(Dropout("dropout", DropoutConfig(probability=config.dropout)), h)
        for layer in range(config.num_layers):
            h = graph.add(GptBlock(f"block_{layer}", config.block_config(layer)), h)
        norm = LayerNormConfig(
            normalized_dim=width, bias=config.bias, epsilon=config.norm_epsilon, trainable=config.trainable
        )
        h = graph.add(LayerNorm("ln_f", norm), h)
        h = graph.add(LastPosition("last_position"), h)
        head = LinearConfig(
            in_features=width,
            out_features=config.vocab_size,
            bias=False,
            initial_std=deviation,
            trainable=config.trainable,
        )
        return graph.add(Linear("lm_head", head, tied_to=embedding if config.tie_word_embeddings else None), h)
