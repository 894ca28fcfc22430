"""A plan of a target is what a build of it takes, to the byte, in lines that sum up."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mila.components import Attention
from mila.core import Component, TrainingStep
from mila.devices import ExecutionContext
from mila.errors import ConfigurationError, DeviceError, DTypeError, ShapeError, UnaddressableError
from mila.memory import MemoryStats
from mila.models import GptConfig, LlamaConfig
from mila.planning import Mode, OptimizerKind, PlanReport, PlanRequest, Target, plan
from mila.planning.building import build_context, construct
from mila.planning.report import Choices, Outcome
from tests.planning.random_models import (
    ARCHITECTURES,
    CPU_DTYPES,
    CUDA_DTYPES,
    random_cases,
    random_request,
    random_target,
    target_of,
)

KEYS = ["parameters", "gradients", "moments", "cache", "tables", "persistent", "transient", "alignment"]
GPT = target_of(GptConfig(vocab_size=50, embedding_dim=24, num_layers=3, num_heads=2, max_seq_len=64), "gpt")
LLAMA = target_of(
    LlamaConfig(
        vocab_size=50,
        embedding_dim=24,
        hidden_dim=40,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        max_seq_len=64,
        sliding_window=8,
        sliding_layers=(1,),
    ),
    "llama",
)
HERE = ExecutionContext("cpu", threads=2)


def built(target: Target, choices: Choices) -> Component[Any]:
    root = construct(target, choices, HERE)
    root.build(build_context(choices))
    return root


def sizes(report: PlanReport) -> dict[str, int]:
    return {line.key: line.bytes for line in report.lines}


def check_sums(report: PlanReport) -> None:
    """Everything in a report that must add up does."""
    assert [line.key for line in report.lines] == KEYS
    assert all(line.bytes >= 0 for line in report.lines)
    assert sum(line.bytes for line in report.lines) == report.reserved_bytes
    step, lines = report.fullest_step, sizes(report)
    assert sum(line.bytes for line in step.lines) == step.bytes <= step.region_bytes == lines["transient"]
    assert step.unshared_bytes >= step.region_bytes - 512 * 200
    root, *rest = report.tree
    assert root.depth == 0
    assert all(row.depth > 0 for row in rest)
    assert root.parameter_bytes == lines["parameters"] == report.parameter_bytes
    assert root.gradient_bytes == lines["gradients"]
    assert root.state_bytes == lines["moments"] + lines["cache"] + lines["tables"] + lines["persistent"]
    assert root.fullest_bytes == step.bytes
    if report.choices.mode is Mode.INFERENCE:
        assert lines["gradients"] == lines["moments"] == lines["persistent"] == 0
        assert lines["cache"] > 0 or not report.target.layers
    else:
        assert lines["cache"] == 0
        assert (lines["moments"] > 0) is (report.choices.optimizer is OptimizerKind.ADAMW)


def live_sizes(root: Component[Any]) -> dict[str, int]:
    """What the arrays of a built network hold, found by what they are used for."""
    network = root.network if isinstance(root, TrainingStep) else root
    attentions = [part for part in network.walk() if isinstance(part, Attention) and part.has_buffer("keys")]
    return {
        "parameters": sum(array.nbytes for array in network.get_parameters()),
        "gradients": sum(array.nbytes for array in network.get_gradients() if array is not None),
        "moments": sum(a.nbytes for a in root.optimizer_moments().values()) if isinstance(root, TrainingStep) else 0,
        "cache": sum(part.workspace(name).nbytes for part in attentions for name in ("keys", "values")),
    }


def test_200_random_models_take_what_was_planned(tmp_path: Path) -> None:
    wrong = []
    for target, request in random_cases(200, tmp_path):
        report = plan(target, request, search=False)
        check_sums(report)
        root = built(target, report.choices)
        planned = MemoryStats(report.parameter_bytes, report.state_bytes, report.gradient_bytes)
        if root.get_memory_stats() != planned:
            wrong.append(f"{target.config} {request}: planned {planned}, built {root.get_memory_stats()}")
        lines = sizes(report)
        for key, size in live_sizes(root).items():
            if lines[key] != size:
                wrong.append(f"{target.config} {request}: planned {key} {lines[key]}, built {size}")
    assert wrong == []


@pytest.mark.parametrize("model_type", ARCHITECTURES)
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_lines_sum_up(tmp_path: Path, model_type: str, device: str) -> None:
    random = Random(model_type)
    for dtype in CPU_DTYPES if device == "cpu" else CUDA_DTYPES:
        for mode, optimizer in ((Mode.INFERENCE, "adamw"), (Mode.TRAINING, "adamw"), (Mode.TRAINING, "none")):
            target = random_target(random, tmp_path, model_type)
            asked = {
                **random_request(random, target, device).model_dump(),
                "mode": mode,
                "dtype": dtype,
                "prefill": None,
            }
            asked |= {"optimizer": optimizer, "accumulate": 1}
            check_sums(plan(target, PlanRequest.model_validate(asked), search=False))


PROGRAM = """
    import gc
    import sys

    from mila.planning import PlanRequest, plan
    from mila.planning.building import build_context, construct
    from mila.devices import ExecutionContext
    from tests.planning.random_models import target_of
    from mila.models import GptConfig, LlamaConfig
    from mila.training.measurement import resident_bytes


    def grown(target, request):
        report = plan(target, request, search=False)
        root = construct(target, report.choices, ExecutionContext("cpu"))
        context = build_context(report.choices)
        root.plan(context)
        gc.collect()
        before = resident_bytes()
        root.build(context)
        return report.reserved_bytes, resident_bytes() - before


    small = GptConfig(vocab_size=11, embedding_dim=16, num_layers=1, num_heads=4, max_seq_len=8)
    for mode in ("training", "inference"):
        grown(target_of(small), PlanRequest(mode=mode))
    print(*grown(target_of({config}), PlanRequest({request})))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
