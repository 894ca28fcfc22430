"""The owner of a component names, initializes and freezes its parameters one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mila import BuildContext, CompositeComponent, Graph, Network, Reference, RuntimeMode
from mila.components import LayerScale, LayerScaleConfig, Linear, LinearConfig
from mila.core.initializers import constant
from mila.errors import ConfigurationError, LifecycleError
from tests.core.parts import EmptyConfig

TRAINING = RuntimeMode.TRAINING
CONTEXT = BuildContext((2, 3), TRAINING)


class Branch(CompositeComponent[EmptyConfig]):
    """A projection that is called otherwise, begins with threes and keeps its bias, and a scale stored as the child."""

    config_class = EmptyConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        linear = Linear("linear", LinearConfig(in_features=3, out_features=3))
        linear.override_parameter("weight", state_name="kernel")
        linear.override_parameter("weight", initializer=constant(3.0))
        linear.override_parameter("bias", trainable=False)
        scale = LayerScale("gamma", LayerScaleConfig(width=3))
        scale.override_parameter("gamma", state_name="")
        return graph.add(scale, graph.add(linear, *inputs))


class Whole(Network[EmptyConfig]):
    """The branch in a network."""

    config_class = EmptyConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        return graph.add(Branch("branch"), *inputs)


def built() -> Whole:
    network = Whole("network", device="cpu")
    network.build(CONTEXT)
    return network


def test_names_are_the_owners_everywhere(tmp_path: Path) -> None:
    """Lists, loading, files and plans agree; an empty name is the path of the component alone."""
    network = built()
    names = ["branch.linear.kernel", "branch.linear.bias", "branch.gamma"]
    assert network.get_parameter_names() == names
    network.load_parameter("branch.linear.kernel", np.eye(3, dtype=np.float32))
    network.save_weights(tmp_path / "weights.safetensors")
    again = built()
    assert again.load_weights(tmp_path / "weights.safetensors").loaded == 3
    assert (again.get_parameters()[0] == np.eye(3)).all()
    planned = {(buffer.path, buffer.name) for buffer in network.plan(CONTEXT).buffers}
    assert {("network.branch.linear", "kernel"), ("network.branch.linear", "kernel.gradient")} <= planned
    assert ("network.branch.linear", "weight") not in planned


def test_initial_values_and_freezing_are_the_owners() -> None:
    """What one call says of a parameter stays when another says more."""
    network = built()
    weight, bias, _ = network.get_parameters()
    assert (weight == 3).all()
    x = np.ones((2, 3), np.float32)
    network.backward(x, np.ones_like(network.forward(x)))
    gradients = network.get_gradients()
    assert gradients[1] is None
    assert gradients[0] is not None
    assert gradients[2] is not None
    assert bias.shape == (3,)


def test_a_frozen_parameter_has_no_gradient_in_the_plan() -> None:
    free, frozen = (Linear("linear", LinearConfig(in_features=3, out_features=3)) for _ in range(2))
    frozen.override_parameter("weight", trainable=False)
    saved = free.get_required_memory(CONTEXT).total_bytes - frozen.get_required_memory(CONTEXT).total_bytes
    assert saved >= 9 * 4


def test_only_parameters_that_exist_before_the_build() -> None:
    linear = Linear("linear", LinearConfig(in_features=3, out_features=3), device="cpu")
    with pytest.raises(ConfigurationError, match="linear: has no parameter 'wte'"):
        linear.override_parameter("wte", trainable=False)
    linear.build(CONTEXT)
    with pytest.raises(LifecycleError, match="linear: is built"):
        linear.override_parameter("weight", trainable=False)
