"""The feed-forward network of GPT."""

from __future__ import annotations

from pydantic import Field

from mila.components.activation import Activation, ActivationConfig, ActivationKind
from mila.components.linear import Linear, LinearConfig
from mila.core import ComponentType, CompositeComponent, Graph, ParameterizedConfig, Reference


class MlpConfig(ParameterizedConfig):
    """Config of :class:`Mlp`.

    Attributes:
        embedding_dim: width C of input and output.
        hidden_dim: width between the projections.
        bias: whether the projections have biases.
        activation: the function between them.
        initial_std: of the first projection's weight; uniform Xavier by default.
        output_initial_std: of the second projection's weight.
    """

    embedding_dim: int = Field(gt=0)
    hidden_dim: int = Field(gt=0)
    bias: bool = True
    activation: ActivationKind = "gelu_tanh"
    initial_std: float | None = Field(default=None, gt=0)
    output_initial_std: float | None = Field(default=None, gt=0)


class Mlp(CompositeComponent[MlpConfig]):
    """``fc_2(activation(fc_1(x)))``."""

    config_class = MlpConfig
    component_type = ComponentType.MLP

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """Two projections around an activation."""
        config = self.config
        first = LinearConfig(
            in_features=config.embedding_dim,
            out_features=config.hidden_dim,
            bias=config.bias,
            initial_std=config.initial_std,
            trainable=config.trainable,
        )
        second = LinearConfig(
            in_features=config.hidden_dim,
            out_features=config.embedding_dim,
            bias=config.bias,
            initial_std=config.output_initial_std,
            trainable=config.trainable,
        )
        h = graph.add(Linear("fc_1", first), *inputs)
        h = graph.add(Activation("activation", ActivationConfig(kind=config.activation)), h)
        return graph.add(Linear("fc_2", second), h)
