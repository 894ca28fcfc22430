"""Scaled rotary frequencies: what they are, that JSON keeps them, and that different ones never share a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mila.components import LinearScaling, Llama3Scaling, Rope, RopeConfig
from mila.core import BuildContext, ComponentConfig, CompositeComponent, Graph, Reference, RuntimeMode
from mila.models import LlamaConfig

SIZES: dict[str, Any] = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 8, "max_seq_len": 32}
LLAMA3 = Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_seq_len=1000)
SCALINGS = [
    LinearScaling(factor=2.0),
    LinearScaling(factor=8.0),
    LLAMA3,
    LLAMA3.model_copy(update={"original_max_seq_len": 90}),
]


class TwoRopes(CompositeComponent[ComponentConfig]):
    """One rope after another."""

    config_class = ComponentConfig

    def __init__(self, first: RopeConfig, second: RopeConfig) -> None:
        self._configs = first, second
        super().__init__("root", device="cpu", dtype="float64")

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        h = graph.add(Rope("first", self._configs[0]), *inputs)
        return graph.add(Rope("second", self._configs[1]), h)


def test_linear_scaling_divides_every_frequency() -> None:
    plain, scaled = RopeConfig(**SIZES), RopeConfig(**SIZES, scaling=LinearScaling(factor=4.0))
    assert scaled.frequencies == tuple(frequency / 4 for frequency in plain.frequencies)


def test_llama3_scaling_follows_the_turns_within_the_pretraining_length() -> None:
    turns = np.array([0.5, 1.0, 1.75, 2.5, 4.0, 100.0])  # low, its end, a quarter and a half of the way, high
    frequencies = turns * 2 * math.pi / 1000
    kept = [0.0, 0.0, 0.25, 0.5, 1.0, 1.0]
    expected = frequencies * [share + (1 - share) / 8 for share in kept]
    np.testing.assert_allclose(LLAMA3.scaled(frequencies), expected, rtol=1e-14)


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_ropes_share_tables_only_where_their_scaling_is_the_same(scaling: LinearScaling | Llama3Scaling) -> None:
    """And each turns by its own angles: by the sum of both, here."""
    context = BuildContext((1, 32, 24), RuntimeMode.INFERENCE)
    plain, scaled = RopeConfig(**SIZES), RopeConfig(**SIZES, scaling=scaling)
    same, mixed = TwoRopes(scaled, scaled), TwoRopes(plain, scaled)
    table_bytes = 2 * 32 * 4 * 8
    assert mixed.get_required_memory(context).total_bytes - same.get_required_memory(context).total_bytes == table_bytes
    mixed.build(context)
    x = np.zeros((1, 32, 24))
    x[..., :4] = x[..., 8:12] = 1.0
    angles = np.arange(32)[:, None] * (np.array(plain.frequencies) + scaled.frequencies)
    output = mixed.forward(x)
    np.testing.assert_allclose(output[0, :, :4], np.cos(angles), atol=1e-12)
    np.testing.assert_allclose(output[0, :, 12:16], np.sin(angles), atol=1e-12)


@pytest.mark.parametrize("scaling", [None, *SCALINGS], ids=str)
def test_json_keeps_scaling_and_layers(scaling: LinearScaling | Llama3Scaling | None) -> None:
    config = LlamaConfig(
        vocab_size=7,
        embedding_dim=8,
        num_layers=3,
        num_heads=2,
        hidden_dim=3,
        max_seq_len=9,
        rope_scaling=scaling,
        sliding_window=2,
        sliding_layers=(0, 2),
    )
    assert LlamaConfig.from_json(config.to_json()) == config
    assert [config.block_config(layer).sliding_window for layer in range(3)] == [2, None, 2]
