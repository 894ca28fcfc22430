"""Positions: chunks, single tokens, and rows of different lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mila.components import (
    Attention,
    AttentionConfig,
    LearnedPositionEncoding,
    LearnedPositionEncodingConfig,
    Rope,
    RopeConfig,
)
from mila.core import Component, Position
from mila.errors import ShapeError
from mila.models import LlamaConfig, LlamaTransformer
from tests.core.parts import drawn, gpt, llama, training

LENGTH = 11
IDS = np.random.default_rng(0).integers(0, 11, (3, LENGTH), np.int32)


def windowed(**arguments: Any) -> LlamaTransformer:
    config = LlamaConfig(
        vocab_size=11,
        embedding_dim=8,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        hidden_dim=10,
        max_seq_len=16,
        sliding_window=4,
    )
    return LlamaTransformer("llama", config, device="cpu", **arguments)


MODELS = [gpt, llama, windowed]


def whole(make: Callable[..., Component[Any]]) -> np.ndarray[Any, Any]:
    """Return the logits of every position, from a training build in float64."""
    model = make(dtype="float64")
    model.build(training(3, LENGTH))
    result: np.ndarray[Any, Any] = model.forward(IDS).copy()
    return result


def inferring(make: Callable[..., Component[Any]], **options: Any) -> Component[Any]:
    model = make(dtype="float64")
    model.build(drawn(3, LENGTH, **options))
    return model


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("chunks", [[11], [4, 4, 3], [1] * 11, [5, 1, 5], [3, 1, 1, 1, 5]])
def test_chunks_give_what_the_whole_sequence_gives(make: Any, chunks: list[int]) -> None:
    expected, model = whole(make), inferring(make)
    start = 0
    for size in chunks:
        logits = model.forward(IDS[:, start : start + size].copy(), position=Position(start))
        start += size
        assert logits.shape == (3, 1, 11)
        assert np.allclose(logits[:, 0], expected[:, start - 1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("make", MODELS)
def test_all_logits_of_a_chunk(make: Any) -> None:
    expected, model = whole(make), inferring(make, all_logits=True, prefill_size=6)
    first = model.forward(IDS[:, :6].copy()).copy()
    second = model.forward(IDS[:, 6:].copy(), position=Position(6))
    assert np.allclose(np.concatenate([first, second], axis=1), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("make", MODELS)
def test_rows_of_different_lengths_stand_to_the_left(make: Any) -> None:
    """Each row gives the logits of its own last valid position, whatever stands after it."""
    expected, model = whole(make), inferring(make)
    lengths = [7, 2, 5]
    padded = np.zeros((3, 7), np.int32)
    for row, length in enumerate(lengths):
        padded[row, :length] = IDS[row, :length]
    logits = model.forward(padded, position=Position(0, lengths)).copy()
    for row, length in enumerate(lengths):
        assert np.allclose(logits[row, 0], expected[row, length - 1], rtol=1e-12, atol=1e-13)
    for step in range(4):
        starts = [length + step for length in lengths]
        tokens = np.array([[IDS[row, start]] for row, start in enumerate(starts)], np.int32)
        logits = model.forward(tokens, position=Position(starts))
        for row, start in enumerate(starts):
            assert np.allclose(logits[row, 0], expected[row, start], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("make", MODELS)
def test_fewer_rows_than_built_use_the_caches_of_the_first(make: Any) -> None:
    expected, model = whole(make), inferring(make)
    model.forward(IDS[:2, :4].copy())
    logits = model.forward(IDS[:2, 4:5].copy(), position=Position(4))
    assert np.allclose(logits[:, 0], expected[:2, 4], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("make", MODELS)
def test_starting_again_forgets_what_was_cached(make: Any) -> None:
    model = inferring(make)
    first = model.forward(IDS[:, :4].copy()).copy()
    model.forward(IDS[:, 4:9].copy(), position=Position(4))
    assert np.array_equal(model.forward(IDS[:, :4].copy()), first)


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (Position(-1), "start -1"),
        (Position(0, 0), "length 0"),
        (Position(0, 5), "length 5"),
        (Position(8), "start 8"),
        (Position([0, 0]), "position.start expected 3 rows, got 2"),
        (Position([0, 0, 9]), "row 2"),
        (Position(0, [1, 2]), "position.length expected 3 rows, got 2"),
        (Position(0, [1, 2, 5]), "row 2"),
    ],
)
@pytest.mark.parametrize("make", [gpt, llama])
def test_a_position_that_does_not_fit_is_refused(make: Any, position: Position, message: str) -> None:
    model = inferring(make)
    good = model.forward(IDS[:, :4].copy()).copy()
    with pytest.raises(ShapeError, match=message):
        model.forward(IDS[:, :4].copy(), position=position)
    assert np.array_equal(model.forward(IDS[:, :4].copy()), good)


def test_leaves_that_need_positions_take_them_too() -> None:
    table = LearnedPositionEncodingConfig(max_seq_len=9, embedding_dim=6)
    turns = RopeConfig(num_heads=1, num_kv_heads=1, head_dim=2, max_seq_len=9)
    for leaf in (LearnedPositionEncoding("leaf", table, device="cpu"), Rope("leaf", turns, device="cpu")):
        leaf.build(drawn(2, 9, 6, prefill_size=9))
        x = np.random.default_rng(1).standard_normal((2, 9, 6)).astype(np.float32)
        expected = leaf.forward(x).copy()
        got = leaf.forward(x[:, 3:5].copy(), position=Position(3))
        assert np.allclose(got, expected[:, 3:5], rtol=1e-6)
        with pytest.raises(ShapeError):
            leaf.forward(x[:, :2].copy(), position=Position(8))


def test_attention_with_a_cache_alone() -> None:
    plain, cached = (
        AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=3, kv_cache=cache) for cache in (False, True)
    )
    x = np.random.default_rng(1).standard_normal((2, 9, 24))
    whole_sequence = Attention("attention", plain, device="cpu", dtype="float64")
    whole_sequence.build(drawn(2, 9, 24))
    expected = whole_sequence.forward(x)
    attention = Attention("attention", cached, device="cpu", dtype="float64")
    attention.build(drawn(2, 9, 24))
    for t in range(9):
        got = attention.forward(x[:, t : t + 1].copy(), position=Position(t))
        assert np.allclose(got[:, 0], expected[:, t], rtol=1e-12)
