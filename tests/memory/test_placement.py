"""Offsets: nothing alive at one time shares a byte, and no byte is wasted on the models."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mila.components import SoftmaxCrossEntropy
from mila.core import BuildContext, Component, RuntimeMode, TrainingStep
from mila.memory import MemoryPlan
from mila.memory.placement import PlacementRequest, fullest_step, place_by_lifetime, place_one_after_another
from mila.models import GptConfig, GptTransformer, LlamaConfig, LlamaTransformer
from mila.training.adamw import AdamW

STEPS = 12
INTERVAL = st.tuples(st.integers(0, STEPS), st.integers(0, STEPS)).map(lambda pair: (min(pair), max(pair)))


@st.composite
def requests(draw: st.DrawFn) -> list[PlacementRequest]:
    found = []
    for index in range(draw(st.integers(0, 14))):
        first = draw(INTERVAL)
        intervals = [first]
        if first[1] + 1 <= STEPS and draw(st.booleans()):
            start = draw(st.integers(first[1] + 1, STEPS))
            intervals.append((start, draw(st.integers(start, STEPS))))
        size = 64 * draw(st.integers(0, 9))
        found.append(PlacementRequest(size, tuple(intervals), (f"path_{index % 3}", f"name_{index}")))
    return found


def alive_together(a: PlacementRequest, b: PlacementRequest) -> bool:
    return any(s <= f and t <= e for s, e in a.intervals for t, f in b.intervals)


def alive_bytes(found: list[PlacementRequest]) -> int:
    return max(
        (
            sum(r.size for r in found if any(start <= step <= end for start, end in r.intervals))
            for step in range(STEPS + 1)
        ),
        default=0,
    )


@given(requests())
def test_what_is_alive_together_never_overlaps(found: list[PlacementRequest]) -> None:
    offsets, total = place_by_lifetime(found)
    assert len(offsets) == len(found)
    for i, a in enumerate(found):
        assert 0 <= offsets[i] <= total - a.size
        assert offsets[i] % 64 == 0
        for j, b in enumerate(found[:i]):
            if alive_together(a, b):
                assert offsets[i] + a.size <= offsets[j] or offsets[j] + b.size <= offsets[i]


@given(requests())
def test_the_region_is_between_what_is_alive_and_everything(found: list[PlacementRequest]) -> None:
    _, total = place_by_lifetime(found)
    step, bound = fullest_step(found)
    assert bound == alive_bytes(found)
    assert sum(r.size for r in found if any(s <= step <= e for s, e in r.intervals)) == bound
    assert bound <= total <= sum(request.size for request in found)


def many_requests(random: Random) -> list[PlacementRequest]:
    """Sizes, steps and names that recur; short, long and nested intervals, as forward and backward passes have them."""
    last = random.choice((1, 7, 8, 9, 70, 600))
    steps = [random.randint(0, last) for _ in range(random.randint(1, 20))]
    found = []
    for index in range(random.randint(0, 40)):
        start, length = random.choice(steps), random.choice((0, 0, 1, 5, 20, last))
        kind = random.choice(("once", "twice", "nested"))
        end = max(start, last - start) if kind == "nested" else min(start + length, last)
        intervals = [(start, end)]
        if kind == "twice":
            intervals.append((last - start, last - start))
        size = 64 * random.choice((0, 1, 1, 2, 3, 5, 8))
        found.append(PlacementRequest(size, tuple(intervals), (f"path_{index % 3}", f"name_{index}")))
    return found


def placed_one_by_one(found: list[PlacementRequest]) -> tuple[list[int], int]:
    """The same rule without any structure: every candidate is compared with everything that was placed."""
    offsets: dict[int, int] = {}
    for i in sorted(range(len(found)), key=lambda i: (-found[i].size, found[i].intervals[0], found[i].name)):
        taken = [(offsets[j], offsets[j] + found[j].size) for j in offsets if alive_together(found[i], found[j])]
        candidates = sorted({0, *(end for _, end in taken)})
        offsets[i] = next(
            low for low in candidates if all(low + found[i].size <= first or end <= low for first, end in taken)
        )
    return [offsets[i] for i in range(len(found))], max((offsets[i] + found[i].size for i in offsets), default=0)


@settings(max_examples=500)
@given(st.integers(0, 2**64 - 1))
def test_offsets_are_those_of_the_straightforward_algorithm(seed: int) -> None:
    found = many_requests(Random(seed))
    assert place_by_lifetime(found) == placed_one_by_one(found)


@given(requests(), st.randoms())
def test_the_order_of_requests_does_not_matter(found: list[PlacementRequest], random: Any) -> None:
    placed = dict(zip([r.name for r in found], place_by_lifetime(found)[0], strict=True))
    shuffled = list(found)
    random.shuffle(shuffled)
    assert dict(zip([r.name for r in shuffled], place_by_lifetime(shuffled)[0], strict=True)) == placed


@given(requests())
def test_one_after_another_shares_no_byte(found: list[PlacementRequest]) -> None:
    offsets, total = place_one_after_another(found)
    assert total == sum(request.size for request in found)
    assert offsets == [sum(request.size for request in found[:i]) for i in range(len(found))]


def models() -> list[tuple[str, Component[Any], BuildContext]]:
    gpt = GptConfig(vocab_size=50257, embedding_dim=768, num_layers=12, num_heads=12, max_seq_len=1024)
    char = GptConfig(vocab_size=65, embedding_dim=384, num_layers=6, num_heads=6, max_seq_len=256, dropout=0.2)
    llama = LlamaConfig(
        vocab_size=32000,
        embedding_dim=1024,
        num_layers=8,
        num_heads=16,
        num_kv_heads=4,
        hidden_dim=2816,
        max_seq_len=2048,
    )

    def step(network: Component[Any]) -> TrainingStep:
        return TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())

    training, inference = RuntimeMode.TRAINING, RuntimeMode.INFERENCE
    return [
        ("gpt", GptTransformer("m", gpt), BuildContext((1, 256), training)),
        ("gpt step", step(GptTransformer("m", gpt)), BuildContext((8, 512), training)),
        ("gpt inference", GptTransformer("m", gpt), BuildContext((1, 1024), inference)),
        ("gpt one token", GptTransformer("m", gpt), BuildContext((4, 1024), inference, prefill_size=1)),
        ("char step", step(GptTransformer("m", char)), BuildContext((64, 256), training)),
        ("llama step", step(LlamaTransformer("m", llama)), BuildContext((2, 1024), training)),
        ("llama inference", LlamaTransformer("m", llama), BuildContext((1, 2048), inference)),
    ]


@pytest.mark.parametrize(("name", "component", "context"), models(), ids=[name for name, _, _ in models()])
def test_models_take_no_more_than_their_fullest_step(
    name: str, component: Component[Any], context: BuildContext
) -> None:
    plan = component.plan(context)
    assert plan.transient_bytes == plan.transient_lower_bound
    assert_disjoint(plan)


def assert_disjoint(plan: MemoryPlan) -> None:
    """Check over the plan itself that no two buffers alive together share a byte of one arena."""
    for step in range(len(plan.step_names)):
        alive = sorted(
            (b.arena, b.offset, b.offset + b.nbytes)
            for b in plan.buffers
            if b.nbytes and any(start <= step <= end for start, end in b.intervals)
        )
        for (arena, _, end), (other, start, _) in itertools.pairwise(alive):
            assert arena != other or end <= start
    assert all(b.offset % plan.alignment == 0 for b in plan.buffers)
    assert all(b.offset + b.nbytes <= plan.arena_bytes[b.arena] for b in plan.buffers)


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 9), st.booleans())
def test_a_plan_is_the_same_every_time(batch: int, length: int, trains: bool) -> None:
    config = GptConfig(vocab_size=11, embedding_dim=6, num_layers=2, num_heads=3, max_seq_len=9)
    context = BuildContext((batch, length), RuntimeMode.TRAINING if trains else RuntimeMode.INFERENCE)
    first, second = (GptTransformer("gpt", config).plan(context) for _ in range(2))
    assert first.to_json() == second.to_json()
