"""P2: what an unbuilt graph says it needs is what it holds once built, to the byte."""

from __future__ import annotations

import dataclasses

import pytest

from mila.core import Layout, RuntimeMode
from mila.devices import ExecutionContext
from mila.memory import Category, MemoryStats
from tests.promises.case import TRAINING, Case
from tests.promises.cases import BUILDS, CASES, HALF_BUILDS
from tests.promises.planted import GrowsAfterAsking, enlarge_one_live_buffer


def held_against_required(case: Case, dtype: str, mode: RuntimeMode, device: ExecutionContext) -> list[str]:
    """Return a line for every field of the stats that differs between the prediction and the build."""
    context = case.context(mode)
    required = case.make(device, dtype).get_required_memory(context)
    component = case.make(device, dtype)
    component.build(context)
    held = component.get_memory_stats()
    return [
        f"{field.name}: required {getattr(required, field.name)}, held {getattr(held, field.name)}"
        for field in dataclasses.fields(MemoryStats)
        if getattr(required, field.name) != getattr(held, field.name)
    ]


@pytest.mark.parametrize(("case", "dtype", "mode"), [*BUILDS, *HALF_BUILDS], ids=str)
def test_required_memory_is_what_is_held(case: Case, dtype: str, mode: RuntimeMode, device: ExecutionContext) -> None:
    assert held_against_required(case, dtype, mode, device) == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_neither_the_build_nor_a_run_changes_the_answer(case: Case, device: ExecutionContext) -> None:
    for mode in case.modes:
        component, context = case.make(device), case.context(mode)
        before = component.plan(context)
        component.build(context)
        assert component.plan(context).to_dict() == before.to_dict()
        case.prepare(component)
        component.forward(*case.inputs(component))
        assert component.get_memory_stats() == before.stats


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_required_memory_without_a_device_is_that_of_the_cpu(case: Case) -> None:
    one_thread = ExecutionContext("cpu", threads=1)
    for mode in case.modes:
        context = case.context(mode)
        assert case.make(None).get_required_memory(context) == case.make(one_thread).get_required_memory(context)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_other_layouts_are_predicted_too(case: Case, device: ExecutionContext) -> None:
    for mode in case.modes:
        context = case.context(mode, layout=Layout.POISONED)
        component = case.make(device)
        required = component.get_required_memory(context)
        component.build(context)
        assert component.get_memory_stats() == required


@pytest.mark.parametrize("case", CASES, ids=str)
def test_host_fields_are_zero_and_inference_holds_no_gradients_but_those_of_ids(
    case: Case, device: ExecutionContext
) -> None:
    for mode in case.modes:
        plan = case.make(device).plan(case.context(mode))
        assert plan.stats.total_host_bytes == 0
        assert mode is TRAINING or all(buffer.category is not Category.GRADIENT for buffer in plan.buffers)


def test_a_live_buffer_larger_than_declared_is_noticed(
    monkeypatch: pytest.MonkeyPatch, device: ExecutionContext
) -> None:
    case = CASES[0]
    assert held_against_required(case, "float32", TRAINING, device) == []
    enlarge_one_live_buffer(monkeypatch, 64)
    assert held_against_required(case, "float32", TRAINING, device) != []


def test_a_declaration_that_changes_after_asking_is_noticed(device: ExecutionContext) -> None:
    component = GrowsAfterAsking("planted", None)
    component.set_execution_context(device)
    context = CASES[0].context(TRAINING)
    required = component.get_required_memory(context)
    component.build(context)
    assert component.get_memory_stats().device_state_bytes == required.device_state_bytes + 64
