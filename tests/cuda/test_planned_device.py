"""A CUDA device that is not here plans as the one that is, and does nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from mila.devices import ExecutionContext
from mila.devices.planned import PlannedCudaDevice
from mila.errors import DeviceError, MilaError
from mila.memory import MemoryPlan
from mila.models import GptConfig, GptTransformer
from mila.planning import PlanRequest, plan, read_target
from mila.planning.building import build_context, construct
from mila.planning.report import Outcome
from tests.promises.case import INFERENCE, TRAINING, Case
from tests.promises.cases import CASES

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

DTYPES = ("float32", "bfloat16", "float16")


def planned_context() -> ExecutionContext:
    return ExecutionContext.to_plan_with("cuda:0")


def plan_or_refusal(case: Case, device: ExecutionContext, dtype: str, training: bool) -> MemoryPlan | str:
    mode = TRAINING if training else INFERENCE
    try:
        return case.make(device, dtype).plan(case.context(mode))
    except MilaError as error:
        return str(error)


@pytest.mark.parametrize("dtype", DTYPES)
def test_plans_are_those_of_the_device_that_is_here(context: ExecutionContext, dtype: str) -> None:
    cases = CASES[::3] if dtype == "float32" else CASES[::9]
    wrong = []
    for case in cases:
        for mode in case.modes:
            here = plan_or_refusal(case, context, dtype, mode is TRAINING)
            planned = plan_or_refusal(case, planned_context(), dtype, mode is TRAINING)
            if here != planned:
                wrong.append(f"{case} {mode}: {here} is not {planned}")
    assert wrong == []


def test_plans_differ_from_those_of_the_cpu() -> None:
    config = GptConfig(vocab_size=31, embedding_dim=16, num_layers=2, num_heads=2, max_seq_len=8)
    case = Case("gpt", lambda **arguments: GptTransformer("gpt", config, **arguments), (config,), (1, 8))
    on_cuda, on_cpu = planned_context(), ExecutionContext("cpu")
    for dtype in DTYPES:
        planned, other = (case.make(device, dtype).plan(case.context(INFERENCE)) for device in (on_cuda, on_cpu))
        assert (planned.alignment, other.alignment) == (512, 64)
        assert planned.arena_bytes != other.arena_bytes


def test_it_computes_what_the_device_computes() -> None:
    config = GptConfig(vocab_size=31, embedding_dim=16, num_layers=1, num_heads=2, max_seq_len=8)
    network = GptTransformer("gpt", config, dtype="float64")
    with pytest.raises(DeviceError, match="float64"):
        network.set_execution_context(planned_context())


def test_a_build_is_refused_and_can_be_planned_again() -> None:
    config = GptConfig(vocab_size=31, embedding_dim=16, num_layers=1, num_heads=2, max_seq_len=8)
    case = Case("gpt", lambda **arguments: GptTransformer("gpt", config, **arguments), (config,), (1, 8))
    network, build = case.make(planned_context()), case.context(TRAINING)
    before = network.plan(build)
    with pytest.raises(DeviceError, match=r"device cuda:0: .* cannot allocate"):
        network.build(build)
    assert not network.is_built
    assert network.plan(build) == before


def test_nothing_but_sizes_is_to_be_had() -> None:
    device = planned_context().device
    assert isinstance(device, PlannedCudaDevice)
    assert (device.available_bytes(), device.total_bytes(), device.is_host) == (None, None, False)
    array = np.zeros(1, np.float32)
    for call in (
        lambda: device.multiprocessor_count,
        lambda: device.scratch,
        lambda: device.no_bytes,
        lambda: device.allocate(1),
        device.synchronize,
        lambda: device.address_of(array),
        lambda: device.as_array("input", array),
        lambda: device.set_bytes(array, 0),
        lambda: device.upload(array, array),
        lambda: device.download(array),
        lambda: device.to_device(array),
        lambda: device.read(array),
        lambda: device.write(array, array),
        lambda: device.launch("family", "kernel", array.dtype, 1, 1, []),
        lambda: device.multiply(array, array, array),
    ):
        with pytest.raises(DeviceError, match="is here to plan with only"):
            call()


def test_the_cpu_needs_no_stand_in() -> None:
    context = ExecutionContext.to_plan_with("cpu")
    assert context.device.is_host


def test_what_is_free_on_a_device_that_is_here_is_the_budget(cuda: CudaDevice) -> None:
    report = plan("gpt2", PlanRequest(device="cuda:0", dtype="bfloat16"), search=False)
    counted = sum(line.bytes or 0 for line in report.elsewhere if line.is_counted)
    assert report.verdict.budget_bytes == cuda.available_bytes() + counted
    assert report.verdict.budget_source.startswith("free on cuda:0 now")
    assert report.verdict.outcome in (Outcome.FITS, Outcome.DOES_NOT_FIT)
    context = ExecutionContext("cuda:0")
    here = construct(read_target("gpt2"), report.choices, context).plan(build_context(report.choices))
    assert here.reserved_bytes == report.reserved_bytes
