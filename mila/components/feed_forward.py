"""Two projections with an activation between them (Vaswani et al. 2017)."""

from __future__ import annotations

from pydantic import Field

from mila.components.activation import Activation, ActivationConfig, ActivationKind
from mila.components.dropout import Dropout, DropoutConfig
from mila.components.linear import projection
from mila.core import ComponentType, CompositeComponent, Graph, ParameterizedConfig, Reference


class FeedForwardConfig(ParameterizedConfig):
    """Config of :class:`FeedForward`.

    Attributes:
        embedding_dim: width C of input and output.
        hidden_dim: width F between the projections.
        activation: the function between them.
        dropout: probability, after the activation.
        bias: whether the projections have biases.
    """

    embedding_dim: int = Field(gt=0)
    hidden_dim: int = Field(gt=0)
    activation: ActivationKind = "gelu"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    bias: bool = True


class FeedForward(CompositeComponent[FeedForwardConfig]):
    """``down(dropout(activation(up(x))))``: (…, C) to itself."""

    config_class = FeedForwardConfig
    component_type = ComponentType.FEED_FORWARD

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """Project, activate, drop, project back."""
        config = self.config
        h = graph.add(projection("up", config.embedding_dim, config.hidden_dim, config), *inputs)
        h = graph.add(Activation("activation", ActivationConfig(kind=config.activation)), h)
        h = graph.add(Dropout("dropout", DropoutConfig(probability=config.dropout)), h)
        return graph.add(projection("down", config.hidden_dim, config.embedding_dim, config), h)
