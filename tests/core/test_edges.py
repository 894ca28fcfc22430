"""What is refused, or allowed, at the edges: shared parts, padding, gaps in a cache, files that shrink."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.components import (
    Attention,
    AttentionConfig,
    LayerNorm,
    LayerNormConfig,
    Linear,
    LinearConfig,
    SoftmaxCrossEntropy,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from mila.core import BuildContext, Position, RuntimeMode, TrainingStep
from mila.errors import CheckpointError, ConfigurationError, DTypeError, LifecycleError, ShapeError, TokenIdError
from mila.memory.storage import FLOAT8_E4M3
from mila.models import GptConfig, GptTransformer, LlamaConfig, LlamaTransformer
from mila.quantization import PerChannelFp8
from mila.serialization import save_tensors
from mila.training import AdamW

GPT = GptConfig(vocab_size=11, embedding_dim=8, num_layers=1, num_heads=2, max_seq_len=8)
LLAMA = LlamaConfig(vocab_size=11, embedding_dim=8, num_layers=1, num_heads=2, hidden_dim=12, max_seq_len=8)
DRAWN = BuildContext((2, 8), RuntimeMode.INFERENCE, prefill_size=4, initialize_parameters=True)


def test_a_part_of_one_training_step_is_refused_by_another_and_stays_where_it_was() -> None:
    loss = SoftmaxCrossEntropy("loss")
    first = TrainingStep(GptTransformer("gpt", GPT, device="cpu"), loss, AdamW())
    for network, shared in ((GptTransformer("gpt", GPT), loss), (first.network, SoftmaxCrossEntropy("loss"))):
        with pytest.raises(ConfigurationError, match="is part of another network"):
            TrainingStep(network, shared, AdamW())
    first.build(BuildContext((1, 3), RuntimeMode.TRAINING))
    ids = np.zeros((1, 3), np.int32)
    assert np.isfinite(first.forward(ids, ids)).all()


def test_a_child_has_no_seed_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="takes its seed from its root"):
        TrainingStep(GptTransformer("gpt", GPT), SoftmaxCrossEntropy("loss", seed=3), AdamW())


@pytest.mark.parametrize(("model", "config"), [(GptTransformer, GPT), (LlamaTransformer, LLAMA)])
def test_padding_may_reach_beyond_the_last_position(model: Any, config: Any) -> None:
    ids = np.array([[1, 2, 3, 4], [5, 6, 0, 0]], np.int32)

    def last(columns: int, lengths: list[int]) -> np.ndarray[Any, Any]:
        network = model("m", config, device="cpu")
        network.build(DRAWN)
        network.forward(np.array([[7, 8, 9, 10], [7, 8, 9, 10]], np.int32))
        network.forward(np.array([[1, 1], [2, 3]], np.int32), position=Position(4, [1, 2]))
        return np.array(network.forward(ids[:, :columns].copy(), position=Position([4, 6], lengths)))

    padded, exact = last(4, [4, 2]), last(2, [2, 2])  # four columns from position 6 on reach beyond position 8
    assert np.allclose(padded[1], exact[1], atol=1e-6)
    assert np.isfinite(padded).all()


def test_a_cache_has_no_gaps() -> None:
    network = GptTransformer("gpt", GPT, device="cpu")
    network.build(DRAWN)
    with pytest.raises(ShapeError, match=r"row 0 holds 0 of at most 8 positions"):
        network.forward(np.zeros((2, 1), np.int32), position=Position(5))
    network.forward(np.zeros((2, 4), np.int32))
    network.forward(np.zeros((2, 1), np.int32), position=Position(4))
    network.forward(np.zeros((2, 1), np.int32), position=Position(2))  # back to an earlier position
    with pytest.raises(ShapeError, match="row 0 holds 3"):
        network.forward(np.zeros((2, 1), np.int32), position=Position(4))


@pytest.mark.parametrize("start", [1.7, "1", None])
def test_a_position_is_an_integer(start: Any) -> None:
    network = GptTransformer("gpt", GPT, device="cpu")
    network.build(DRAWN)
    with pytest.raises(ShapeError, match="expected integers"):
        network.forward(np.zeros((2, 1), np.int32), position=Position(start))


def test_rows_without_a_mask_may_not_be_padded() -> None:
    config = AttentionConfig(num_heads=1, num_kv_heads=1, head_dim=2, causal=False)
    attention = Attention("attention", config, device="cpu")
    attention.build(BuildContext((2, 3, 6), RuntimeMode.TRAINING))
    with pytest.raises(ShapeError, match="see padding"):
        attention.forward(np.zeros((2, 3, 6), np.float32), position=Position(0, [3, 2]))


def test_gradients_of_one_norm_accumulate_alike_whatever_was_read() -> None:
    norm = LayerNorm("norm", LayerNormConfig(normalized_dim=3), device="cpu")
    norm.build(BuildContext((2, 3), RuntimeMode.TRAINING))
    x, dy = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    norm.forward(x)
    norm.backward(x, dy)
    norm.zero_gradients()
    weight = norm.parameter_gradient("weight")
    assert weight is not None
    weight.read()
    norm.backward(x, dy)
    assert norm.get_gradients()[1].tolist() == [2, 2, 2]  # type: ignore[union-attr]


def test_targets_that_changed_after_forward_are_checked_again() -> None:
    loss = SoftmaxCrossEntropy("loss", device="cpu")
    loss.build(BuildContext((2, 3), RuntimeMode.TRAINING))
    logits, targets = np.zeros((2, 3), np.float32), np.zeros(2, np.int32)
    loss.forward(logits, targets)
    targets[1] = 7
    with pytest.raises(TokenIdError, match=r"target 7 at position \(1,\)"):
        loss.backward(logits, targets, np.ones(1, np.float32))


def quantized(**options: Any) -> TokenEmbedding:
    config = TokenEmbeddingConfig(vocab_size=5, embedding_dim=4, table_quantization=PerChannelFp8())
    table = TokenEmbedding("wte", config, device="cpu")
    table.build(BuildContext((1, 2), RuntimeMode.INFERENCE, **options))
    return table


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("first", ["wte", "wte_scale"])
def test_bytes_and_scales_come_in_pairs(drawn: bool, first: str) -> None:
    table = quantized(initialize_parameters=drawn)
    values = {"wte": np.ones((5, 4), FLOAT8_E4M3), "wte_scale": np.full(5, 2.0, np.float32)}
    second = "wte_scale" if first == "wte" else "wte"
    ids = np.zeros((1, 1), np.int32)
    for _ in range(2):  # the second pair waits for its other half as well
        table.load_parameter(first, values[first])
        with pytest.raises(LifecycleError, match=second):
            table.forward(ids)
        table.load_parameter(second, values[second])
        assert np.all(table.forward(ids) == 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0])
def test_scales_are_finite_and_positive(bad: float) -> None:
    scales = np.ones(5, np.float32)
    scales[3] = bad
    with pytest.raises(DTypeError, match="scales that are not finite and positive"):
        quantized().load_parameter("wte_scale", scales)


def test_weights_of_another_dtype_are_converted_some_rows_at_a_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    linear = Linear("linear", LinearConfig(in_features=700, out_features=900), device="cpu")
    linear.build(BuildContext((1, 700), RuntimeMode.INFERENCE))
    values = {"weight": rng.standard_normal((900, 700)), "bias": rng.standard_normal(900)}
    save_tensors(tmp_path / "w.safetensors", values)

    from mila.core.loading import load_tensors
    from mila.serialization import open_tensors

    with open_tensors(tmp_path / "w.safetensors") as source:
        report = load_tensors(linear, source)
    assert report.converted == {"weight": "float64", "bias": "float64"}
    assert np.array_equal(linear.get_parameters()[0], values["weight"].astype(np.float32))
    with open_tensors(tmp_path / "w.safetensors") as source:
        with (tmp_path / "w.safetensors").open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(CheckpointError):
            load_tensors(linear, source)


def test_a_root_runs_one_call_at_a_time() -> None:
    network = GptTransformer("gpt", GPT, device="cpu")
    network.build(DRAWN)
    ids, refused, expected = np.ones((2, 4), np.int32), [], []

    def call() -> None:
        for _ in range(50):
            try:
                network.forward(ids)
            except LifecycleError as error:
                refused.append(str(error))
            else:
                expected.append(1)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) + len(expected) == 100
    assert all("in another thread" in message for message in refused)


def test_contexts_are_copied_and_components_are_not() -> None:
    assert pickle.loads(pickle.dumps(DRAWN)) == DRAWN == copy.deepcopy(DRAWN)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(LifecycleError, match="gpt: components are not copied"):
            duplicate(GptTransformer("gpt", GPT))


def test_more_bytes_than_can_be_addressed_are_refused() -> None:
    norm = LayerNorm("norm", LayerNormConfig(normalized_dim=2**62))
    with pytest.raises(ShapeError, match="more than any memory addresses"):
        norm.plan(BuildContext((2, 2**62), RuntimeMode.TRAINING))
