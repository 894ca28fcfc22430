"""What a plan says would fit does, and the next larger does not: both asked of the graph again."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from mila.models import GptConfig, LlamaConfig
from mila.planning import Mode, OptimizerKind, PlanReport, PlanRequest, StoredWeights, Target, plan
from mila.planning.fitting import MOST_BATCH
from mila.planning.report import Choices, Outcome, Remedy
from mila.planning.searching import largest_within
from tests.planning.random_models import target_of

GPT = target_of(GptConfig(vocab_size=500, embedding_dim=64, num_layers=3, num_heads=4, max_seq_len=1000), "gpt")
LLAMA = target_of(
    LlamaConfig(
        vocab_size=900,
        embedding_dim=64,
        hidden_dim=160,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        max_seq_len=20000,
        sliding_window=300,
        sliding_layers=(2,),
    ),
    "llama",
)
#: Every request with a share of what it needs as its budget.
TIGHT: list[tuple[Target, dict[str, Any], float]] = [
    (target, fields, share)
    for target, fields in (
        (GPT, {"batch": 8}),
        (LLAMA, {"batch": 4, "dtype": "float64"}),
        (LLAMA, {"device": "cuda:0", "batch": 3, "prefill": 700}),
        (LLAMA, {"context": 300, "batch": 2}),
        (GPT, {"mode": "training", "batch": 12}),
        (LLAMA, {"mode": "training", "batch": 6, "context": 500, "accumulate": 2}),
        (GPT, {"mode": "training", "optimizer": "none", "dtype": "bfloat16", "device": "cuda:0"}),
    )
    for share in (0.0, 0.4, 1.0, 1.9)
]


def described(value: object) -> str:
    return value.name if isinstance(value, Target) else str(value)


def report_within(target: Target, fields: dict[str, Any], share: float) -> PlanReport:
    """Plan with a budget of a share of the reserved bytes, beside what is counted elsewhere."""
    request = PlanRequest.model_validate({**fields, "budget": 0})
    first = plan(target, request, search=False)
    elsewhere = first.verdict.needed_bytes - first.reserved_bytes
    return plan(target, request.model_copy(update={"budget": elsewhere + int(share * first.reserved_bytes)}))


def left_with(target: Target, report: PlanReport, **changes: Any) -> int:
    """Plan again with other choices; return what is left of the same budget."""
    fields = {name: value for name, value in report.choices.model_dump().items() if value is not None}
    fields |= {"budget": report.verdict.budget_bytes, **changes}
    if (fields.get("prefill") or 0) > fields["context"]:
        fields["prefill"] = fields["context"]
    left = plan(target, PlanRequest.model_validate(fields), search=False).verdict.left_bytes
    assert left is not None
    return left


@pytest.mark.parametrize(("target", "fields", "share"), TIGHT, ids=described)
def test_limits_fit_and_one_more_does_not(target: Target, fields: dict[str, Any], share: float) -> None:
    report = report_within(target, fields, share)
    assert [limit.option for limit in report.limits] == ["context", "batch"]
    asked = {"prefill": fields.get("prefill")}  # by default it is that of the context
    for limit in report.limits:
        if limit.value is None:
            assert left_with(target, report, **asked, **{limit.option: 1}) < 0
            assert limit.reserved_bytes is None
            continue
        assert left_with(target, report, **asked, **{limit.option: limit.value}) >= 0
        most = target.config.max_seq_len if limit.option == "context" else MOST_BATCH
        assert limit.is_models_limit is (limit.option == "context" and limit.value == most)
        if limit.value < most:
            assert left_with(target, report, **asked, **{limit.option: limit.value + 1}) < 0


@pytest.mark.parametrize(("target", "fields", "share"), TIGHT, ids=described)
def test_remedies_make_it_fit(target: Target, fields: dict[str, Any], share: float) -> None:
    report = report_within(target, fields, share)
    assert (report.verdict.outcome is Outcome.FITS) is (share >= 1)
    if share >= 1:
        assert report.remedies == []
    for remedy in report.remedies:
        changes = options_of(remedy)
        implied = ("accumulate", "prefill") if "prefill" not in remedy.change else ("accumulate",)
        assert left_with(target, report, **changes) == remedy.left_bytes >= 0
        assert remedy.change.split("+") == [name for name in changes if name not in implied]
        is_less(report.choices, changes)
    assert len({remedy.options for remedy in report.remedies}) == len(report.remedies)


def options_of(remedy: Remedy) -> dict[str, Any]:
    """Read the options as the command line does."""
    parts = shlex.split(remedy.options)
    return {
        name.removeprefix("--"): int(value) if value.isdigit() else value
        for name, value in zip(parts[::2], parts[1::2], strict=True)
    }


def is_less(choices: Choices, changes: dict[str, Any]) -> None:
    """Every change takes less, and training keeps its updates."""
    for name, value in changes.items():
        asked = getattr(choices, name)
        if name in ("context", "batch", "prefill"):
            assert value < asked
        elif name != "accumulate":
            assert value != asked
    if "accumulate" in changes:
        assert choices.accumulate is not None
        assert changes["batch"] * changes["accumulate"] == choices.batch * choices.accumulate


def test_the_least_intrusive_remedy_comes_first() -> None:
    report = report_within(LLAMA, {"batch": 2, "prefill": 2000, "context": 2000}, 0.9)
    order = ["prefill", "dtype", "quantize", "context", "batch"]
    found = [order.index(remedy.change) for remedy in report.remedies]
    assert found == sorted(found)
    assert report.remedies[0].change == "prefill"
    value = options_of(report.remedies[0])["prefill"]
    assert value & (value - 1) == 0


def test_two_changes_are_looked_for_where_one_is_not_enough_or_takes_most_away() -> None:
    enough = report_within(LLAMA, {"batch": 16}, 0.15)
    assert any("+" not in remedy.change for remedy in enough.remedies)
    *first, last = report_within(LLAMA, {"batch": 16}, 0.15).remedies
    assert first
    assert all("+" in remedy.change for remedy in first)
    assert last.options == "--batch 1"
    assert all("--batch 1" not in remedy.options for remedy in first)
    pairs = [remedy.change.count("+") for remedy in report_within(LLAMA, {"batch": 16}, 0.08).remedies]
    assert pairs
    assert set(pairs) == {1}


def test_three_changes_are_looked_for_where_two_are_not_enough() -> None:
    triples = report_within(LLAMA, {"batch": 16}, 0.02).remedies
    assert triples
    assert {remedy.change.count("+") for remedy in triples} == {2}
    request = PlanRequest(mode=Mode.TRAINING, batch=8, budget=1500 << 20)
    found = [sorted(shlex.split(remedy.options)) for remedy in plan("gpt2", request).remedies]
    assert sorted(shlex.split("--optimizer none --dtype bfloat16 --batch 1 --accumulate 8")) in found


def test_a_smaller_context_is_no_remedy_below_an_eighth_and_below_16() -> None:
    for context, least in ((20_000, 2500), (1001, 126), (40, 16), (16, 16)):
        contexts = []
        for share in (0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99):
            report = report_within(LLAMA, {"context": context, "batch": 4}, share)
            contexts += [options_of(remedy).get("context", context) for remedy in report.remedies]
        assert least <= min(contexts) <= context
        assert (min(contexts) < context) is (context > 16)


def test_training_suggests_parts_of_the_batch() -> None:
    report = report_within(GPT, {"mode": "training", "batch": 12, "accumulate": 2}, 0.8)
    assert report.remedies[0].change == "batch"
    assert report.remedies[0].options == "--batch 6 --accumulate 4"


def test_where_nothing_helps_nothing_is_suggested_and_little_is_asked() -> None:
    asked: list[Choices] = []
    report = plan(GPT, PlanRequest(mode=Mode.TRAINING, budget=70_000_000), on_question=asked.append)
    assert report.remedies == []
    assert [limit.value for limit in report.limits] == [None, None]
    assert len(asked) <= 5


def test_searching_is_optional() -> None:
    asked: list[Choices] = []
    report = plan(GPT, PlanRequest(budget=0), search=False, on_question=asked.append)
    assert (report.limits, report.remedies) == ([], [])
    assert len(asked) == 1


def test_half_precision_is_that_of_the_files() -> None:
    stored = replace(LLAMA, stored=StoredWeights(1000, {"float16": 800, "float32": 200}))
    for target, expected in ((LLAMA, "bfloat16"), (stored, "float16")):
        remedies = report_within(target, {"device": "cuda:0"}, 0.8).remedies
        assert [options_of(each)["dtype"] for each in remedies if each.change == "dtype"] == [expected]


def test_no_optimizer_is_the_last_resort() -> None:
    wide = target_of(GptConfig(vocab_size=5000, embedding_dim=64, num_layers=1, num_heads=4, max_seq_len=8), "wide")
    report = report_within(wide, {"mode": "training"}, 0.7)
    assert report.remedies[-1].options == "--optimizer none"
    assert report.choices.optimizer is OptimizerKind.ADAMW


def curves(random: Random) -> dict[str, Callable[[int], int]]:
    base, slope, knee = random.randint(1, 10**9), random.randint(1, 10**6), random.randint(1, 5000)
    return {
        "straight": lambda x: base + slope * x,
        "in steps": lambda x: -(-(base + slope * x) // 4096) * 4096,
        "bent": lambda x: max(base + slope * x, base // 2 + 3 * slope * x),
        "curved": lambda x: base + slope * x * x // 100,
        "flat at last": lambda x: base + slope * min(x, knee),
    }


@pytest.mark.parametrize("kind", curves(Random()))
def test_the_largest_number_is_found_with_few_questions(kind: str) -> None:
    random, counts = Random(kind), []
    for _ in range(200):
        cost, most = curves(random)[kind], random.choice([1, 2, 1000, 131072])
        asked: list[int] = []

        def ask(value: int, cost: Callable[[int], int] = cost, asked: list[int] = asked, most: int = most) -> int:
            assert 1 <= value <= most
            asked.append(value)
            return cost(value)

        budget = cost(random.randint(1, most)) + random.randint(-1000, 1000)
        found = largest_within(ask, budget, random.randint(1, most), most)
        if found is None:
            assert cost(1) > budget
        else:
            assert cost(found) <= budget
            assert found == most or cost(found + 1) > budget
        assert len(set(asked)) == len(asked)
        counts.append(len(asked))
    worst, mean = (5, 4) if kind == "straight" else (51, 12)
    assert max(counts) <= worst
    assert sum(counts) <= mean * len(counts)
