"""What gradient checks do not see: bounds, ties, values that are not finite, names, and what is written in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mila.components import (
    Add,
    BroadcastAdd,
    Clamp,
    ClampConfig,
    ClsToken,
    ClsTokenConfig,
    Constant,
    ConstantConfig,
    LearnedScale,
    LearnedScaleConfig,
    MatrixProduct,
    Multiply,
    PoolTokens,
    PoolTokensConfig,
    Scale,
    ScaleConfig,
    Subtract,
)
from mila.core import BuildContext, Component, ComponentConfig, CompositeComponent, Graph, Reference, RuntimeMode

CASES = Path(__file__).parents[1] / "cases" / "network_numerics.jsonl"
VECTORS = {case["id"]: case for case in map(json.loads, CASES.read_text().splitlines())}
Array = NDArray[Any]


def built(component: Component[Any], *inputs: Array, mode: RuntimeMode = RuntimeMode.TRAINING) -> Any:
    shapes = {port.name: array.shape for port, array in zip(component.ports, inputs, strict=True)}
    component.build(BuildContext(shapes, mode, initialize_parameters=True))
    return component


@pytest.mark.parametrize("mode", ["mean", "first", "last"])
def test_pools_of_the_facts(mode: Any) -> None:
    case = VECTORS["num-pool_tokens()" if mode == "mean" else f'num-pool_tokens("{mode}")']
    x = np.array(case["input"])
    pool = built(PoolTokens("pool", PoolTokensConfig(mode=mode), device="cpu", dtype="float64"), x)
    np.testing.assert_allclose(pool.forward(x), case["output"], rtol=0, atol=1e-9)


def test_the_class_token_of_the_facts() -> None:
    case = VECTORS["num-cls_token()"]
    x = np.array(case["input"])
    component = built(ClsToken("cls", ClsTokenConfig(embedding_dim=4), device="cpu", dtype="float64"), x)
    component.load_parameter("token", (0.5 * np.sin(0.1 * np.arange(1, 5))).reshape(1, 1, 4))
    output = component.forward(x)
    np.testing.assert_allclose(output, case["output"], rtol=0, atol=1e-9)
    component.zero_gradients()
    component.backward(x, 2 * output)
    assert component.get_gradients()[0].sum() == pytest.approx(case["grad_sums"]["nodes.n_n0.token"], abs=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bounds_of_a_clamp_pass_the_gradient_on(dtype: str) -> None:
    below, above = np.nextafter(np.array([-1, 1], dtype), np.array([-2, 2], dtype))
    x = np.array([-1, 1, below, above, 0, np.nan, -np.inf, np.inf], dtype)
    clamp = built(Clamp("clamp", ClampConfig(minimum=-1.0, maximum=1.0), device="cpu", dtype=dtype), x)
    np.testing.assert_array_equal(clamp.forward(x), [-1, 1, -1, 1, 0, np.nan, -1, 1])
    np.testing.assert_array_equal(clamp.backward(x, np.full(8, 3, dtype)), [3, 3, 0, 0, 3, 0, 0, 0])
    np.testing.assert_array_equal(clamp.backward(x, np.full(8, np.nan, dtype)), [np.nan] * 2 + [0, 0, np.nan, 0, 0, 0])


def test_a_maximum_gives_its_gradient_to_the_first_of_equals_and_to_nan() -> None:
    x = np.array([[[1, 5, 2, -np.inf], [3, 5, np.nan, -np.inf], [3, 4, 9, -np.inf], [0, 5, np.nan, -np.inf]]])
    pool = PoolTokens("pool", PoolTokensConfig(mode="max"), device="cpu", dtype="float64")
    built(pool, x)
    np.testing.assert_array_equal(pool.forward(x), [[3, 5, np.nan, -np.inf]])
    dx = pool.backward(x, np.array([[1.0, 2.0, 3.0, 4.0]]))
    np.testing.assert_array_equal(dx[0], [[0, 2, 0, 4], [1, 0, 3, 0], [0, 0, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize("ids", [True, False])
def test_a_constant_takes_the_batch_alone(ids: bool) -> None:
    x = np.full((3, 5), np.iinfo(np.int64).min) if ids else np.full((3, 5), np.nan, np.float32)
    constant = Constant("constant", ConstantConfig(shape=(2, 4), value=-1.5, takes_ids=ids), device="cpu")
    built(constant, x)
    np.testing.assert_array_equal(constant.forward(x), np.full((3, 2, 4), -1.5, np.float32))
    np.testing.assert_array_equal(constant.backward(x, np.ones((3, 2, 4), np.float32)), np.zeros((3, 5)))
    assert constant.forward(x[:2]).shape == (2, 2, 4)
    assert constant.parameter_count() == 0


def test_learned_parameters_have_the_names_and_values_of_the_facts() -> None:
    x = np.ones((2, 3, 6), np.float32)
    gamma = built(LearnedScale("scale", device="cpu"), x)
    assert gamma.get_parameter_names() == ["gamma"]
    assert [p.tolist() for p in gamma.get_parameters()] == [[0.0]]
    started = built(LearnedScale("scale", LearnedScaleConfig(init_value=0.5), device="cpu"), x)
    np.testing.assert_array_equal(started.forward(x), 0.5 * x)
    wide = np.ones((1, 1, 4096), np.float32)
    token = built(ClsToken("cls", ClsTokenConfig(embedding_dim=4096), device="cpu"), wide)
    assert token.get_parameter_names() == ["token"]
    (values,) = token.get_parameters()
    assert values.shape == (1, 1, 4096)
    assert values.std() == pytest.approx(0.02, rel=0.05)


class Empty(ComponentConfig):
    """Nothing to say."""


class Chain(CompositeComponent[Empty]):
    """Everything that can be written over something is."""

    config_class = Empty

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        (x,) = inputs
        left, right = (graph.add(Scale(name, ScaleConfig(factor=2.0)), x) for name in ("left", "right"))
        h = graph.add(Multiply("product"), left, right)
        h = graph.add(Clamp("clamp", ClampConfig(minimum=-9.0, maximum=9.0)), h)
        ones = graph.add(Constant("ones", ConstantConfig(shape=(4, 4), value=1.0)), x)
        h = graph.add(MatrixProduct("matrices"), h, ones)
        other = graph.add(Constant("other", ConstantConfig(shape=(4, 4), value=1.0)), x)
        h = graph.add(Subtract("difference"), h, graph.add(Add("sum"), h, other))
        row = graph.add(Constant("row", ConstantConfig(shape=(1, 4), value=1.0)), x)
        return graph.add(BroadcastAdd("shifted"), h, row)


def test_what_may_be_written_over_is() -> None:
    """Buffers of their own: outputs that something reads later, and gradients that nothing can hold."""

    def own(mode: RuntimeMode) -> set[str]:
        plan = Chain("chain", device="cpu").plan(BuildContext((2, 4, 4), mode))
        return {f"{buffer.path.removeprefix('chain.')}.{buffer.name}" for buffer in plan.buffers}

    inference = own(RuntimeMode.INFERENCE)
    outputs = {f"{name}.output" for name in ("left", "right", "ones", "matrices", "other", "row")}
    assert inference == outputs
    training = own(RuntimeMode.TRAINING)
    assert training - inference == {
        "product.output",
        "clamp.output",
        "matrices.b.gradient",
        "difference.b.gradient",
        "sum.b.gradient",
        "shifted.a.gradient",
        "shifted.b.gradient",
    }
