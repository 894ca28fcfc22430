"""A feed-forward layer whose hidden features are gated, each by a projection of its own (Shazeer 2020)."""

from __future__ import annotations

from pydantic import Field

from mila.components.activation import Activation, ActivationConfig, ActivationKind
from mila.components.linear import projection
from mila.components.multiply import Multiply
from mila.core import ComponentType, CompositeComponent, Graph, ParameterizedConfig, Reference


class GatedFeedForwardConfig(ParameterizedConfig):
    """Config of :class:`GatedFeedForward`.

    Attributes:
        embedding_dim: width C of input and output.
        hidden_dim: width F of gate and value.
        bias: whether the projections have biases.
        gate_activation: the function of the gate; ``silu`` makes it SwiGLU.
    """

    embedding_dim: int = Field(gt=0)
    hidden_dim: int = Field(gt=0)
    bias: bool = False
    gate_activation: ActivationKind = "silu"


class GatedFeedForward(CompositeComponent[GatedFeedForwardConfig]):
    """``down(f(gate(x)) * up(x))``: (…, C) to itself; :class:`GatedMlp` has ``gate`` and ``up`` in one projection."""

    config_class = GatedFeedForwardConfig
    component_type = ComponentType.GATED_FEED_FORWARD

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """Project twice, gate, project back."""
        config = self.config
        gate = graph.add(projection("gate", config.embedding_dim, config.hidden_dim, config), *inputs)
        value = graph.add(projection("up", config.embedding_dim, config.hidden_dim, config), *inputs)
        gate = graph.add(Activation("activation", ActivationConfig(kind=config.gate_activation)), gate)
        h = graph.add(Multiply("product"), gate, value)
        return graph.add(projection("down", config.hidden_dim, config.embedding_dim, config), h)
