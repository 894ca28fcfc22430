"""Names, paths, dtypes and seeds."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mila.components import Activation, Dropout, GatedMlp, GatedMlpConfig, Linear, LinearConfig, Residual
from mila.core import Component, CompositeComponent, Graph, Reference
from mila.errors import ConfigurationError, DeviceError, DTypeError, LifecycleError
from mila.kernels.cpu.table import CpuKernels
from tests.core.parts import EmptyConfig, chain, gpt, training

VALID = ["a", "Z", "ln_1", "block-3", "W2a", "a" * 128]
INVALID: list[Any] = [
    "",
    "1a",
    "_a",
    "-a",
    "a.b",
    "a b",
    "a/b",
    "é",
    "\uff41",
    "a\n",
    "a" * 129,
    "\u0663",
    None,
    3,
    b"a",
]


@pytest.mark.parametrize("name", VALID)
def test_a_valid_name(name: str) -> None:
    assert Activation(name).name == name


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="1 to 128 characters, a letter first"):
        Activation(name)


def test_paths_are_computed_from_the_tree() -> None:
    model = gpt("model")
    assert model["block_1.mlp.fc_1"].path == "model.block_1.mlp.fc_1"
    assert model.path == "model"
    assert "block_1.mlp.fc_1.weight" in model.get_parameter_names()
    assert model["block_1"].get_parameter_names()[0] == "ln_1.weight"
    assert model["block_1.mlp"].parent is model["block_1"]
    assert model["block_1.mlp.fc_1"].root is model


def test_a_child_does_not_keep_its_root_alive_and_says_so() -> None:
    child = gpt("model")["block_1"]
    gc.collect()
    with pytest.raises(LifecycleError, match="the network it belonged to no longer exists"):
        _ = child.path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, np.float32),
        ("float32", np.float32),
        ("float64", np.float64),
        ("bfloat16", ml_dtypes.bfloat16),
        ("float16", np.float16),
        (np.float64, np.float64),
        (np.dtype(np.float32), np.float32),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    ],
)
def test_the_dtype_of_a_root(given: Any, expected: Any) -> None:
    assert Activation("a", dtype=given).dtype == np.dtype(expected)


@pytest.mark.parametrize("given", ["int32", "float", "complex64", "double", np.int64, ml_dtypes.float8_e4m3fn, 3, "f4"])
def test_a_dtype_that_no_network_has_is_refused(given: Any) -> None:
    with pytest.raises(DTypeError, match="expected one of float32, float64, bfloat16, float16"):
        Activation("a", dtype=given)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_dtype_that_the_device_does_not_compute_is_refused_with_the_device(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuKernels, "dtypes", (np.dtype(np.float32), np.dtype(np.float64)))
    with pytest.raises(DeviceError, match=f"computes float32, float64, not {dtype}"):
        gpt(dtype=dtype)


def test_children_have_the_dtype_and_the_seed_of_their_root() -> None:
    model = gpt(dtype="float64", seed=5)
    assert {part.dtype for part in model.walk()} == {np.dtype(np.float64)}
    assert {part.seed for part in model.walk()} == {5}
    assert gpt().seed == 0


class Inner(CompositeComponent[EmptyConfig]):
    config_class = EmptyConfig
    child_dtype: str | None = None

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        return graph.add(Linear("leaf", LinearConfig(in_features=3, out_features=3), dtype=self.child_dtype), *inputs)


class Outer(CompositeComponent[EmptyConfig]):
    config_class = EmptyConfig
    inner: type[Inner] = Inner

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        return graph.add(self.inner("inner", EmptyConfig()), *inputs)


def nested(child_dtype: str, root_dtype: str) -> Component[Any]:
    inner = type("Given", (Inner,), {"child_dtype": child_dtype})
    outer = type("Root", (Outer,), {"inner": inner})
    component = outer("root", EmptyConfig(), dtype=root_dtype, device="cpu")
    assert isinstance(component, Component)
    component.plan(training(2, 3))
    return component


@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "float32")])
def test_a_child_of_another_dtype_than_its_roots_is_an_error(dtypes: tuple[str, str]) -> None:
    with pytest.raises(DTypeError, match=f"expected .*{dtypes[1]}.* got {dtypes[0]}"):
        nested(*dtypes)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_child_may_be_given_the_dtype_of_its_root(dtype: str) -> None:
    assert {part.dtype.name for part in nested(dtype, dtype).walk()} == {dtype}


def test_a_component_is_part_of_one_composite() -> None:
    shared = Dropout("shared")

    class Twice(CompositeComponent[EmptyConfig]):
        config_class = EmptyConfig

        def compose(self, graph: Graph, *inputs: Reference) -> Reference:
            return graph.add(shared, *inputs)

    first = Twice("first", EmptyConfig())
    with pytest.raises(ConfigurationError, match=r"second.shared: is already part of first.shared"):
        Twice("second", EmptyConfig())
    assert shared.parent is first


def test_a_child_has_no_device_of_its_own() -> None:
    class WithDevice(CompositeComponent[EmptyConfig]):
        config_class = EmptyConfig

        def compose(self, graph: Graph, *inputs: Reference) -> Reference:
            return graph.add(Activation("child", device="cpu"), *inputs)

    with pytest.raises(ConfigurationError, match="takes its device from its root"):
        WithDevice("root", EmptyConfig())


def refused_graph(compose: Any) -> str:
    planted = type("Planted", (CompositeComponent,), {"config_class": EmptyConfig, "compose": compose})
    with pytest.raises(ConfigurationError) as caught:
        planted("root", EmptyConfig())
    return str(caught.value)


def test_a_graph_refuses_what_has_no_meaning() -> None:
    other = chain()

    def same_name(self: Any, graph: Graph, x: Reference) -> Reference:
        return graph.add(Activation("a"), graph.add(Activation("a"), x))

    def too_few(self: Any, graph: Graph, x: Reference) -> Reference:
        return graph.add(Residual("sum"), x)

    def of_another(self: Any, graph: Graph, x: Reference) -> Reference:
        assert other.graph is not None
        return graph.add(Activation("a"), Reference(other.graph, 0))

    def nothing(self: Any, graph: Graph, x: Reference) -> None:
        graph.add(Activation("a"), x)

    assert "a child of this name exists already" in refused_graph(same_name)
    assert "root.sum: expected 2 inputs, got 1" in refused_graph(too_few)
    assert "reads a value of another graph" in refused_graph(of_another)
    assert "root: compose must return 1 references" in refused_graph(nothing)


def test_a_graph_takes_children_only_while_its_component_is_constructed() -> None:
    component = chain()
    assert component.graph is not None
    with pytest.raises(ConfigurationError, match="only while its component is constructed"):
        component.graph.add(Activation("late"), Reference(component.graph, 0))


def test_children_are_found_by_name_and_path() -> None:
    component = chain()
    assert [child.name for child in component.components] == ["first", "second", "third", "fourth"]
    assert component["second"] is component.get_component("second")
    assert component.has_component("third")
    assert not component.has_component("fifth")
    with pytest.raises(ConfigurationError, match="no child called 'fifth'; there are first, second"):
        component.get_component("fifth")
    with pytest.raises(ConfigurationError, match="has no children"):
        component.find_component("first.deeper")


def test_a_config_may_be_left_out_where_every_field_has_a_default() -> None:
    assert Activation("a").config == Activation.config_class()
    with pytest.raises(ValueError, match="embedding_dim"):
        GatedMlp("mlp")
    config = GatedMlpConfig(embedding_dim=3, hidden_dim=5)
    assert GatedMlpConfig.from_json(config.to_json()) == config
