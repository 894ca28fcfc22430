"""Operators of a user's own: with a component, without one, and with one that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import PositiveInt

import mila
from mila import BuildContext, CompositeComponent, DefinedNetwork, Graph, Reference, RuntimeMode
from mila.components import (
    Activation,
    ActivationConfig,
    Add,
    LayerNorm,
    LayerNormConfig,
    LearnedScale,
    LearnedScaleConfig,
    Linear,
    LinearConfig,
    Split,
    SplitConfig,
)
from mila.core import ComponentConfig
from mila.devices import ExecutionContext
from mila.network_language import BUILT_IN, Argument, Example, NodeShapes, Operator, plan_from_json
from tests.network_language.building import built, context, inputs_of, named_gradients, named_parameters, outputs_of
from tests.promises.case import Case
from tests.promises.test_p5_gradients import wrong_gradients

TRAINING = RuntimeMode.TRAINING
EXAMPLE = Example(source="relu()", input_shape=("B", 6), output_shape=("B", 6))
SOURCE = "linear(4)\nbranch(3)\ngain(init={'gain': 0.5})\nlinear()"


class BranchConfig(ComponentConfig):
    """Widths."""

    width: PositiveInt
    hidden: PositiveInt


class Branch(CompositeComponent[BranchConfig]):
    """``x + down(tanh(up(x)))``."""

    config_class = BranchConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        width, hidden = self.config.width, self.config.hidden
        h = graph.add(Linear("up", LinearConfig(in_features=width, out_features=hidden)), *inputs)
        h = graph.add(Activation("activation", ActivationConfig(kind="tanh")), h)
        h = graph.add(Linear("down", LinearConfig(in_features=hidden, out_features=width)), h)
        return graph.add(Add("sum"), *inputs, h)


def declared(alias: str, **changes: Any) -> Operator:
    return Operator(
        **{
            "alias": alias,
            "identity": f"{alias}@1",
            "category": "mine",
            "summary": "Mine.",
            "documentation": "Of my own.",
            "pattern": "x[B, ..., D] -> out[B, ..., D]",
            "examples": (EXAMPLE,),
            **changes,
        }
    )


def branch(name: str, node: NodeShapes) -> Branch:
    return Branch(name, BranchConfig(width=node.width, hidden=node.arguments["hidden"]))


BRANCH = declared("branch", component=branch, arguments=(Argument(name="hidden", type="int", help="Features."),))
GAIN = declared(
    "gain",
    component=lambda name, node: LearnedScale(name, LearnedScaleConfig(init_value=1.0)),
    parameter_names={"gamma": "gain"},
)
MINE = BUILT_IN.extended(BRANCH, GAIN)


def network(source: str = SOURCE, registry: Any = MINE, **arguments: Any) -> DefinedNetwork:
    given = {"input_shape": ("B", 6), "output_shape": ("B", 6), "device": "cpu", "seed": 3, **arguments}
    return mila.network(source, registry=registry, **given)


def test_a_network_with_operators_of_ones_own() -> None:
    made = network()
    build_context = context(made, TRAINING)
    required = made.get_required_memory(build_context)
    made.build(build_context)
    assert made.get_memory_stats() == required
    parameters = named_parameters(made)
    inner = ["n1.up.weight", "n1.up.bias", "n1.down.weight", "n1.down.bias"]
    assert [*parameters] == ["n0.weight", "n0.bias", *inner, "n2.gain", "n3.weight", "n3.bias"]
    assert {name: array.shape for name, array in parameters.items()} == made.resolved.parameter_shapes()
    assert parameters["n2.gain"] == 0.5
    assert isinstance(made["n1"], Branch)
    (x,) = inputs_of(made)
    (before,) = outputs_of(made, x)
    made.load_parameter("n2.gain", np.zeros(1, np.float32))
    (after,) = outputs_of(made, x)
    assert np.array_equal(after, np.broadcast_to(parameters["n3.bias"], after.shape))
    assert not np.array_equal(after, before)


def test_their_gradients_are_slopes() -> None:
    def construct(dtype: str, seed: int) -> DefinedNetwork:
        return network(compute_dtype=dtype, seed=seed, device=None)

    assert wrong_gradients(Case("mine", construct, (), (3, 6)), ExecutionContext("cpu", threads=2)) == []


def test_their_parameters_are_frozen_and_set_by_the_names_of_the_network() -> None:
    made = built(
        network("branch(3, trainable={'up.weight': False}, init={'up.bias': 2})\ngain(trainable=False)"), TRAINING
    )
    inputs = inputs_of(made)
    made.backward(*inputs, np.ones_like(made.forward(*inputs)))
    frozen = {name for name, array in named_gradients(made).items() if array is None}
    assert frozen == {"n0.up.weight", "n1.gain"}
    assert np.array_equal(named_parameters(made)["n0.up.bias"], [2, 2, 2])
    with pytest.raises(mila.NetworkError, match="no parameter 'gamma'; its parameters: gain") as caught:
        network("gain(init={'gamma': 1})")
    assert caught.value.code == "E_INITIALIZATION"


def test_they_are_saved_and_need_their_registry(tmp_path: Path) -> None:
    made = built(network(), TRAINING)
    made.save_weights(tmp_path / "weights.safetensors")
    again = DefinedNetwork("again", made.config, registry=MINE, device="cpu", seed=99)
    built(again, TRAINING).load_weights(tmp_path / "weights.safetensors")
    inputs = inputs_of(made)
    assert np.array_equal(outputs_of(again, *inputs), outputs_of(made, *inputs))
    for needs in (lambda: plan_from_json(made.config.plan), lambda: DefinedNetwork("again", made.config)):
        with pytest.raises(mila.NetworkError, match="branch@1") as caught:
            needs()
        assert caught.value.code == "E_STATE_VERSION"


def split_in_two(name: str, node: NodeShapes) -> Split:
    return Split(name, SplitConfig(size=1))


def of_a_negative_width(name: str, node: NodeShapes) -> Branch:
    return Branch(name, BranchConfig(width=-1, hidden=3))


def layer_norm(name: str, node: NodeShapes) -> LayerNorm:
    return LayerNorm(name, LayerNormConfig(normalized_dim=node.width))


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({}, "E_OPERATOR", "mine names no component"),
        ({"component": split_in_two}, "E_REGISTRY", "1 inputs and 1 outputs, got Split with 1 and 2"),
        ({"component": lambda name, node: Add(name)}, "E_REGISTRY", "1 inputs and 1 outputs, got Add with 2 and 1"),
        ({"component": of_a_negative_width}, "E_ARGUMENT", "greater than 0"),
        ({"component": lambda name, node: None}, "E_REGISTRY", "a component called mine_node, got NoneType"),
        ({"component": lambda name, node: Activation("zzz")}, "E_REGISTRY", "called mine_node, got Activation zzz"),
        ({"component": layer_norm, "parameter_names": {"wieght": "w"}}, "E_REGISTRY", "no parameter 'wieght'"),
        ({"component": layer_norm, "parameter_names": {"weight": "bias"}}, "E_REGISTRY", "both be called 'bias'"),
        ({"component": layer_norm, "parameter_names": {"weight": "a b/.."}}, "E_REGISTRY", "got 'a b/..'"),
    ],
)
def test_a_component_that_does_not_fit(changes: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(mila.NetworkError, match=message) as caught:
        network("relu()\nmine(name='mine_node')", BUILT_IN.extended(declared("mine", **changes)))
    error = caught.value
    assert (error.code, error.node, error.line, error.column) == (code, "mine_node", 2, 1)


def test_without_a_component_it_is_resolved() -> None:
    registry = BUILT_IN.extended(declared("mine"))
    resolved = mila.resolve("linear()\nmine()", input_shape=("B", 6), output_shape=("B", 3), registry=registry)
    assert [node.output_shapes for node in resolved.nodes] == [{"out": ("B", 3)}] * 2


class Narrower(CompositeComponent[BranchConfig]):
    """Another width than its operator says."""

    config_class = BranchConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        return graph.add(Linear("up", LinearConfig(in_features=6, out_features=3)), *inputs)


def test_a_component_of_another_shape_is_noticed_before_anything_is_allocated() -> None:
    """The output would not be what the table says."""
    operator = declared("mine", component=lambda name, node: Narrower(name, BranchConfig(width=6, hidden=3)))
    made = network("mine()", BUILT_IN.extended(operator))
    with pytest.raises(mila.NetworkError, match=r"mine: out is \[B, 6\], but Narrower makes \[2, 3\]") as caught:
        made.build(BuildContext((2, 6), TRAINING))
    assert caught.value.code == "E_REGISTRY"
    assert not made.is_built
