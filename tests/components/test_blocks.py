"""Self-attention and blocks against the packed components that compute the same, and what they are stored as."""

from __future__ import annotations

import numpy as np
import pytest

from mila.components import (
    Attention,
    AttentionConfig,
    Rope,
    RopeConfig,
    SelfAttention,
    SelfAttentionConfig,
    TransformerBlock,
    TransformerBlockConfig,
)
from mila.core import BuildContext, RuntimeMode
from mila.kernels.signatures import Array
from mila.memory.declarations import Lifetime

TRAINING, INFERENCE = RuntimeMode.TRAINING, RuntimeMode.INFERENCE
BLOCK = TransformerBlockConfig(embedding_dim=12, num_heads=3, hidden_dim=20, layer_scale=True, layer_scale_init=0.25)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 7, 200])
def test_apart_or_packed_queries_keys_and_values_give_the_same(length: int, causal: bool) -> None:
    """Rotary positions, masks and the order of heads are those of ``Rope`` and ``Attention``."""
    config = SelfAttentionConfig(embedding_dim=12, num_heads=3, causal=causal, rope=True)
    apart = SelfAttention("apart", config, device="cpu", dtype="float64", seed=5)
    apart.build(BuildContext((2, length, 12), TRAINING))
    rope = RopeConfig(num_heads=3, num_kv_heads=3, head_dim=4, max_seq_len=length)
    turn = Rope("turn", rope, device="cpu", dtype="float64")
    packed = AttentionConfig(num_heads=3, num_kv_heads=3, head_dim=4, causal=causal)
    attention = Attention("packed", packed, device="cpu", dtype="float64")
    for component in (turn, attention):
        component.build(BuildContext((2, length, 36), TRAINING))
    x = np.random.default_rng(7).standard_normal((2, length, 12))

    def project(name: str, values: Array) -> Array:
        weight, bias = apart[name].get_parameters()
        product: Array = values @ weight.T + bias
        return product

    qkv = np.concatenate([project(name, x) for name in ("q_proj", "k_proj", "v_proj")], axis=2)
    expected = project("o_proj", attention.forward(turn.forward(qkv)))
    np.testing.assert_allclose(apart.forward(x), expected, rtol=1e-12, atol=1e-13)


def test_queries_and_keys_share_their_tables_and_the_limit_of_positions_costs_nothing() -> None:
    plans = []
    for limit in (5, 1_048_576):
        config = SelfAttentionConfig(embedding_dim=12, num_heads=3, rope=True, max_seq_len=limit)
        attention = SelfAttention("attention", config, device="cpu")
        plans.append(attention.plan(BuildContext((2, 5, 12), TRAINING)))
    assert plans[0].stats == plans[1].stats
    tables = [buffer for buffer in plans[0].buffers if buffer.name in ("cosine", "sine")]
    assert len(tables) == 2
    assert all(table.lifetime is Lifetime.NETWORK and table.shape == (5, 2) for table in tables)


def test_the_factors_of_a_block_are_parameters_of_the_block() -> None:
    block = TransformerBlock("block", BLOCK, device="cpu")
    block.build(BuildContext((2, 5, 12), TRAINING))
    found = dict(zip(block.get_parameter_names(), block.get_parameters(), strict=True))
    for name in ("gamma1", "gamma2"):
        assert np.array_equal(found[name], np.full(12, 0.25, np.float32))
        block.load_parameter(name, np.arange(12.0))
        assert np.array_equal(found[name], np.arange(12))
    assert not [name for name in found if name.startswith("gamma") and name not in ("gamma1", "gamma2")]


def test_a_block_whose_factors_are_zero_passes_its_input() -> None:
    block = TransformerBlock("block", BLOCK.model_copy(update={"layer_scale_init": 0.0}), device="cpu")
    block.build(BuildContext((2, 5, 12), INFERENCE, initialize_parameters=True))
    x = np.random.default_rng(7).standard_normal((2, 5, 12)).astype(np.float32)
    assert np.array_equal(block.forward(x), x)


@pytest.mark.parametrize("mode", [TRAINING, INFERENCE])
def test_a_causal_block_looks_at_no_later_position(mode: RuntimeMode) -> None:
    config = BLOCK.model_copy(update={"causal": True})
    block = TransformerBlock("block", config, device="cpu", seed=3)
    block.build(BuildContext((2, 200, 12), mode, initialize_parameters=True))
    x = np.random.default_rng(7).standard_normal((2, 200, 12)).astype(np.float32)
    before = block.forward(x).copy()
    x[:, 77:] *= -3
    after = block.forward(x)
    assert np.array_equal(after[:, :77], before[:, :77])
    assert not np.array_equal(after[:, 77:], before[:, 77:])
