"""What ``network`` takes and refuses, at construction, at build and in a run; what comes out under which name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mila
from mila import BuildContext, DefinedNetwork, ExecutionContext, RuntimeMode
from mila.components import Linear
from mila.errors import (
    ConfigurationError,
    DeviceError,
    DTypeError,
    LifecycleError,
    MilaError,
    ShapeError,
    TokenIdError,
)
from tests.network_language.building import built, inputs_of, named_parameters, outputs_of
from tests.promises.gradient_check import as_tuple

TRAINING, INFERENCE = RuntimeMode.TRAINING, RuntimeMode.INFERENCE
GATHER: dict[str, Any] = {
    "input_shape": {"x": ("B", 3, 4), "ids": ("B", 3)},
    "output_shape": ("B", 4),
    "input_dtype": {"ids": "int64"},
}
TABLE: dict[str, Any] = {"input_shape": ("B", 3), "output_shape": ("B", 3, 4), "input_dtype": "int64"}
X, IDS = np.ones((2, 3, 4), np.float32), np.zeros((2, 3), np.int64)


def network(source: str = "linear()", **arguments: Any) -> DefinedNetwork:
    given = {"input_shape": ("B", 6), "output_shape": ("B", 6), "device": "cpu", "seed": 3, **arguments}
    return mila.network(source, **given)


# ---------------------------------------------------------------------- construction


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"compute_dtype": "float32"}, ConfigurationError, "network: compute_dtype is float64 .* got 'float32'"),
        ({"compute_dtype": np.float64}, ConfigurationError, "network: compute_dtype is float64"),
        ({"device": "gpu"}, DeviceError, "'cpu' or 'cuda:<index>', got 'gpu'"),
        ({"device": 3}, DeviceError, "'cpu' or 'cuda:<index>', got 3"),
        ({"seed": -1}, ConfigurationError, "a seed is an integer of at least 0, got -1"),
        ({"seed": "a"}, ConfigurationError, "a seed is an integer of at least 0, got 'a'"),
        ({"name": "a b"}, ConfigurationError, "component name 'a b'"),
        ({"dtype": "float64"}, mila.NetworkError, "E_SCHEMA: dtype is one of float32, float16, bfloat16"),
        ({"source": "liner()"}, mila.NetworkError, "E_SYNTAX .*did you mean linear"),
        ({"source": b"linear()"}, TypeError, "is a str, got bytes"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        network(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", ExecutionContext("cpu", threads=1, seed=3)])
def test_a_device_is_named_or_a_context(device: Any) -> None:
    made = built(network(device=device, seed=None if isinstance(device, ExecutionContext) else 3), TRAINING)
    assert parameter_bytes(made) == parameter_bytes(built(network(), TRAINING))


def test_without_a_device_it_is_planned_not_built() -> None:
    made = network(device=None)
    context = BuildContext((2, 6), TRAINING)
    assert made.plan(context).stats.total_bytes > 0
    with pytest.raises(LifecycleError, match="no execution context"):
        made.build(context)
    made.set_execution_context(ExecutionContext("cpu"))
    made.build(context)


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        ({}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"compute_dtype": "float64"}, "float64"),
        ({"dtype": "bfloat16", "compute_dtype": "float64"}, "float64"),
    ],
)
def test_everything_is_stored_in_one_dtype(arguments: dict[str, Any], dtype: str) -> None:
    made = built(network(**arguments), TRAINING)
    assert {array.dtype.name for array in made.get_parameters()} == {made.dtype.name} == {dtype}
    (x,) = inputs_of(made)
    output = made.forward(x)
    assert output.dtype.name == made.backward(x, output.copy()).dtype.name == dtype


def parameter_bytes(made: DefinedNetwork) -> list[bytes]:
    return [array.tobytes() for array in made.get_parameters()]


def test_the_seed_makes_the_weights() -> None:
    source = "embedding(7, 4)\npos_embed(5)\ntransformer_block(2)\nlinear()"
    one, same, other = (parameter_bytes(built(network(source, **TABLE, seed=seed), TRAINING)) for seed in (1, 1, 2))
    assert one == same
    assert one[0] != other[0]
    assert parameter_bytes(built(network(source, **TABLE, seed=1), INFERENCE)) == one


# ---------------------------------------------------------------------- initial values

WIDTH = 64


def initial(source: str, **contracts: Any) -> dict[str, np.ndarray[Any, Any]]:
    given = {"input_shape": ("B", 5, WIDTH), "output_shape": ("B", 5, WIDTH), **contracts}
    return named_parameters(built(network(source, **given), TRAINING))


@pytest.mark.parametrize("source", ["linear()", "attention(4)", "feed_forward(256)", "swiglu(256, bias=True)"])
def test_a_projection_starts_uniform_within_one_over_the_root_of_its_width(source: str) -> None:
    for name, array in initial(source).items():
        fan_in = 256 if name.startswith("n0.down") else WIDTH
        bound = fan_in**-0.5
        assert np.abs(array).max() <= bound
        assert np.abs(array).max() > 0.9 * bound
        assert abs(array.std() - bound / 3**0.5) < (0.02 if array.ndim == 2 else 0.2) * bound


@pytest.mark.parametrize(
    ("source", "contracts", "deviation"),
    [
        ("embedding(500)", {"input_shape": ("B", 5), "input_dtype": "int64"}, 1.0),
        ("pos_embed(500)", {}, 0.02),
        ("cls_token()", {"input_shape": ("B", 4, WIDTH)}, 0.02),
    ],
)
def test_a_table_starts_normal(source: str, contracts: dict[str, Any], deviation: float) -> None:
    (array,) = initial(source, **contracts).values()
    error = 4 / array.size**0.5
    assert abs(array.mean()) < error * deviation
    assert abs(array.std() / deviation - 1) < error
    beyond = float((np.abs(array) > 2 * deviation).mean())
    assert abs(beyond - 0.0455) < 4 * (0.0455 / array.size) ** 0.5


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("layer_norm()", {"n0.weight": 1, "n0.bias": 0}),
        ("rms_norm()", {"n0.weight": 1}),
        ("learned_scale()", {"n0.gamma": 0}),
        ("learned_scale(init_value=0.5)", {"n0.gamma": 0.5}),
        ("transformer_block(4, layer_scale=True)", {"n0.gamma1": 1e-5, "n0.gamma2": 1e-5, "n0.norm1.weight": 1}),
        ("transformer_block(4, layer_scale=True, layer_scale_init=0.3)", {"n0.gamma1": 0.3, "n0.norm2.bias": 0}),
        ("linear(init={'bias': 0.1, 'weight': -2})", {"n0.bias": 0.1, "n0.weight": -2}),
        ("attention(2, init={'k_proj.bias': 3})", {"n0.k_proj.bias": 3}),
        ("transformer_block(2, init={'norm1.weight': 3})", {"n0.norm1.weight": 3, "n0.norm2.weight": 1}),
        ("feed_forward(2, init={'up.bias': 4})", {"n0.up.bias": 4}),
        ("moe(3, 2, init={'experts.1.up.weight': 3})", {"n0.experts.1.up.weight": 3}),
    ],
)
def test_a_constant_start(source: str, expected: dict[str, float]) -> None:
    found = initial(source)
    for name, value in expected.items():
        assert np.array_equal(found[name], np.full_like(found[name], value)), name


@pytest.mark.parametrize(
    ("settings", "frozen"),
    [
        ("trainable=False", {"n0.norm1.weight", "n0.attn.q_proj.bias", "n0.ffn.down.weight", "n0.gamma1"}),
        ("trainable={'attn.q_proj.weight': False, 'gamma1': False}", {"n0.attn.q_proj.weight", "n0.gamma1"}),
    ],
)
def test_what_is_frozen_has_no_gradient(settings: str, frozen: set[str]) -> None:
    source = f"transformer_block(4, layer_scale=True, {settings})\nlinear()"
    made = built(network(source, input_shape=("B", 5, 8), output_shape=("B", 5, 3)), TRAINING)
    inputs = inputs_of(made)
    made.backward(*inputs, np.ones_like(made.forward(*inputs)))
    without = {name for name, g in zip(made.get_parameter_names(), made.get_gradients(), strict=True) if g is None}
    assert without >= frozen
    assert len(without) == (len(frozen) if "{" in settings else len(made.get_parameter_names()) - 2)


# ---------------------------------------------------------------------- build

BUILDS: list[tuple[str, dict[str, Any], Any, type[MilaError], str]] = [
    ("linear()", {}, (2, 7), ShapeError, r"network: input 'x' expected \(B, 6\), got \(2, 7\)"),
    ("linear()", {}, (2,), ShapeError, r"expected \(B, 6\), got \(2,\)"),
    ("linear()", {}, (2, 6, 1), ShapeError, r"expected \(B, 6\), got \(2, 6, 1\)"),
    ("linear()", {}, {"y": (2, 6)}, ShapeError, "expected shapes for x, got y"),
    ("linear()", {}, {"x": (2, 6), "y": (2, 6)}, ShapeError, "expected shapes for x, got x, y"),
    ("linear()", {"input_shape": (4, 6), "output_shape": (4, 6)}, (2, 6), ShapeError, r"\(4, 6\), got \(2, 6\)"),
    ("gather_token(x, ids)", GATHER, {"x": (2, 3, 4)}, ShapeError, "expected shapes for x, ids, got x"),
    ("gather_token(x, ids)", GATHER, {"x": (2, 3, 4), "ids": (3, 3)}, ShapeError, "one batch; 'x' has 2, 'ids' has 3"),
    ("gather_token(x, ids)", GATHER, {"x": (2, 3, 4), "ids": (2, 2)}, ShapeError, r"'ids' expected \(B, 3\)"),
    ("gather_token(x, ids)", GATHER, (2, 3, 4), ShapeError, r"'ids' expected \(B, 3\), got \(2, 3, 4\)"),
]


@pytest.mark.parametrize(("source", "contracts", "shape", "error", "message"), BUILDS)
def test_a_build_for_other_shapes_is_refused(
    source: str, contracts: dict[str, Any], shape: Any, error: type[MilaError], message: str
) -> None:
    made, context = network(source, **contracts), BuildContext(shape, TRAINING)
    for ask in (made.plan, made.get_required_memory, made.build):
        with pytest.raises(error, match=message):
            ask(context)
    assert not made.is_built
    built(made, TRAINING)


def test_a_definition_is_for_whole_sequences() -> None:
    made = network("pos_embed(9)", input_shape=("B", 5, 4), output_shape=("B", 5, 4))
    with pytest.raises(MilaError, match="prefill_size"):
        made.build(BuildContext((2, 5, 4), INFERENCE, prefill_size=2))


# ---------------------------------------------------------------------- run

RUNS: list[tuple[str, dict[str, Any], tuple[Any, ...], type[MilaError], str]] = [
    ("gather_token(x, ids)", GATHER, (X[:, :2].copy(), IDS), ShapeError, r"'x': axis 1 expected 3, got 2"),
    ("gather_token(x, ids)", GATHER, (X, IDS[:, :2].copy()), ShapeError, r"'ids': axis 1 expected 3, got 2"),
    ("gather_token(x, ids)", GATHER, (X[:1].copy(), IDS), ShapeError, "one batch; 'x' has 1, 'ids' has 2"),
    ("gather_token(x, ids)", GATHER, (X[:0].copy(), IDS[:0].copy()), ShapeError, "expected 1 to 2, got 0"),
    ("gather_token(x, ids)", GATHER, (np.ones((3, 3, 4), np.float32), IDS), ShapeError, "expected 1 to 2, got 3"),
    ("gather_token(x, ids)", GATHER, (X,), ShapeError, r"expected 2 inputs \(x, ids\), got 1"),
    ("gather_token(x, ids)", GATHER, (IDS, X), DTypeError, "input 'x': expected dtype float32, got int64"),
    ("gather_token(x, ids)", GATHER, (X, IDS.astype(np.float32)), DTypeError, "input 'ids': .* got float32"),
    ("gather_token(x, ids)", GATHER, (X.astype(np.float64), IDS), DTypeError, "float32, got float64"),
    ("gather_token(x, ids)", GATHER, (X.tolist(), IDS), DTypeError, "expected an array, got list"),
    ("embedding(9, 4)", TABLE, (IDS + 9,), TokenIdError, r"network.n0: id 9 at position \(0, 0\) is outside 0 … 8"),
    ("embedding(9, 4)", TABLE, (IDS.astype(bool),), DTypeError, "got bool"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "contracts", "inputs", "error", "message"), RUNS)
def test_a_run_of_something_else_is_refused_and_changes_nothing(
    source: str, contracts: dict[str, Any], inputs: tuple[Any, ...], error: type[MilaError], message: str
) -> None:
    made = built(network(source, **contracts), TRAINING, 2)
    good = inputs_of(made)
    before, parameters = outputs_of(made, *good), parameter_bytes(made)
    with pytest.raises(error, match=message) as caught:
        made.forward(*inputs)
    assert "\n" not in str(caught.value)
    assert parameter_bytes(made) == parameters
    assert np.array_equal(outputs_of(made, *good), before)


# ---------------------------------------------------------------------- inputs and outputs


def test_inputs_are_named_in_any_order_at_build_and_come_in_order_of_the_contract() -> None:
    made = network("gather_token(x, ids)", **GATHER)
    made.build(BuildContext({"ids": (2, 3), "x": (2, 3, 4)}, TRAINING))
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(made.forward(x, np.array([[0, 7, 7], [9, 0, 0]])), x[[0, 1], [1, 0]])


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", None])
def test_a_constant_takes_only_the_batch_of_any_input(dtype: str | None) -> None:
    made = network("constant(x, 2, value=0.5)", output_shape=("B", 2), input_dtype=dtype)
    made.build(BuildContext((3, 6), TRAINING))
    (x,) = inputs_of(made, 2)
    assert x.dtype.name == (dtype or "float32")
    assert np.array_equal(made.forward(x), np.full((2, 2), 0.5))
    assert not made.backward(x, np.ones((2, 2), np.float32)).any()


@pytest.mark.parametrize(
    ("source", "outputs", "factors"),
    [
        ("", ("B", 6), (1,)),
        ("out = x", ("B", 6), (1,)),
        ("p = x\nq = x", {"p": ("B", 6), "q": ("B", 6)}, (1, 1)),
        ("h = scale(2)\np = h\nq = h", {"p": ("B", 6), "q": ("B", 6)}, (2, 2)),
        ("h = scale(2)\nq = x\np = h", {"q": ("B", 6), "p": ("B", 6)}, (1, 2)),
        ("h = scale(2)\np = scale(h, 3)\nq = h", {"p": ("B", 6), "q": ("B", 6)}, (6, 2)),
        ("p, q = split(concat(x, x), 6)", {"q": ("B", 6), "p": ("B", 6)}, (1, 1)),
    ],
)
def test_every_output_has_bytes_of_its_own(source: str, outputs: Any, factors: tuple[int, ...]) -> None:
    """An input that leaves as it came, and a tensor that leaves under two names, are copied; gradients add up."""
    made = built(network(source, output_shape=outputs), TRAINING)
    assert made.output_names == (tuple(outputs) if isinstance(outputs, dict) else ("output",))
    (x,) = inputs_of(made)
    found = as_tuple(made.forward(x))
    assert isinstance(made.forward(x), tuple) == (len(factors) > 1)
    for index, (array, factor) in enumerate(zip(found, factors, strict=True)):
        assert np.array_equal(array, factor * x)
        assert not any(np.shares_memory(array, other) for other in (x, *found[:index]))
    weights = [np.full_like(x, 10**index) for index in range(len(factors))]
    gradient = made.backward(x, *weights)
    assert np.array_equal(gradient, sum(factor * w for factor, w in zip(factors, weights, strict=True)))


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool"])
def test_integers_do_not_leave(dtype: str) -> None:
    for source, outputs in (("", ("B", 6)), ("p = x\nq = constant(x, 2)", {"q": ("B", 2), "p": ("B", 6)})):
        with pytest.raises(mila.NetworkError, match=f"is an input of {dtype}") as caught:
            network(source, output_shape=outputs, input_dtype=dtype)
        assert caught.value.code == "E_OUTPUT"


# ---------------------------------------------------------------------- the network as an object


def test_a_node_is_a_component() -> None:
    made = network("linear(4)\nlinear(name='head')")
    assert isinstance(made["n0"], Linear)
    assert made["n0"].config.out_features == 4
    assert made["head"].path == "network.head"
    assert made["head"] is made.components[1]
    with pytest.raises(ConfigurationError, match="no child called 'n7'; there are n0, head"):
        made["n7"]


def test_it_prints_as_its_table() -> None:
    made = network("linear(4)\nrelu()\nlinear()")
    assert str(made) == made.resolved.network_table()
    assert str(made).splitlines()[0] == "Network: [B, 6] -> [B, 6]  dtype=float32"
    assert "(n0): Linear" in repr(made)


@pytest.mark.parametrize("make", [network, lambda: built(network(), TRAINING)])
def test_it_is_constructed_from_a_plan_or_a_config_not_from_both(make: Callable[[], DefinedNetwork]) -> None:
    made = make()
    for config, resolved in ((None, None), (made.config, made.resolved)):
        with pytest.raises(ConfigurationError, match="either a config or a resolved network"):
            DefinedNetwork("again", config, resolved=resolved)
    assert str(DefinedNetwork("again", made.config)) == str(made)
