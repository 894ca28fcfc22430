"""Plans: what they print and export, and that lifetimes pay."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from typing import Any

import pytest

from mila.components import Attention, AttentionConfig, SoftmaxCrossEntropy
from mila.core import BuildContext, Component, Layout, RuntimeMode, TrainingStep
from mila.memory import MemoryPlan
from mila.models import GptConfig, GptTransformer, LlamaConfig, LlamaTransformer
from mila.training.adamw import AdamW

TRAINING, INFERENCE = RuntimeMode.TRAINING, RuntimeMode.INFERENCE


def gpt(layers: int, **changes: Any) -> GptTransformer:
    fields = {"vocab_size": 50257, "embedding_dim": 768, "num_heads": 12, "max_seq_len": 1024, **changes}
    return GptTransformer("gpt", GptConfig(num_layers=layers, **fields))


def llama(layers: int) -> LlamaTransformer:
    config = LlamaConfig(
        vocab_size=32000,
        embedding_dim=1024,
        num_layers=layers,
        num_heads=16,
        num_kv_heads=4,
        hidden_dim=2816,
        max_seq_len=1024,
    )
    return LlamaTransformer("llama", config)


def step(network: Component[Any]) -> TrainingStep:
    return TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())


@pytest.mark.parametrize("model", [gpt, llama])
@pytest.mark.parametrize("options", [{}, {"prefill_size": 1}, {"all_logits": True}])
def test_at_inference_depth_costs_no_transient_byte(model: Any, options: dict[str, Any]) -> None:
    context = BuildContext((2, 256), INFERENCE, **options)
    assert model(2).plan(context).transient_bytes == model(48).plan(context).transient_bytes


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (gpt(12), (1, 256)),
        (gpt(12), (8, 256)),
        (gpt(12, vocab_size=65, embedding_dim=384, num_heads=6, max_seq_len=256), (64, 256)),
        (llama(12), (4, 256)),
    ],
)
def test_a_training_step_takes_at_most_half_of_the_sum_of_its_buffers(
    network: Component[Any], shape: tuple[int, int]
) -> None:
    """The sum: where no two buffers share a byte, and nothing is written over anything."""
    component = step(network)
    plan = component.plan(BuildContext(shape, TRAINING))
    apart = component.plan(BuildContext(shape, TRAINING, layout=Layout.POISONED))
    assert apart.transient_bytes >= apart.transient_sum >= plan.transient_sum
    assert plan.transient_bytes <= apart.transient_sum / 2


@pytest.mark.parametrize("mode", RuntimeMode)
@pytest.mark.parametrize("kv_heads", [12, 4, 1])
def test_attention_is_linear_in_the_length(mode: RuntimeMode, kv_heads: int) -> None:
    attention = Attention("attention", AttentionConfig(num_heads=12, num_kv_heads=kv_heads, head_dim=64))
    width = (12 + 2 * kv_heads) * 64

    def state_and_workspace(length: int) -> int:
        return attention.get_required_memory(BuildContext((1, length, width), mode)).device_state_bytes

    assert state_and_workspace(4096) <= 2.1 * state_and_workspace(2048)


def test_a_cache_is_linear_in_its_capacity() -> None:
    attention = Attention("attention", AttentionConfig(num_heads=12, num_kv_heads=12, head_dim=64, kv_cache=True))

    def state(length: int) -> int:
        return attention.get_required_memory(BuildContext((1, length, 2304), INFERENCE)).device_state_bytes

    assert state(4096) <= 2.1 * state(2048)


def test_planning_a_70b_model_takes_little_memory() -> None:
    config = LlamaConfig(
        vocab_size=128256,
        embedding_dim=8192,
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        hidden_dim=28672,
        max_seq_len=131072,
        rope_theta=500000.0,
    )
    tracemalloc.start()
    try:
        model = LlamaTransformer("llama", config)
        plan = model.plan(BuildContext((1, 8192), INFERENCE))
        stats = plan.stats
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000
    assert model.parameter_count() == 70_553_706_496
    assert stats.device_parameter_bytes == 4 * model.parameter_count()
    assert plan.arena_bytes["persistent"] >= 80 * 2 * 8 * 8192 * 128 * 4


SMALL = {"vocab_size": 11, "embedding_dim": 6, "num_heads": 3, "max_seq_len": 9}
PLANS: list[MemoryPlan] = [
    gpt(2, **SMALL).plan(BuildContext((2, 5), TRAINING)),
    gpt(2, **SMALL).plan(BuildContext((2, 5), INFERENCE)),
    step(gpt(2, **SMALL)).plan(BuildContext((2, 5), TRAINING)),
]


@pytest.mark.parametrize("plan", PLANS)
def test_the_sum_of_transient_buffers_counts_each_once(plan: MemoryPlan) -> None:
    assert plan.transient_sum == sum(b.nbytes for b in plan.buffers if b.arena == "transient")


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_exports_as_json_with_every_buffer(plan: MemoryPlan) -> None:
    read = json.loads(plan.to_json())
    assert read == json.loads(plan.to_json(indent=2)) == plan.to_dict()
    assert read["reserved_bytes"] == plan.reserved_bytes
    assert read["reserved_bytes"] == sum(size + read["alignment"] for size in read["arenas"].values() if size)
    assert len(read["buffers"]) == len(plan.buffers)
    for exported, buffer in zip(read["buffers"], plan.buffers, strict=True):
        assert exported["bytes"] == buffer.nbytes
        assert (exported["path"], exported["name"], exported["arena"]) == (buffer.path, buffer.name, buffer.arena)
        assert exported["dtype"] == buffer.dtype.name
    stats = plan.stats
    totals = [read[f"{kind}_bytes"] for kind in ("parameter", "state", "gradient")]
    assert totals == [stats.device_parameter_bytes, stats.device_state_bytes, stats.device_gradient_bytes]


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_has_a_row_for_every_component(plan: MemoryPlan) -> None:
    rows = plan.rows()
    paths = [row.path for row in rows]
    assert len(set(paths)) == len(paths)
    assert {buffer.path for buffer in plan.buffers} <= set(paths)
    for row in rows:
        below = [b for b in plan.buffers if b.path == row.path or b.path.startswith(f"{row.path}.")]
        assert row.parameter_bytes == sum(b.nbytes for b in below if b.arena == "parameters")
        assert row.transient_bytes == sum(b.nbytes for b in below if b.arena == "transient")
        assert row.depth == row.path.count(".")
    for parent, child in itertools.pairwise(paths):
        assert child.count(".") <= parent.count(".") + 1, "parents stand before children"
    assert [row.path for row in plan.rows(depth=0)] == [path for path in paths if "." not in path]


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_prints_its_arenas_and_what_is_reserved(plan: MemoryPlan) -> None:
    text = str(plan)
    assert f"{plan.reserved_bytes:,}" in text
    assert all(f"{size:,}" in text for size in plan.arena_bytes.values() if size)
    rows = dict(plan.summary_rows())
    assert sum(size for name, size in rows.items() if name != "reserved") == rows["reserved"]


@pytest.mark.parametrize("plan", PLANS)
def test_the_largest_buffers_stand_first(plan: MemoryPlan) -> None:
    sizes = [buffer.nbytes for buffer in plan.largest(4)]
    assert sizes == sorted((buffer.nbytes for buffer in plan.buffers), reverse=True)[:4]