@pytest.mark.parametrize(
    ("config", "request_text"),
    [
        (
            "GptConfig(vocab_size=5000, embedding_dim=768, num_layers=4, num_heads=4, max_seq_len=64)",
            "mode='training', batch=2",
        ),
        (
            "LlamaConfig(vocab_size=9000, embedding_dim=512, hidden_dim=1400, num_layers=4, num_heads=8,"
            " num_kv_heads=2, max_seq_len=20000)",
            "batch=2, dtype='bfloat16'",
        ),
        (
            "LlamaConfig(vocab_size=900, embedding_dim=128, hidden_dim=300, num_layers=4, num_heads=8, max_seq_len=99)",
            "mode='training', batch=3, optimizer='none'",
        ),
    ],
)
def test_resident_memory_grows_by_what_was_planned(config: str, request_text: str) -> None:
    program = textwrap.dedent(PROGRAM).format(config=config, request=request_text)
    root = Path(__file__).parents[2]
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=root)
    assert completed.returncode == 0, completed.stderr
    reserved, growth = map(int, completed.stdout.split())
    allowed = reserved / 100 if reserved >= 500 << 20 else 4 << 20
    assert abs(growth - reserved) <= allowed, f"planned {reserved:,} bytes, resident memory grew by {growth:,}"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
def test_resident_memory_of_200_random_models_grows_by_what_was_planned(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.planning.resident_growth", "200", str(tmp_path)]
    root, returns_freed_memory = Path(__file__).parents[2], {"MALLOC_MMAP_THRESHOLD_": "65536"}
    environment = {**os.environ, **returns_freed_memory}
    completed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=environment)
    assert completed.returncode == 0, completed.stderr
    lines = completed.stdout.splitlines()
    wrong = []
    for line in lines:
        reserved, growth = map(int, line.split()[:2])
        if abs(growth - reserved) > max(reserved / 100, 4 << 20):
            wrong.append(line)
    assert wrong == []
    assert len(lines) == 200


