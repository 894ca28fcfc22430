"""P4: the machine agrees with the plan: NumPy's allocator to the byte, the operating system within a hundredth."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tracemalloc
from typing import Any

import pytest

from mila.components import TokenEmbedding, TokenEmbeddingConfig
from mila.core import BuildContext, Component, RuntimeMode
from mila.devices import ExecutionContext
from tests.promises.case import TRAINING
from tests.promises.cases import BUILDS
from tests.promises.measuring import array_bytes, tracing
from tests.promises.planted import AllocatesAtBuild

MIB = 2**20


def growth_beyond_plan(component: Component[Any], context: BuildContext, reserved: int) -> int:
    """Return by how much more than its plan reserves a build makes NumPy allocate; call it within ``tracing``."""
    tracemalloc.clear_traces()
    component.build(context)
    return array_bytes() - reserved


def test_a_build_takes_from_numpy_what_its_plan_reserves(device: ExecutionContext) -> None:
    wrong = []
    for case, dtype, mode in BUILDS[::20]:
        case.build(device, mode, dtype)  # a first build fills the kernels' constants
    planned = [case.make(device, dtype).plan(case.context(mode)).reserved_bytes for case, dtype, mode in BUILDS]
    with tracing():
        for (case, dtype, mode), reserved in zip(BUILDS, planned, strict=True):
            component = case.make(device, dtype)
            difference = growth_beyond_plan(component, case.context(mode), reserved)
            if difference:
                wrong.append(f"{case} {dtype} {mode}: {difference:+} bytes")
            del component
    assert wrong == []


def test_64_bytes_beside_the_declaration_are_noticed(device: ExecutionContext) -> None:
    planted = AllocatesAtBuild("planted")
    planted.set_execution_context(device)
    context = BuildContext((2, 3), TRAINING)
    reserved = planted.plan(context).reserved_bytes
    with tracing():
        assert growth_beyond_plan(planted, context, reserved) == 64


def test_a_dropped_root_gives_everything_back_at_once(device: ExecutionContext) -> None:
    case = next(case for case, _, _ in BUILDS if str(case).startswith("TrainingStep"))
    with tracing():
        before = array_bytes()
        component = case.build(device, TRAINING)
        component.forward(*case.inputs(component))
        assert array_bytes() > before
        del component
        assert array_bytes() == before


PROGRAM = """
    import gc

    import numpy as np

    from mila import BuildContext, ExecutionContext, RuntimeMode, TrainingStep
    from mila.components import SoftmaxCrossEntropy
    from mila.models import GptConfig, GptTransformer
    from mila.training.adamw import AdamW


    def resident() -> int:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


    def step(width: int, layers: int, vocab_size: int) -> TrainingStep:
        config = GptConfig(
            vocab_size=vocab_size, embedding_dim=width, num_layers=layers, num_heads=4, max_seq_len=64
        )
        network = GptTransformer("gpt", config)
        return TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW(), device="cpu")


    step(16, 1, 11).build(BuildContext((2, 8), RuntimeMode.TRAINING))
    gc.collect()
    {construct}
    context = BuildContext((2, 64), RuntimeMode.TRAINING)
    before = resident()
    component.build(context)
    print(component.plan(context).reserved_bytes, resident() - before)
"""


def build_in_a_new_process(construct: str) -> tuple[int, int]:
    """Return the bytes that the plan reserves and the growth of resident memory over the build."""
    program = textwrap.dedent(PROGRAM).replace("{construct}", construct)
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    reserved, growth = map(int, completed.stdout.split())
    return reserved, growth


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
@pytest.mark.parametrize(
    ("construct", "smallest", "largest"),
    [
        ("component = step(768, 4, 4096)", 500 * MIB, 600 * MIB),
        ("component = step(64, 2, 128)", 2 * MIB, 20 * MIB),
        ("component = step(256, 2, 512)", 20 * MIB, 60 * MIB),
    ],
)
def test_resident_memory_grows_by_what_the_plan_reserves(construct: str, smallest: int, largest: int) -> None:
    reserved, growth = build_in_a_new_process(construct)
    assert smallest <= reserved <= largest
    allowed = reserved / 100 if reserved >= 500 * MIB else 4 * MIB
    assert abs(growth - reserved) <= allowed, f"reserved {reserved:,} bytes, resident memory grew by {growth:,}"


def test_the_documented_example_holds() -> None:
    embedding = TokenEmbedding("wte", TokenEmbeddingConfig(vocab_size=50257, embedding_dim=768), device="cpu")
    required = embedding.get_required_memory(BuildContext((4, 64), RuntimeMode.TRAINING))
    assert required.device_parameter_bytes == 154389504
    assert required.device_state_bytes == 786432
    assert required.device_gradient_bytes == 154390528
    assert required.total_bytes == 154389504 + 786432 + 154390528
