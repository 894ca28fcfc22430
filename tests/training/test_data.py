"""Batches: complete epochs, shifted targets, exact resume; held-out windows; the bigram baseline."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mila.errors import ConfigurationError, DataError, DTypeError, MilaError, ShapeError, TokenIdError
from mila.training.corpus import split_tokens
from mila.training.data import DataPosition, TokenBatches, Tokens, bigram_loss, validation_batches
from mila.training.tokenization import TokenArray


def counted(size: int) -> TokenArray:
    """Tokens that say where they stand."""
    return np.arange(size, dtype=np.int32)


@given(
    size=st.integers(2, 300),
    batch_size=st.integers(1, 5),
    sequence_length=st.integers(1, 20),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_epoch_is_a_permutation_of_all_windows(
    size: int, batch_size: int, sequence_length: int, seed: int
) -> None:
    windows = (size - 1) // sequence_length
    if windows < batch_size:
        return
    batches = TokenBatches(counted(size), batch_size, sequence_length, seed)
    assert batches.windows_per_epoch == windows
    starts = [int(row[0]) for _ in range(windows) for row in batches.next_batch()[0]]  # B epochs
    for epoch in range(batch_size):
        one_epoch = starts[epoch * windows : (epoch + 1) * windows]
        assert sorted(one_epoch) == [window * sequence_length for window in range(windows)]
    assert batches.position == DataPosition(epoch=batch_size, index=0)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_targets_are_the_inputs_one_token_later(dtype: type[np.integer[Any]]) -> None:
    tokens = counted(200).astype(dtype)
    batches = TokenBatches(tokens, 4, 7)
    for _ in range(20):
        inputs, targets = batches.next_batch()
        assert inputs.dtype == targets.dtype == np.int32
        assert inputs.shape == targets.shape == (4, 7)
        assert (inputs == inputs[:, :1] + np.arange(7)).all()
        assert (targets == inputs + 1).all()


def test_every_token_but_the_first_and_the_tail_is_a_target_once_per_epoch() -> None:
    batches = TokenBatches(counted(45), 2, 7)  # 6 windows, 42 targets, a tail of 2
    targets = np.concatenate([batches.next_batch()[1].ravel() for _ in range(3)])
    assert sorted(targets.tolist()) == list(range(1, 43))


def test_orders_differ_between_epochs_and_seeds_and_repeat_with_the_seed() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        batches = TokenBatches(counted(201), 10, 5, seed, DataPosition(epoch=epoch))
        return [int(row[0]) for _ in range(4) for row in batches.next_batch()[0]]

    orders = [order(0, 0), order(0, 1), order(1, 0), order(1, 1)]
    assert all(one != other for one, other in itertools.combinations(orders, 2))
    assert orders == [order(0, 0), order(0, 1), order(1, 0), order(1, 1)]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_a_run_resumed_at_any_position_sees_what_the_uninterrupted_one_sees(batch_size: int) -> None:
    tokens = counted(7 * 5 + 1)
    batches = TokenBatches(tokens, batch_size, 5, seed=3)
    kept, seen = [], []
    for _ in range(21):
        kept.append(batches.position.model_dump_json())
        seen.append(batches.next_batch()[1].tolist())
    for step, text in enumerate(kept):
        position = DataPosition.model_validate_json(text)
        resumed = TokenBatches(tokens, batch_size, 5, seed=3, position=position)
        assert [resumed.next_batch()[1].tolist() for _ in range(step, 21)] == seen[step:]
        batches.restore(position)
        assert batches.position == position
        assert batches.next_batch()[1].tolist() == seen[step]


def test_a_position_at_every_window_of_an_epoch_can_be_restored() -> None:
    tokens = counted(7 * 5 + 1)
    first_epoch = TokenBatches(tokens, 7, 5).next_batch()[0][:, 0].tolist()
    for index in range(7):
        batches = TokenBatches(tokens, 1, 5, position=DataPosition(index=index))
        assert batches.next_batch()[0][0, 0] == first_epoch[index]


def test_a_position_that_this_data_does_not_have_changes_nothing() -> None:
    batches = TokenBatches(counted(36), 2, 5)
    batches.next_batch()
    before = batches.position
    with pytest.raises(DataError, match="expected an index below 7, the windows of this data, got 7"):
        batches.restore(DataPosition(index=7))
    assert batches.position == before


@pytest.mark.parametrize("text", ['{"epoch": -1}', '{"index": -1}', '{"epoch": 0.5}', '{"place": 1}'])
def test_a_malformed_position_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        DataPosition.model_validate_json(text)


def test_given_buffers_are_filled_and_returned() -> None:
    expected = TokenBatches(counted(100), 3, 8, seed=5).next_batch()
    inputs, targets = np.full((3, 8), -1, np.int32), np.full((3, 8), -1, np.int32)
    filled = TokenBatches(counted(100), 3, 8, seed=5).next_batch(inputs, targets)
    assert filled[0] is inputs
    assert filled[1] is targets
    assert np.array_equal(inputs, expected[0])
    assert np.array_equal(targets, expected[1])


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_filling_buffers_allocates_no_array(dtype: type[np.integer[Any]]) -> None:
    batches = TokenBatches(np.zeros(1_000_001, dtype), 4, 100_000)
    inputs, targets = np.empty((4, 100_000), np.int32), np.empty((4, 100_000), np.int32)
    batches.next_batch(inputs, targets)
    tracemalloc.start()
    try:
        batches.next_batch(inputs, targets)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60_000  # one row would be 400,000 bytes


@pytest.mark.parametrize(
    ("buffer", "error", "message"),
    [
        (np.empty((3, 9), np.int32), ShapeError, r"out_targets: expected shape \(3, 8\), got \(3, 9\)"),
        (np.empty((3, 8), np.int64), DTypeError, "expected a writable int32 array, got a writable int64 array"),
        (np.broadcast_to(np.int32(0), (3, 8)), DTypeError, "got a read-only int32 array"),
    ],
)
def test_a_buffer_that_does_not_fit_changes_nothing(buffer: Any, error: type[MilaError], message: str) -> None:
    batches = TokenBatches(counted(100), 3, 8)
    inputs = np.full((3, 8), -1, np.int32)
    with pytest.raises(error, match=message):
        batches.next_batch(inputs, buffer)
    assert (inputs == -1).all()
    assert batches.position == DataPosition()


def test_a_memory_map_is_read_as_it_is(tmp_path: Path) -> None:
    counted(100).astype(np.uint16).tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", np.uint16, "r")
    expected, got = TokenBatches(counted(100), 3, 8).next_batch(), TokenBatches(mapped, 3, 8).next_batch()
    assert np.array_equal(expected, got)


def make_training(tokens: Tokens, batch_size: int, sequence_length: int) -> object:
    return TokenBatches(tokens, batch_size, sequence_length)


def make_validation(tokens: Tokens, batch_size: int, sequence_length: int) -> object:
    return validation_batches(tokens, batch_size, sequence_length)


@pytest.mark.parametrize("make", [make_training, make_validation])
@pytest.mark.parametrize(
    ("tokens", "sizes", "error", "message"),
    [
        (counted(5), (1, 5), DataError, r"expected at least 6 \(1 windows of 5 and one target more\), got 5"),
        (counted(0), (1, 1), DataError, "expected at least 2 .* got 0"),
        (counted(50), (0, 5), ConfigurationError, "batch_size: expected 1 or more, got 0"),
        (counted(50), (1, 0), ConfigurationError, "sequence_length: expected 1 or more, got 0"),
        (counted(50).reshape(5, 10), (1, 5), ShapeError, r"expected one axis, got shape \(5, 10\)"),
        (counted(50).astype(np.int64), (1, 5), DTypeError, "that it can hold, got int64"),
        (counted(50).astype(np.uint32), (1, 5), DTypeError, "that it can hold, got uint32"),
        (np.zeros(50), (1, 5), DTypeError, "that it can hold, got float64"),
        (np.zeros(50, bool), (1, 5), DTypeError, "that it can hold, got bool"),
    ],
)
def test_data_that_does_not_fit_is_refused_at_the_call(
    make: Callable[[Any, int, int], object], tokens: Any, sizes: tuple[int, int], error: type[MilaError], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(tokens, *sizes)


def test_a_training_batch_never_holds_a_window_twice_so_data_must_fill_one() -> None:
    with pytest.raises(DataError, match=r"expected at least 21 \(4 windows of 5 and one target more\), got 20"):
        TokenBatches(counted(20), 4, 5)
    TokenBatches(counted(21), 4, 5)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ConfigurationError, match="seed"):
        TokenBatches(counted(50), 1, 5, seed)


@given(size=st.integers(2, 200), batch_size=st.integers(1, 5), sequence_length=st.integers(1, 20))
def test_validation_takes_every_window_in_order_every_time(size: int, batch_size: int, sequence_length: int) -> None:
    windows = (size - 1) // sequence_length
    if windows == 0:
        return
    for _ in range(2):
        batches = list(validation_batches(counted(size), batch_size, sequence_length))
        assert [len(inputs) for inputs, _ in batches[:-1]] == [batch_size] * (len(batches) - 1)
        inputs = np.concatenate([inputs for inputs, _ in batches])
        targets = np.concatenate([targets for _, targets in batches])
        assert inputs.shape == targets.shape == (windows, sequence_length)
        assert inputs.ravel().tolist() == list(range(windows * sequence_length))
        assert (targets == inputs + 1).all()


@pytest.mark.parametrize(("maximum", "expected"), [(1, 1), (3, 3), (None, 5), (9, 5)])
def test_validation_stops_after_the_batches_asked_for(maximum: int | None, expected: int) -> None:
    assert len(list(validation_batches(counted(46), 2, 5, maximum))) == expected


def test_no_validation_batches_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="maximum_batches: expected 1 or more, got 0"):
        validation_batches(counted(46), 2, 5, 0)


def test_validation_batches_are_int32_and_cannot_be_written_over_the_data() -> None:
    tokens = counted(46)
    for inputs, targets in validation_batches(tokens, 2, 5):
        assert not inputs.flags.writeable
        assert not targets.flags.writeable
        assert np.shares_memory(inputs, tokens)
    assert tokens.flags.writeable
    assert next(validation_batches(tokens.astype(np.uint8), 2, 5))[0].dtype == np.int32


@given(size=st.integers(40, 400), fraction=st.floats(0.2, 0.8), sequence_length=st.integers(1, 6))
def test_training_and_validation_windows_share_no_token(size: int, fraction: float, sequence_length: int) -> None:
    split = split_tokens(counted(size), fraction)
    training = TokenBatches(split.training, 1, sequence_length)
    seen = {
        int(token)
        for _ in range(training.windows_per_epoch)
        for part in training.next_batch()
        for token in part.ravel()
    }
    held_out = {
        int(token)
        for batch in validation_batches(split.validation, 1, sequence_length)
        for part in batch
        for token in part.ravel()
    }
    assert seen.isdisjoint(held_out)


@given(
    training=st.lists(st.integers(0, 4), min_size=2, max_size=60),
    validation=st.lists(st.integers(0, 4), min_size=2, max_size=60),
    smoothing=st.floats(0.01, 5),
)
def test_the_bigram_loss_is_the_mean_of_its_definition(
    training: list[int], validation: list[int], smoothing: float
) -> None:
    seen = list(itertools.pairwise(training))
    expected = 0.0
    for pair in itertools.pairwise(validation):
        follow = sum(first == pair[0] for first, _ in seen)
        expected -= math.log((seen.count(pair) + smoothing) / (follow + smoothing * 5))
    got = bigram_loss(np.array(training, np.int32), np.array(validation, np.uint8), 5, smoothing)
    assert got == pytest.approx(expected / (len(validation) - 1), rel=1e-12, abs=1e-15)


def test_the_bigram_loss_of_a_text_in_pieces_is_that_of_the_text() -> None:
    cycle = np.resize(np.arange(3, dtype=np.uint8), 3_000_001)  # each id is always followed by the same one
    assert bigram_loss(cycle, cycle, 3) == pytest.approx(-math.log(1_000_001 / 1_000_003), rel=1e-6)


@pytest.mark.parametrize(
    ("training", "validation", "vocab_size", "error", "message"),
    [
        ([0], [0, 1], 2, DataError, "training: expected 2 tokens or more, got 1"),
        ([0, 1], [], 2, DataError, "validation: expected 2 tokens or more, got 0"),
        ([0, 1], [0, 1], 4097, DataError, "vocab_size: expected 1 to 4096 .* got 4097"),
        ([0, 1], [0, 1], 0, DataError, "vocab_size: expected 1 to 4096 .* got 0"),
        ([0, 2], [0, 1], 2, TokenIdError, "training: expected token ids from 0 to 1, got 2 at position 1"),
        ([0, 1], [0, 1, -1], 2, TokenIdError, "validation: expected token ids from 0 to 1, got -1 at position 2"),
    ],
)
def test_a_bigram_model_refuses_what_it_cannot_count(
    training: list[int], validation: list[int], vocab_size: int, error: type[MilaError], message: str
) -> None:
    with pytest.raises(error, match=message):
        bigram_loss(np.array(training, np.int32), np.array(validation, np.int32), vocab_size)


@pytest.mark.parametrize("smoothing", [0.0, -1.0, float("nan")])
def test_a_bigram_model_needs_smoothing(smoothing: float) -> None:
    tokens = counted(3)
    with pytest.raises(ConfigurationError, match="smoothing: expected more than 0"):
        bigram_loss(tokens, tokens, 3, smoothing)
