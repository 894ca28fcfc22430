"""Networks of the definition language on the device: every operator with every option, and both reference networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mila import DefinedNetwork, TrainingStep
from mila.components import SoftmaxCrossEntropy
from mila.core import BuildContext
from mila.devices import ExecutionContext
from mila.network_language import BUILT_IN
from mila.training import AdamW, AdamWConfig
from tests.cuda.test_components import TOLERANCE, assert_same_answers, difference
from tests.network_language.building import inputs_of, network_of
from tests.network_language.network_cases import CASE_BY_ID
from tests.network_language.operator_calls import ALL_CALLS, Call
from tests.network_language.test_operator_gradients import gradient_case
from tests.network_language.test_reference_networks import BATCH, NAMES
from tests.promises.case import TRAINING, Array, Case

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

#: The gradient of a key's bias is zero but for roundings, which a small epsilon would magnify to whole updates.
OPTIMIZER = AdamWConfig(epsilon=1e-4)


@pytest.fixture(scope="module")
def cpu() -> ExecutionContext:
    return ExecutionContext("cpu", threads=1)


def case_of(call: Call) -> Case:
    """The network of a call, whose inputs are those of the gradient checks."""

    def construct(compute_dtype: str = "float32", **options: Any) -> DefinedNetwork:
        return call.network(dtype=compute_dtype, **options)

    return gradient_case(str(call), construct)


@pytest.mark.parametrize("call", ALL_CALLS, ids=str)
def test_an_operator_gives_the_outputs_and_gradients_of_the_cpu(
    call: Call, context: ExecutionContext, cpu: ExecutionContext
) -> None:
    assert_same_answers(case_of(call), TRAINING, "float32", (cpu, context))


def test_every_operator_is_among_them() -> None:
    """That every option is, too, the gradient checks say, which go through the same list."""
    assert {call.alias for call in ALL_CALLS} == {*BUILT_IN}


def built_step(case: dict[str, Any], device: ExecutionContext, dtype: str = "float32") -> tuple[TrainingStep, int]:
    """A reference network with a loss over classes, and the bytes that its plan reserves."""
    network = network_of(case, device=None, dtype=dtype)
    step = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW(OPTIMIZER))
    step.set_execution_context(device)
    shapes = {"x": (BATCH, *case["input_shape"][1:]), "targets": (BATCH,)}
    build = BuildContext(shapes, TRAINING)
    reserved = step.plan(build).reserved_bytes
    step.build(build)
    return step, reserved


def trained(case: dict[str, Any], device: ExecutionContext) -> dict[str, Array]:
    """The loss, every gradient and every parameter of one step."""
    step, _ = built_step(case, device)
    (ids,) = inputs_of(step.network, BATCH)  # type: ignore[arg-type]
    targets = np.random.default_rng(1).integers(0, case["output_shape"][1], BATCH)
    batch = [device.to_device(array) for array in (ids, targets)]
    answers = {"loss": step.forward(*batch)}
    step.zero_gradients()
    step.backward(*batch)
    names = step.get_parameter_names()
    for name, gradient in zip(names, step.get_gradients(), strict=True):
        assert gradient is not None
        answers[f"{name}.gradient"] = gradient
    answers = {name: device.to_host(array).copy() for name, array in answers.items()}
    answers["norm"] = np.array([step.update(0.01)])
    return answers | {
        name: device.to_host(array).copy() for name, array in zip(names, step.get_parameters(), strict=True)
    }


each_reference = pytest.mark.parametrize("case", [CASE_BY_ID[name] for name in NAMES], ids=lambda case: case["id"])


@each_reference
def test_a_reference_network_trains_a_step_as_on_the_cpu(
    case: dict[str, Any], context: ExecutionContext, cpu: ExecutionContext
) -> None:
    expected, got = trained(case, cpu), trained(case, context)
    assert [*got] == [*expected]
    assert any("gather" in node.operator.alias for node in network_of(case).resolved.nodes)
    for name, array in expected.items():
        assert difference(array, got[name]) <= TOLERANCE["float32"], name


@each_reference
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_pool_gives_what_the_plan_of_a_reference_network_reserves(
    case: dict[str, Any], dtype: str, context: ExecutionContext, cuda: CudaDevice
) -> None:
    before = cuda.used_bytes()
    step, reserved = built_step(case, context, dtype)
    assert cuda.used_bytes() - before == reserved
    cuda.synchronize()
    del step
    assert cuda.used_bytes() == before