def test_planning_the_largest_takes_little_memory() -> None:
    program = """
        import resource

        from mila.planning import PlanRequest, plan

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        plan("llama-3.1-405b", PlanRequest(context=131072, budget=1 << 40))
        print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(completed.stdout) < 100_000_000


# ---------------------------------------------------------------------- the budget


@pytest.mark.parametrize("device", ["cpu", "cuda:3"])
@pytest.mark.parametrize("mode", list(Mode))
def test_the_verdict_turns_at_the_last_byte(mode: Mode, device: str) -> None:
    request = PlanRequest(mode=mode, device=device, budget=0)
    needed = plan(LLAMA, request, search=False).verdict.needed_bytes
    for budget, outcome in ((needed, Outcome.FITS), (needed - 1, Outcome.DOES_NOT_FIT), (0, Outcome.DOES_NOT_FIT)):
        verdict = plan(LLAMA, request.model_copy(update={"budget": budget}), search=False).verdict
        assert (verdict.outcome, verdict.budget_bytes, verdict.left_bytes) == (outcome, budget, budget - needed)


def test_needed_is_what_is_reserved_and_what_is_known_of_elsewhere() -> None:
    for device in ("cpu", "cuda:0"):
        report = plan(GPT, PlanRequest(device=device, budget=1 << 40), search=False)
        counted = [line.bytes for line in report.elsewhere if line.is_counted and line.bytes is not None]
        assert report.verdict.needed_bytes == report.reserved_bytes + sum(counted)
        assert all(line.source for line in report.elsewhere)


def test_without_a_budget_what_is_free_counts_and_a_device_that_is_not_here_says_nothing() -> None:
    here = plan(GPT, PlanRequest()).verdict
    assert here.outcome is Outcome.FITS
    assert here.budget_source == "free on this machine now"
    elsewhere = plan(GPT, PlanRequest(device="cuda:7"))
    assert elsewhere.verdict.outcome is Outcome.UNKNOWN
    assert "cuda:7 is not here" in elsewhere.verdict.budget_source
    assert (elsewhere.limits, elsewhere.remedies) == ([], [])


# ---------------------------------------------------------------------- choices


def test_choices_that_were_not_made_are_the_models() -> None:
    chosen = plan(GPT, search=False).choices
    assert (chosen.mode, chosen.context, chosen.batch, chosen.prefill) == (Mode.INFERENCE, 64, 1, 64)
    assert (chosen.dtype, chosen.quantize, chosen.optimizer, chosen.accumulate) == ("float32", None, None, None)
    trained = plan(GPT, PlanRequest(mode=Mode.TRAINING), search=False).choices
    assert (trained.prefill, trained.optimizer, trained.accumulate) == (None, OptimizerKind.ADAMW, 1)
    assert plan(GPT, PlanRequest(device="CUDA"), search=False).choices.device == "cuda:0"


def test_accumulation_takes_no_byte_more() -> None:
    one, many = (plan(GPT, PlanRequest(mode=Mode.TRAINING, accumulate=passes), search=False) for passes in (1, 64))
    assert one.lines == many.lines
    assert any("64 passes" in sentence for sentence in many.assumptions)


def test_assumptions_say_what_was_chosen() -> None:
    inference = " ".join(plan(LLAMA, PlanRequest(dtype="bfloat16"), search=False).assumptions)
    for words in ("all 64 positions", "in bfloat16.", "computed in float32", "In 1 of 3 layers", "last position"):
        assert words in inference
    on_cuda = " ".join(plan(LLAMA, PlanRequest(dtype="bfloat16", device="cuda:0"), search=False).assumptions)
    assert "computed in float32" not in on_cuda
    assert "Not measured" in on_cuda
    training = " ".join(plan(GPT, PlanRequest(mode=Mode.TRAINING, context=8), search=False).assumptions)
    for words in ("two moments", "every position", "in float32, the default", "counted once"):
        assert words in training
    assert "allows, as none was asked for" not in training


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"context": 65}, ShapeError, "context: expected at most 64 positions, which gpt allows, got 65"),
        ({"prefill": 9, "context": 8}, ShapeError, "prefill: expected at most the context of 8 positions, got 9"),
        ({"mode": "training", "prefill": 8}, ConfigurationError, "prefill: is for inference"),
        ({"accumulate": 2}, ConfigurationError, "accumulate: is for training"),
        ({"dtype": "int8"}, DTypeError, "dtype: expected one of float32"),
        ({"quantize": "fp8"}, ConfigurationError, "quantize: expected none"),
        ({"device": "tpu"}, DeviceError, "device: expected 'cpu' or 'cuda:<index>', got 'tpu'"),
        ({"device": "cuda:0", "dtype": "float64"}, DeviceError, "not float64"),
        ({"batch": 10**16}, UnaddressableError, "more than any memory addresses"),
    ],
)
def test_options_that_no_build_takes_are_refused_in_one_line(
    fields: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        plan(GPT, PlanRequest.model_validate(fields))
    assert "\n" not in str(caught.value)


def test_a_target_is_a_target_or_a_name() -> None:
    with pytest.raises(ConfigurationError, match="expected a Target or a name, got int"):
        plan(3)  # type: ignore[arg-type]
    assert plan("gpt2", search=False).target.parameters == 124_439_808


def test_a_path_is_a_name(tmp_path: Path) -> None:
    target = random_target(Random(1), tmp_path, "llama")
    assert plan(tmp_path, search=False).lines == plan(target, search=False).lines
