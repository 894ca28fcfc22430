"""P3: after build, a steady-state call allocates no array, so the prediction is also the peak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mila.components import ActivationConfig, GatherToken, LastPosition, Mean, PoolTokens, SoftmaxCrossEntropy, Sum
from mila.core import Component, Position, RuntimeMode, TrainingStep
from mila.devices import ExecutionContext
from tests.promises.case import INFERENCE, TRAINING, Array, Case, Shapes, constructor
from tests.promises.cases import CASES
from tests.promises.large_cases import LARGE_CASES, sizes
from tests.promises.measuring import STEADY_BYTES, STEADY_BYTES_PER_THREAD, peak_growth
from tests.promises.planted import AllocatesInBackward, AllocatesInForward

BUILDS = [(case, "float32", mode) for case in LARGE_CASES for mode in case.modes]
HALF_BUILDS = [(case, "bfloat16", mode) for case in LARGE_CASES for mode in case.modes][::5]
#: By how much a call may allocate more at twice the batch: whether two threads have their buffers at the same time is
#: chance. Of arrays of 1 MB, one temporary would be 1 MB more.
CHANCE_BYTES = 2 * STEADY_BYTES_PER_THREAD
#: What makes little of much: only its inputs are large.
SMALL = (GatherToken, LastPosition, Mean, PoolTokens, SoftmaxCrossEntropy, Sum)
SMALL_OUTPUTS = [case for case in LARGE_CASES if isinstance(case.make(None), SMALL)]
OF_THE_BATCH = ("output", "first", "out0", "input.gradient", "logits.gradient")


def limit(device: ExecutionContext) -> int:
    return STEADY_BYTES + STEADY_BYTES_PER_THREAD * device.threads


def whole_chunk(case: Case, mode: RuntimeMode, shapes: Shapes) -> dict[str, int]:
    """Let an inference build take the whole sequence at once."""
    accepts = mode is INFERENCE and case.make(None).accepts_prefill_size
    return {"prefill_size": shapes[1]} if accepts and isinstance(shapes, tuple) else {}


def steady_calls(
    case: Case, dtype: str, mode: RuntimeMode, shapes: Shapes, device: ExecutionContext
) -> dict[str, Callable[[], Any]]:
    """Return what is called again and again on one build, each call made once already."""
    component = case.build(device, mode, dtype, shapes=shapes, **whole_chunk(case, mode, shapes))
    inputs = case.inputs(component)
    calls: dict[str, Callable[[], Any]] = {"forward": lambda: component.forward(*inputs)}
    if mode is TRAINING:
        calls |= training_calls(component, inputs)
    else:
        calls |= decode_calls(case, component)
    for call in calls.values():
        call()
    return calls


def training_calls(component: Component[Any], inputs: list[Array]) -> dict[str, Callable[[], Any]]:
    if isinstance(component, TrainingStep):

        def train() -> None:
            component.forward(*inputs)
            component.zero_gradients()
            component.backward(*inputs)
            component.update(1e-3)

        return {"train": train, "logits": lambda: component.logits(inputs[0])}
    made = component.forward(*inputs)
    gradients = [np.ones_like(array) for array in (made if isinstance(made, tuple) else (made,))]

    def run() -> None:
        """Overwrite the gradients, then add to them."""
        component.zero_gradients()
        for _ in range(2):
            component.forward(*inputs)
            component.backward(*inputs, *gradients)

    return {"backward": run}


def decode_calls(case: Case, component: Component[Any]) -> dict[str, Callable[[], Any]]:
    """One token per row, at the end of the sequence."""
    assert component.build_context is not None
    shapes = component.build_context.input_shapes
    if not all(
        len(shape) >= 2 + (not port.is_ids) for port, shape in zip(component.ports, shapes.values(), strict=True)
    ):
        return {}
    ones = {name: (shape[0], 1, *shape[2:]) for name, shape in shapes.items()}
    if not case.takes(ones):
        return {}
    token = case.inputs_of(component, ones)
    last = Position(next(iter(shapes.values()))[1] - 1)
    return {"decode": lambda: component.forward(*token, position=last)}


@pytest.mark.parametrize(("case", "dtype", "mode"), [*BUILDS, *HALF_BUILDS], ids=str)
def test_a_steady_state_call_allocates_no_array(
    case: Case, dtype: str, mode: RuntimeMode, device: ExecutionContext
) -> None:
    both = sizes(case)
    single, double = (steady_calls(case, dtype, mode, shapes, device) for shapes in (both.single, both.double))
    for name, call in single.items():
        peak, twice = peak_growth(call), peak_growth(double[name])
        assert peak < limit(device), f"{name} allocates {peak:,} bytes"
        assert twice - peak < CHANCE_BYTES, f"{name} allocates {peak:,} bytes, and {twice:,} at twice the batch"


def test_the_activations_are_larger_than_what_is_allowed(device: ExecutionContext) -> None:
    for case, _, mode in BUILDS:
        plan = case.make(device).plan(case.context(mode, **whole_chunk(case, mode, case.shapes)))
        values = [buffer.nbytes for buffer in plan.buffers if buffer.name in OF_THE_BATCH]
        assert max(values, default=0) >= 2**20 or case in SMALL_OUTPUTS, case


def test_every_component_is_measured() -> None:
    from tests.promises.test_cases import CLASSES

    assert {type(case.make(None)) for case in LARGE_CASES} >= set(CLASSES)
    assert len(CASES) > len(LARGE_CASES)


@pytest.mark.parametrize(("planted", "name"), [(AllocatesInForward, "forward"), (AllocatesInBackward, "backward")])
def test_one_temporary_is_noticed(
    planted: type[Component[ActivationConfig]], name: str, device: ExecutionContext
) -> None:
    config = ActivationConfig(kind="relu")
    case = Case("planted", constructor(planted, config), (config,), (8, 128, 256))
    calls = steady_calls(case, "float32", TRAINING, (8, 128, 256), device)
    assert peak_growth(calls[name]) > limit(device)
