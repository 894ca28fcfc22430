"""Every good network of the shared cases, built: it holds what it planned, and computes what its table says."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mila import DefinedNetwork, ExecutionContext, ResolvedNetwork, RuntimeMode
from mila.network_language import plan_from_json
from tests.network_language.building import (
    BOTH_MODES,
    batch_of,
    built,
    context,
    input_shapes,
    inputs_of,
    named_gradients,
    named_parameters,
    network_of,
    output_shapes,
    outputs_of,
    sizes_at,
)
from tests.network_language.network_cases import CASES
from tests.promises.gradient_check import as_tuple, output_weights

GOOD = [case for case in CASES if case["expect"]["ok"]]
each_case = pytest.mark.parametrize("case", GOOD, ids=lambda case: case["id"])
in_both_modes = pytest.mark.parametrize("mode", BOTH_MODES, ids=lambda mode: mode.value)
in_every_dtype = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
in_every_build = pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        ("float32", RuntimeMode.INFERENCE),
        *((dtype, RuntimeMode.TRAINING) for dtype in ("float32", "float16", "bfloat16")),
    ],
    ids=lambda part: getattr(part, "value", part),
)


def expected_names(case: dict[str, Any], key: str) -> dict[str, Any]:
    """What a case says of its parameters, by the names of Mila."""
    return {name.removeprefix("nodes.n_"): value for name, value in case["expect"][key].items()}


@in_both_modes
@in_every_dtype
@each_case
def test_a_network_holds_what_it_planned(case: dict[str, Any], dtype: str, mode: RuntimeMode) -> None:
    network = network_of(case, dtype=dtype)
    build_context = context(network, mode)
    plan, required = network.plan(build_context), network.get_required_memory(build_context)
    network.build(build_context)
    assert network.get_memory_stats() == required == plan.stats
    assert required.total_bytes <= plan.reserved_bytes
    outputs_of(network, *inputs_of(network))
    assert network.get_memory_stats() == required


@in_both_modes
@each_case
def test_a_plan_without_a_device_is_that_of_one_thread(case: dict[str, Any], mode: RuntimeMode) -> None:
    network = network_of(case, device=ExecutionContext("cpu", threads=1))
    build_context = context(network, mode)
    assert network_of(case, device=None).plan(build_context).to_dict() == network.plan(build_context).to_dict()


@in_every_build
@each_case
def test_outputs_and_values_inside_have_the_shapes_of_the_table(
    case: dict[str, Any], dtype: str, mode: RuntimeMode
) -> None:
    network = network_of(case, dtype=dtype)
    resolved, batch = network.resolved, batch_of(network.resolved)
    built(network, mode, capture=[node.id for node in resolved.nodes])
    outputs = outputs_of(network, *inputs_of(network))
    assert [array.shape for array in outputs] == output_shapes(resolved, batch)
    assert all(array.dtype == network.dtype and np.isfinite(array).all() for array in outputs)
    for node in resolved.nodes:
        values = as_tuple(network.captured(node.id))
        assert [array.shape for array in values] == [sizes_at(shape, batch) for shape in node.output_shapes.values()]
        assert all(np.isfinite(array).all() for array in values)


@in_every_dtype
@each_case
def test_gradients_are_finite_and_are_those_of_what_is_trained(case: dict[str, Any], dtype: str) -> None:
    network = built(network_of(case, dtype=dtype), RuntimeMode.TRAINING)
    inputs = inputs_of(network)
    outputs = outputs_of(network, *inputs)
    network.zero_gradients()
    found = as_tuple(network.backward(*inputs, *output_weights(outputs)))
    for tensor, array, gradient in zip(network.resolved.inputs, inputs, found, strict=True):
        assert gradient.shape == array.shape
        assert np.isfinite(gradient).all()
        assert gradient.any() == (tensor.dtype == dtype)
    frozen = expected_names(case, "trainable")
    for name, parameter_gradient in named_gradients(network).items():
        assert (parameter_gradient is None) == (frozen.get(name) is False), name
        assert parameter_gradient is None or np.isfinite(parameter_gradient).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@each_case
def test_half_precision_is_stored_not_computed(case: dict[str, Any], dtype: str) -> None:
    """It is as close to the same weights in float32 as a single rounding of the largest output is."""
    half, full = (built(network_of(case, dtype=stored), RuntimeMode.INFERENCE) for stored in (dtype, "float32"))
    for name, array in named_parameters(half).items():
        full.load_parameter(name, array)
    inputs = inputs_of(half)
    widened = [array.astype(np.float32) if array.dtype == half.dtype else array for array in inputs]
    spacing = float(ml_dtypes.finfo(half.dtype).eps)  # type: ignore[no-untyped-call]
    for found, expected in zip(outputs_of(half, *inputs), outputs_of(full, *widened), strict=True):
        assert np.abs(found.astype(np.float64) - expected).max() <= spacing * np.abs(expected).max()


@each_case
def test_parameters_have_the_names_and_shapes_of_the_facts(case: dict[str, Any]) -> None:
    network = built(network_of(case), RuntimeMode.TRAINING)
    shapes = {name: [*array.shape] for name, array in named_parameters(network).items()}
    assert shapes == expected_names(case, "parameter_shapes")
    assert network.parameter_count() == case["expect"]["parameters"]
    counts = {node.id: network[node.id].parameter_count() for node in network.resolved.nodes}
    assert counts == case["expect"]["parameter_counts"]
    assert str(network) == case["expect"]["model_table"]


@each_case
def test_another_batch_runs_in_the_same_build(case: dict[str, Any]) -> None:
    """A smaller one gives the first rows of the larger one; a fixed batch takes no other."""
    network = built(network_of(case), RuntimeMode.INFERENCE, batch=3 if is_free(network_of(case).resolved) else None)
    inputs = inputs_of(network, 3 if is_free(network.resolved) else None)
    whole = outputs_of(network, *inputs)
    if not is_free(network.resolved):
        with pytest.raises(ValueError, match=r"expected \(4, 6\), got \(2, 6\)"):
            network.forward(*(array[:2].copy() for array in inputs))
        return
    smaller = outputs_of(network, *(array[:2].copy() for array in inputs))
    for all_rows, rows in zip(whole, smaller, strict=True):
        np.testing.assert_allclose(rows, all_rows[:2], rtol=1e-5, atol=1e-6)


def is_free(resolved: ResolvedNetwork) -> bool:
    return "B" in str(resolved.inputs[0].shape[0])


@each_case
def test_the_saved_plan_builds_the_same_network(case: dict[str, Any]) -> None:
    first = built(network_of(case), RuntimeMode.INFERENCE)
    again = DefinedNetwork("again", resolved=plan_from_json(first.config.plan), device="cpu", seed=first.seed)
    other = DefinedNetwork("other", first.config, device="cpu", seed=first.seed)
    inputs = inputs_of(first)
    expected = outputs_of(first, *inputs)
    for network in (built(again, RuntimeMode.INFERENCE), built(other, RuntimeMode.INFERENCE)):
        assert input_shapes(network.resolved, 2) == input_shapes(first.resolved, 2)
        assert [a.tobytes() for a in outputs_of(network, *inputs)] == [a.tobytes() for a in expected]
