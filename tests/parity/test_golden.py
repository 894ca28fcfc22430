"""Mila agrees with PyTorch, by golden files that PyTorch wrote (``make_golden.py``); PyTorch itself is not needed.

Differences are relative to the largest magnitude of the tensor they are in (``relative_error``): an element of a
gradient that nearly cancels has no digits of its own to agree in.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from safetensors.numpy import load_file

from mila.core import BuildContext, RuntimeMode
from mila.kernels.signatures import Array
from tests.parity.component_cases import ACTIVATION_KINDS, COMPONENT_CASES, ComponentCase, run_component
from tests.parity.model_cases import (
    GOLDEN,
    MODEL_CASES,
    SCHEDULE,
    STEPS,
    ModelCase,
    build_training_step,
    draw_parameters,
    draw_tokens,
    load_all,
    named_gradients,
    named_parameters,
    new_network,
    relative_error,
    run_steps,
)

TOLERANCE = {"float32": 1e-5, "float64": 1e-11}
#: Of parameters after ten steps of AdamW, absolute: a tenth of the largest learning rate in float32.
TRAINED_TOLERANCE = {"float32": 0.1 * SCHEDULE.initial, "float64": 1e-9}

each_model = pytest.mark.parametrize("case", MODEL_CASES, ids=lambda case: case.name)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


@functools.cache
def golden_file(name: str) -> dict[str, Array]:
    return dict(load_file(GOLDEN / f"{name}.safetensors"))


def below(tensors: dict[str, Array], prefix: str) -> dict[str, Array]:
    """The tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def golden_parameters(case: ModelCase) -> dict[str, Array]:
    return below(golden_file(case.name), "parameter.")


def assert_close(actual: dict[str, Array], expected: dict[str, Array], tolerance: float) -> None:
    """Every tensor of ``expected``, and no other, is there and differs by no more than ``tolerance``, relatively."""
    assert actual.keys() == expected.keys()
    errors = {name: relative_error(actual[name], expected[name]) for name in expected}
    assert {name: error for name, error in errors.items() if not error <= tolerance} == {}


@pytest.mark.parametrize("mode", RuntimeMode)
@each_dtype
@each_model
def test_logits_agree(case: ModelCase, dtype: str, mode: RuntimeMode) -> None:
    golden = golden_file(case.name)
    network = new_network(case, dtype)
    network.build(BuildContext(case.shape, mode, all_logits=mode is RuntimeMode.INFERENCE))
    load_all(network, golden_parameters(case))
    logits = network.forward(golden["ids"][0])
    assert relative_error(logits, golden[f"{dtype}.logits"]) <= TOLERANCE[dtype]


@each_dtype
@each_model
def test_loss_and_every_gradient_agree(case: ModelCase, dtype: str) -> None:
    golden = golden_file(case.name)
    step = build_training_step(case, dtype, golden_parameters(case))
    ids, targets = golden["ids"][0], golden["targets"][0]
    loss = step.forward(ids, targets).copy()
    step.backward(ids, targets)
    assert relative_error(loss, golden[f"{dtype}.losses"][:1]) <= TOLERANCE[dtype]
    assert_close(named_gradients(step), below(golden, f"{dtype}.gradient."), TOLERANCE[dtype])


@each_dtype
@each_model
def test_ten_steps_of_adamw_agree(case: ModelCase, dtype: str) -> None:
    golden = golden_file(case.name)
    step = build_training_step(case, dtype, golden_parameters(case))
    losses, norms = run_steps(step, golden)
    assert relative_error(losses, golden[f"{dtype}.losses"]) <= 10 * TOLERANCE[dtype]
    assert relative_error(norms, golden[f"{dtype}.norms"]) <= 10 * TOLERANCE[dtype]
    trained = below(golden, f"{dtype}.trained.")
    differences = {name: np.abs(array - trained[name]).max() for name, array in named_parameters(step).items()}
    assert differences.keys() == trained.keys()
    assert {name: value for name, value in differences.items() if not value <= TRAINED_TOLERANCE[dtype]} == {}


@each_model
def test_ten_steps_move_every_parameter(case: ModelCase) -> None:
    """Otherwise the comparison above would say little."""
    golden = golden_file(case.name)
    initial, trained = golden_parameters(case), below(golden, "float64.trained.")
    assert all(np.abs(trained[name] - initial[name]).max() > SCHEDULE.initial for name in initial)


def test_clipping_is_part_of_the_comparison() -> None:
    clipped = [
        (golden_file(case.name)["float64.norms"] > case.optimizer.maximum_norm).sum()
        for case in MODEL_CASES
        if case.optimizer.maximum_norm is not None
    ]
    assert clipped and all(clipped)


@each_dtype
@pytest.mark.parametrize("case", COMPONENT_CASES, ids=str)
def test_components_agree(case: ComponentCase, dtype: str) -> None:
    golden = below(golden_file("components"), f"{case.name}.")
    expected = below(golden, "float64.")
    actual = run_component(case, dtype, golden)
    assert all(array.dtype == dtype for array in actual.values())
    assert_close({name: array.astype(np.float64) for name, array in actual.items()}, expected, TOLERANCE[dtype])


def test_every_activation_is_compared() -> None:
    names = {case.name for case in COMPONENT_CASES}
    assert {f"{component}_{kind}" for component in ("activation", "swiglu") for kind in ACTIVATION_KINDS} <= names


@each_model
def test_golden_inputs_are_those_of_the_case(case: ModelCase) -> None:
    """A case that was changed without writing its file again is found here rather than as a wrong number."""
    golden = golden_file(case.name)
    drawn = {f"parameter.{name}": array for name, array in draw_parameters(case).items()} | draw_tokens(case)
    assert all(np.array_equal(golden[name], array) for name, array in drawn.items())
    assert below(golden, "parameter.").keys() == draw_parameters(case).keys()
    assert len(golden["float64.losses"]) == STEPS
