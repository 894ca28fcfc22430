"""The feed-forward network of Llama."""

from __future__ import annotations

from pydantic import Field

from mila.components.activation import ActivationKind
from mila.components.linear import Linear, LinearConfig
from mila.components.swiglu import Swiglu, SwigluConfig
from mila.core import ComponentType, CompositeComponent, Graph, ParameterizedConfig, Reference


class GatedMlpConfig(ParameterizedConfig):
    """Config of :class:`GatedMlp`.

    Attributes:
        embedding_dim: width C of input and output.
        hidden_dim: width of gate and value.
        bias: whether the projections have biases.
        gate_activation: the function of the gate.
    """

    embedding_dim: int = Field(gt=0)
    hidden_dim: int = Field(gt=0)
    bias: bool = False
    gate_activation: ActivationKind = "silu"


class GatedMlp(CompositeComponent[GatedMlpConfig]):
    """``fc_down(f(gate) * up)`` with one projection ``fc_gate_up`` for gate and up."""

    config_class = GatedMlpConfig
    component_type = ComponentType.GATED_MLP

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """Project, gate, project back."""
        config = self.config
        gate_up = LinearConfig(
            in_features=config.embedding_dim,
            out_features=2 * config.hidden_dim,
            bias=config.bias,
            trainable=config.trainable,
        )
        down = LinearConfig(
            in_features=config.hidden_dim,
            out_features=config.embedding_dim,
            bias=config.bias,
            trainable=config.trainable,
        )
        h = graph.add(Linear("fc_gate_up", gate_up), *inputs)
        h = graph.add(Swiglu("gate", SwigluConfig(gate_activation=config.gate_activation)), h)
        return graph.add(Linear("fc_down", down), h)
