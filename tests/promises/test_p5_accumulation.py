"""Gradients of parameters accumulate until they are zeroed; what the caller hands in is never written."""

from __future__ import annotations

import numpy as np
import pytest

from mila.core import Component, TrainingStep
from mila.devices import ExecutionContext
from tests.promises.case import TRAINING, Array, Case
from tests.promises.cases import CASES, TRAINED
from tests.promises.gradient_check import as_tuple, output_weights
from tests.promises.running import parameter_gradients


def run(component: Component[object], inputs: list[Array]) -> tuple[list[Array], tuple[Array, ...]]:  # type: ignore[type-var]
    outputs = as_tuple(component.forward(*inputs))
    weights = [] if isinstance(component, TrainingStep) else output_weights(outputs)
    return weights, as_tuple(component.backward(*inputs, *weights))


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_two_backwards_give_the_sum_until_gradients_are_zeroed(case: Case, device: ExecutionContext) -> None:
    component = case.build(device, TRAINING, "float64")
    alone = [case.build(device, TRAINING, "float64") for _ in range(2)]
    parts: list[list[Array]] = []
    for seed, single in enumerate(alone):
        if seed:
            run(single, case.inputs(single))  # so that both make their second draw of random numbers
            single.zero_gradients()
        run(single, case.inputs(single, seed))
        parts.append([array.copy() for array in parameter_gradients(single)])
    for seed in range(2):
        run(component, case.inputs(component, seed))
    for first, second, total in zip(*parts, parameter_gradients(component), strict=True):
        assert np.allclose(total, first + second, rtol=1e-12, atol=1e-13)
    component.zero_gradients()
    assert not any(array.any() for array in parameter_gradients(component))
    run(component, case.inputs(component))


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_the_first_contribution_after_zeroing_overwrites(case: Case, device: ExecutionContext) -> None:
    """Bytes left from before do not matter, not even those of a NaN."""
    component = case.build(device, TRAINING)
    fresh = case.build(device, TRAINING)
    run(component, case.inputs(component))
    run(fresh, case.inputs(fresh))
    for array in parameter_gradients(component):
        array.fill(np.nan)
    component.zero_gradients()
    fresh.zero_gradients()
    run(component, case.inputs(component))
    run(fresh, case.inputs(fresh))
    for a, b in zip(parameter_gradients(component), parameter_gradients(fresh), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_zeroing_changes_gradients_and_nothing_else(case: Case, device: ExecutionContext) -> None:
    component = case.build(device, TRAINING)
    inputs = case.inputs(component)
    outputs = as_tuple(component.forward(*inputs))
    weights = [] if isinstance(component, TrainingStep) else output_weights(outputs)
    before = [array.copy() for array in [*outputs, *component.get_parameters()]]
    found = [array.copy() for array in as_tuple(component.backward(*inputs, *weights))]
    after = [*outputs, *component.get_parameters()]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True)), "an output survives backward"
    component.zero_gradients()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))
    assert not any(array.any() for array in parameter_gradients(component))
    again = case.build(device, TRAINING)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, run(again, case.inputs(again))[1], strict=True))


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_arrays_of_the_caller_are_never_written(case: Case, device: ExecutionContext) -> None:
    component = case.build(device, TRAINING)
    inputs = case.inputs(component)
    for array in inputs:
        array.flags.writeable = False
    outputs = as_tuple(component.forward(*inputs))
    weights = [] if isinstance(component, TrainingStep) else output_weights(outputs)
    kept = [array.copy() for array in [*inputs, *weights]]
    for array in weights:
        array.flags.writeable = False
    gradients = as_tuple(component.backward(*inputs, *weights))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(kept, [*inputs, *weights], strict=True))
    owned = [*outputs, *gradients, *component.get_parameters()]
    assert not any(np.shares_memory(a, b) for a in owned for b in [*inputs, *weights])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_inputs_and_outputs_are_kept_apart_in_every_mode(case: Case, device: ExecutionContext) -> None:
    for mode in case.modes:
        component = case.build(device, mode)
        inputs = case.inputs(component)
        for array in inputs:
            array.flags.writeable = False
        for made in as_tuple(component.forward(*inputs)):
            assert made.flags.c_contiguous
            assert not any(np.shares_memory(made, array) for array in inputs)


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_input_gradients_are_overwritten_not_accumulated(case: Case, device: ExecutionContext) -> None:
    component, once = (case.build(device, TRAINING) for _ in range(2))
    inputs = case.inputs(component)
    run(component, case.inputs(component, seed=1))
    run(once, case.inputs(once, seed=1))
    once.zero_gradients()
    for a, b in zip(run(component, inputs)[1], run(once, inputs)[1], strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    "case", [case for case in TRAINED if any(port.is_ids for port in case.make(None).ports)], ids=str
)
def test_ids_have_an_owned_zero_gradient_of_int32(case: Case, device: ExecutionContext) -> None:
    component = case.build(device, TRAINING)
    plan = component.plan(case.context(TRAINING))
    assert component.build_context is not None
    shapes = component.build_context.input_shapes
    for port in component.ports:
        if port.is_ids:
            (planned,) = [b for b in plan.buffers if b.name == f"{port.name}.gradient" and b.dtype == np.int32]
            assert planned.shape == shapes[port.name]
    for port, gradient in zip(component.ports, run(component, case.inputs(component))[1], strict=True):
        if port.is_ids:
            assert gradient.dtype == np.int32
            assert gradient.shape == shapes[port.name]
            assert not gradient.any()
