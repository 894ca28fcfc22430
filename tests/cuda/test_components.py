"""Whole components on the emulated device: the plan is what the pool gives, and the answers are those of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from mila.components import Activation
from mila.core import BuildContext, Component, Layout, RuntimeMode, TrainingStep
from mila.devices import ExecutionContext
from mila.errors import DeviceError
from tests.cuda.hosted import Hosted
from tests.promises.case import TRAINING, Array, Case
from tests.promises.cases import CASES, TRAINED
from tests.promises.gradient_check import as_tuple
from tests.promises.leaf_cases import LEAF_CASES
from tests.promises.running import differences, infer, train_once
from tests.promises.test_cases import CLASSES

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

#: Largest difference from the CPU, relative to the largest number of the answer, or to one. A leaf in half precision
#: rounds each result once to 8 or 11 bits, here and there, perhaps to two neighbours.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2.0**-7, "float16": 2.0**-10}
HALVES = ("bfloat16", "float16")
#: The gradient of a norm over one element is a difference of equal numbers: only how they were rounded is left of it.
ONE_ELEMENT = "HeadNorm(num_heads=1,num_kv_heads=1,head_dim=1)"
HALF_LEAVES = [
    (case, HALVES[number % 2], mode)
    for number, case in enumerate(LEAF_CASES)
    for mode in case.modes
    if not case.name.startswith(ONE_ELEMENT)
]

RUNS = [(case, mode) for case in CASES for mode in case.modes]
STORED = [
    *((case, "float32", mode) for case, mode in RUNS),
    *((case, HALVES[number % 2], mode) for number, (case, mode) in enumerate(RUNS[::3])),
]


#: A case of each component, and a fifth of all.
SOME_TRAINED = [*{type(case.make(None)): case for case in reversed(TRAINED)}.values(), *TRAINED[::5]]


class AllocatesAtBuild(Activation):
    """Allocates beside its declaration when it is built."""

    extra: Array | None = None

    def on_building(self, context: BuildContext) -> None:
        super().on_building(context)
        self.extra = self.device.allocate(64)


@pytest.fixture(scope="module")
def cpu() -> ExecutionContext:
    return ExecutionContext("cpu", threads=1)


def growth(component: Component[Any], context: BuildContext, device: CudaDevice) -> int:
    """Return the bytes of the pool that a build takes."""
    before = device.used_bytes()
    component.build(context)
    return device.used_bytes() - before


def test_every_case_of_the_promises_runs_here() -> None:
    """That no component and no option is without a case, the promises' own tests say, of the same list."""
    assert [(case.name, mode) for case, mode in RUNS] == [(case.name, mode) for case in CASES for mode in case.modes]
    assert {type(case.make(None)) for case, _ in RUNS} >= set(CLASSES)
    assert {type(case.make(None)) for case in SOME_TRAINED} == {type(case.make(None)) for case in TRAINED}
    assert {dtype for _, dtype, _ in STORED} == TOLERANCE.keys() == {"float32", *(dtype for _, dtype, _ in HALF_LEAVES)}


@pytest.mark.parametrize(("case", "dtype", "mode"), STORED, ids=str)
def test_the_pool_gives_what_the_plan_reserves_and_no_more_is_held(
    case: Case, dtype: str, mode: RuntimeMode, context: ExecutionContext, cuda: CudaDevice
) -> None:
    component = case.make(context, dtype)
    plan = component.plan(case.context(mode))
    assert growth(component, case.context(mode), cuda) == plan.reserved_bytes
    assert component.get_memory_stats() == plan.stats
    cuda.synchronize()  # what is queued keeps its arrays
    before = cuda.used_bytes()
    del component
    assert before - cuda.used_bytes() == plan.reserved_bytes


def test_bytes_beside_the_declaration_are_noticed(context: ExecutionContext, cuda: CudaDevice) -> None:
    component = AllocatesAtBuild("planted")
    component.set_execution_context(context)
    build = BuildContext((2, 3), TRAINING)
    assert growth(component, build, cuda) > component.plan(build).reserved_bytes


def answers(case: Case, component: Component[Any], mode: RuntimeMode) -> list[tuple[str, Array]]:
    """Return the outputs and gradients of one step, or what an inference build answers."""
    hosted = cast(Component[Any], Hosted(component))
    return list(train_once(hosted, case.inputs(component)) if mode is TRAINING else infer(case, hosted))


def difference(expected: Array, got: Array) -> float:
    """Return the largest difference, relative to the largest number expected or to one."""
    a, b = (array.astype(np.float64) for array in (expected, got))
    return float(np.max(np.abs(a - b), initial=0) / max(1.0, np.max(np.abs(a), initial=0)))


def assert_same_answers(case: Case, mode: RuntimeMode, dtype: str, devices: tuple[ExecutionContext, ...]) -> None:
    expected, got = (answers(case, case.build(device, mode, dtype), mode) for device in devices)
    assert [label for label, _ in got] == [label for label, _ in expected]
    for (label, a), (_, b) in zip(expected, got, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), label
        assert difference(a, b) <= TOLERANCE[dtype], f"{label}: {difference(a, b)}"


@pytest.mark.parametrize(("case", "mode"), RUNS, ids=str)
def test_answers_are_those_of_the_cpu(
    case: Case, mode: RuntimeMode, context: ExecutionContext, cpu: ExecutionContext
) -> None:
    assert_same_answers(case, mode, "float32", (cpu, context))


@pytest.mark.parametrize(("case", "dtype", "mode"), HALF_LEAVES, ids=str)
def test_a_leaf_in_half_precision_differs_from_the_cpu_by_a_rounding(
    case: Case, dtype: str, mode: RuntimeMode, context: ExecutionContext, cpu: ExecutionContext
) -> None:
    assert_same_answers(case, mode, dtype, (cpu, context))


class NoRoom:
    """A pool that gives nothing."""

    def malloc(self, size: int) -> Any:
        raise AssertionError(f"{size} bytes were allocated after the build")


@pytest.mark.parametrize("case", SOME_TRAINED, ids=str)
def test_a_step_allocates_nothing(
    case: Case, context: ExecutionContext, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    component = case.build(context, TRAINING)
    inputs = [cuda.to_device(array) for array in case.inputs(component)]
    is_step = isinstance(component, TrainingStep)
    gradients = [] if is_step else [cuda.to_device(cuda.download(y)) for y in as_tuple(component.forward(*inputs))]
    monkeypatch.setattr(cuda, "pool", NoRoom())
    component.forward(*inputs)
    component.backward(*inputs, *gradients)
    if isinstance(component, TrainingStep):
        component.update(0.01)
    cuda.synchronize()  # products know addresses only: the arrays must be there until then


@pytest.mark.parametrize("case", SOME_TRAINED, ids=str)
def test_declared_lifetimes_are_true(case: Case, context: ExecutionContext) -> None:
    shared, poisoned = (
        answers(case, case.build(context, TRAINING, layout=layout), TRAINING)
        for layout in (Layout.SHARED, Layout.POISONED)
    )
    assert differences(shared, poisoned) == []


def test_a_network_of_a_dtype_that_the_device_does_not_compute_is_refused(context: ExecutionContext) -> None:
    with pytest.raises(DeviceError, match="float64"):
        CASES[0].build(context, TRAINING, "float64")
