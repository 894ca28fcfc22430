"""The transformer block of GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from pydantic import Field

from mila.components.activation import ActivationKind
from mila.components.attention import Attention, AttentionConfig
from mila.components.dropout import Dropout, DropoutConfig
from mila.components.heads import HeadsConfig
from mila.components.layer_norm import LayerNorm, LayerNormConfig
from mila.components.linear import Linear, LinearConfig
from mila.components.mlp import Mlp, MlpConfig
from mila.components.residual import Residual
from mila.core import ComponentType, CompositeComponent, Graph, Reference


class GptBlockConfig(HeadsConfig):
    """Config of :class:`GptBlock`, whose width and heads are those of :class:`HeadsConfig`.

    Attributes:
        hidden_dim: width of the feed-forward network; 4 C by default.
        bias: whether projections and norms have biases.
        activation: of the feed-forward network.
        norm_epsilon: of the norms.
        dropout: probability, on both branches before they join the stream.
        attention_scale: factor of the attention's scores; 1/sqrt(head size) by default.
        kv_cache: whether an inference build keeps keys and values.
        initial_std: of the weights; the components' own initial values by default.
        residual_initial_std: of the two projections that end a branch.
    """

    hidden_dim: int | None = Field(default=None, gt=0)
    bias: bool = True
    activation: ActivationKind = "gelu_tanh"
    norm_epsilon: float = Field(default=1e-5, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    attention_scale: float | None = Field(default=None, gt=0)
    kv_cache: bool = False
    initial_std: float | None = Field(default=None, gt=0)
    residual_initial_std: float | None = Field(default=None, gt=0)


class GptBlock(CompositeComponent[GptBlockConfig]):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    config_class = GptBlockConfig
    component_type = ComponentType.GPT_BLOCK

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """Attention branch, feed-forward branch."""
        (x,), config = inputs, self.config
        width = config.embedding_dim
        norm = LayerNormConfig(
            normalized_dim=width, bias=config.bias, epsilon=config.norm_epsilon, trainable=config.trainable
        )
        dropout = DropoutConfig(probability=config.dropout)
        h = graph.add(LayerNorm("ln_1", norm), x)
        h = graph.add(Linear("qkv_proj", self._linear(3 * width, config.initial_std)), h)
        attention = AttentionConfig(
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale,
            kv_cache=config.kv_cache,
        )
        h = graph.add(Attention("attention", attention), h)
        h = graph.add(Linear("out_proj", self._linear(width, config.residual_initial_std)), h)
        h = graph.add(Dropout("dropout_1", dropout), h)
        x = graph.add(Residual("residual_1"), x, h)
        h = graph.add(LayerNorm("ln_2", norm), x)
        mlp = MlpConfig(
            embedding_dim=width,
            hidden_dim=config.hidden_dim or 4 * width,
            bias=config.bias,
            activation=config.activation,
            initial_std=config.initial_std,
            output_initial_std=config.residual_initial_std,
            trainable=config.trainable,
        )
        h = graph.add(Mlp("mlp", mlp), h)
        h = graph.add(Dropout("dropout_2", dropout), h)
        return graph.add(Residual("residual_2"), x, h)

    def _linear(self, out_features: int, initial_std: float | None) -> LinearConfig:
        return LinearConfig(
            in_features=self.config.embedding_dim,
            out_features=out_features,
            bias=self.config.bias,
            initial_std=initial_std,
            trainable=self.config.trainable,
        )
