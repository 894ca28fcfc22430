"""P1: construction allocates nothing, and neither does asking."""

from __future__ import annotations

import pytest

from mila.devices import ExecutionContext
from mila.memory import MemoryStats
from mila.models import GptConfig, GptTransformer, LlamaConfig, LlamaTransformer
from tests.promises.case import Case
from tests.promises.cases import CASES, DTYPES
from tests.promises.measuring import array_growth, object_growth
from tests.promises.planted import AllocatesAtConstruction


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_unbuilt_component_holds_nothing(case: Case, device: ExecutionContext) -> None:
    component = case.make(device)
    assert component.get_memory_stats() == MemoryStats()
    assert component.get_memory_stats().total_bytes == 0
    assert all(part.get_memory_stats().total_bytes == 0 for part in component.walk())


def test_construction_makes_no_array(device: ExecutionContext) -> None:
    growth = array_growth(lambda: [case.make(device, dtype) for case in CASES for dtype in DTYPES])
    assert growth == 0, [str(case) for case in CASES if array_growth(lambda case=case: case.make(device))]  # type: ignore[misc]


def test_an_array_made_at_construction_is_noticed() -> None:
    assert array_growth(lambda: AllocatesAtConstruction("planted")) == 64


def test_construction_with_a_device_makes_no_array() -> None:
    config = LlamaConfig(vocab_size=11, embedding_dim=8, num_layers=1, num_heads=2, hidden_dim=6, max_seq_len=9)
    assert array_growth(lambda: LlamaTransformer("llama", config, device="cpu")) == 0


def test_asking_leaves_no_array_behind(device: ExecutionContext) -> None:
    asked = [(case.make(device), case.context(mode)) for case in CASES for mode in case.modes]
    assert array_growth(lambda: [component.plan(context).stats for component, context in asked]) == 0
    assert not any(component.is_built for component, _ in asked)


GPT = GptConfig(vocab_size=50257, embedding_dim=768, num_layers=300, num_heads=12, max_seq_len=1024)
LLAMA = LlamaConfig(
    vocab_size=128256,
    embedding_dim=8192,
    num_layers=300,
    num_heads=64,
    num_kv_heads=8,
    hidden_dim=28672,
    max_seq_len=8192,
)


@pytest.mark.parametrize(("model", "config"), [(GptTransformer, GPT), (LlamaTransformer, LLAMA)])
def test_a_thousand_components_take_less_than_4_mb(model: type[GptTransformer], config: GptConfig) -> None:
    count = sum(1 for _ in model("model", config).walk())
    assert count > 3000
    assert object_growth(lambda: model("model", config)) / count * 1000 < 4_000_000
