"""The cache of attention with a sliding window: its size, what it gives, and how far back a row may go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mila.components import Attention, AttentionConfig
from mila.core import BuildContext, Position, RuntimeMode
from mila.errors import LifecycleError, ShapeError
from mila.models import LlamaConfig, LlamaTransformer
from tests.kernels.attention_reference import Array, Problem, error, expected

HEADS, KV_HEADS, SIZE = 4, 2, 3
WIDTH = (HEADS + 2 * KV_HEADS) * SIZE
WINDOWS_AND_CHUNKS = [(1, 1), (1, 4), (2, 1), (3, 2), (4, 3), (4, 7), (5, 1)]


def context(batch: int, chunk: int, max_seq_len: int) -> BuildContext:
    return BuildContext((batch, chunk, WIDTH), RuntimeMode.INFERENCE, prefill_size=chunk, max_seq_len=max_seq_len)


def unbuilt(window: int | None, **options: Any) -> Attention:
    config = AttentionConfig(
        num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=SIZE, sliding_window=window, kv_cache=True
    )
    return Attention("attention", config, device="cpu", dtype="float64", **options)


def built(window: int | None, chunk: int, batch: int = 1, max_seq_len: int = 64) -> Attention:
    attention = unbuilt(window)
    attention.build(context(batch, chunk, max_seq_len))
    return attention


def drawn(rows: int, length: int, seed: int = 0) -> Array:
    return 1.5 * np.random.default_rng(seed).standard_normal((rows, length, WIDTH))


def uncached(qkv: Array, window: int | None) -> Array:
    """The outputs for whole sequences, by the formula."""
    zeros = np.zeros((*qkv.shape[:2], HEADS * SIZE))
    return expected(Problem(qkv, zeros, HEADS, KV_HEADS, SIZE, True, window or 0))[0]


def feed(attention: Attention, qkv: Array, start: int, stop: int) -> Array:
    return np.array(attention.forward(qkv[:, start:stop].copy(), position=Position(start)))


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize(("window", "chunk"), WINDOWS_AND_CHUNKS)
@pytest.mark.parametrize("max_seq_len", [8, 9, 64])
def test_a_window_and_a_chunk_bound_the_cache(window: int, chunk: int, max_seq_len: int) -> None:
    slots = min(max_seq_len, window - 1 + chunk)
    asked = context(2, chunk, max_seq_len)
    plan = unbuilt(window).plan(asked)
    sizes = {b.name: b.nbytes for b in plan.buffers if b.name in ("keys", "values")}
    assert sizes == dict.fromkeys(("keys", "values"), 2 * KV_HEADS * slots * SIZE * 8)
    attention = unbuilt(window)
    attention.build(asked)
    assert attention.get_memory_stats() == plan.stats
    attention.forward(drawn(2, chunk))
    assert attention.get_memory_stats() == plan.stats


def test_a_cache_with_a_window_does_not_grow_with_the_sequence() -> None:
    assert unbuilt(4).get_required_memory(context(1, 3, 10)) == unbuilt(4).get_required_memory(context(1, 3, 10**6))


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize(("window", "chunk"), WINDOWS_AND_CHUNKS)
@pytest.mark.parametrize("sizes", ["whole", "odd", "single"])
def test_any_length_gives_what_attention_without_a_cache_gives(window: int, chunk: int, sizes: str) -> None:
    random = np.random.default_rng(window)
    for length in {window - 1, window, window + 1, 2 * window + 1, 3 * (window + chunk)} - {0}:
        qkv, attention = drawn(3, length, seed=length), built(window, chunk, batch=3)
        start, outputs = 0, []
        while start < length:
            size = {"whole": chunk, "odd": int(random.integers(1, chunk + 1)), "single": 1}[sizes]
            outputs.append(feed(attention, qkv, start, min(length, start + size)))
            start += size
        assert error(np.concatenate(outputs, axis=1), uncached(qkv, window)) < 1e-12


@pytest.mark.parametrize("max_seq_len", [8, 12])
def test_a_window_wider_than_the_sequence_hides_nothing(max_seq_len: int) -> None:
    qkv, attention = drawn(2, 8), built(10, 4, batch=2, max_seq_len=max_seq_len)
    outputs = [feed(attention, qkv, start, start + 4) for start in (0, 4)]
    assert error(np.concatenate(outputs, axis=1), uncached(qkv, None)) < 1e-12
    assert attention.earliest_start(0) == 0


def windowed_model(window: int | None, sliding_layers: tuple[int, ...] | None = None) -> LlamaTransformer:
    config = LlamaConfig(
        vocab_size=11,
        embedding_dim=8,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        hidden_dim=10,
        max_seq_len=40,
        sliding_window=window,
        sliding_layers=sliding_layers,
    )
    return LlamaTransformer("llama", config, device="cpu", dtype="float64")


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("layers", [None, (1,)])
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_a_model_decodes_far_beyond_its_rings(chunk: int, layers: tuple[int, ...] | None, batch: int) -> None:
    ids = np.random.default_rng(0).integers(0, 11, (batch, 40), np.int32)
    reference, model = windowed_model(4, layers), windowed_model(4, layers)
    reference.build(BuildContext((batch, 40), RuntimeMode.TRAINING))
    want = np.array(reference.forward(ids))
    model.build(BuildContext((batch, 40), RuntimeMode.INFERENCE, initialize_parameters=True, prefill_size=chunk))
    for start in range(0, 20, chunk):
        got = model.forward(ids[:, start : start + chunk].copy(), position=Position(start))
        assert np.allclose(got[:, 0], want[:, start + chunk - 1], rtol=1e-12, atol=1e-13)
    for position in range(start + chunk, 40):
        got = model.forward(ids[:, position : position + 1].copy(), position=Position(position))
        assert np.allclose(got[:, 0], want[:, position], rtol=1e-12, atol=1e-13)


# ---------------------------------------------------------------------- going back


class Row:
    """What a row has been given, and which position each slot of its ring holds: the rule, written out."""

    def __init__(self, window: int, slots: int) -> None:
        self.window, self.slots = window, slots
        self.tokens = np.zeros((0, WIDTH))
        self.holds: dict[int, int] = {}

    def allows(self, start: int) -> bool:
        """Whether all positions that a query at ``start`` sees are in their slots."""
        seen = range(max(0, start - self.window + 1), start)
        return start <= len(self.tokens) and all(self.holds.get(p % self.slots) == p for p in seen)

    def write(self, start: int, tokens: Array) -> None:
        self.tokens = np.concatenate([self.tokens[:start], tokens])
        self.holds.update((p % self.slots, p) for p in range(start, len(self.tokens)))

    def expected(self, start: int) -> Array:
        return uncached(self.tokens[None], self.window)[0, start:]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("window", "chunk"), WINDOWS_AND_CHUNKS)
def test_rows_go_back_as_far_as_their_rings_allow(window: int, chunk: int, seed: int) -> None:
    """Rows of different lengths go on, go back and start again at random; what is refused leaves all as it was."""
    attention, random = built(window, chunk, batch=2), np.random.default_rng(seed)
    rows = [Row(window, window - 1 + chunk) for _ in range(2)]
    accepted = refused = 0
    for _ in range(60):
        lengths = random.integers(1, chunk + 1, 2).tolist()
        starts = []
        for row, length in zip(rows, lengths, strict=True):
            held, back = len(row.tokens), int(random.integers(0, window + chunk + 1))
            starts.append(0 if held + length > 64 else random.choice([held, held, held, max(0, held - back)]))
        tokens = random.standard_normal((2, chunk, WIDTH))
        fits = [row.allows(start) for row, start in zip(rows, starts, strict=True)]
        for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
            assert (start == 0 or attention.earliest_start(index) <= start <= len(row.tokens)) == fits[index]
        if not all(fits):
            refused += 1
            with pytest.raises(ShapeError, match=f"attention: the cache of row {fits.index(False)} holds"):
                attention.forward(tokens, position=Position(starts, lengths))
            continue
        accepted += 1
        output = np.array(attention.forward(tokens, position=Position(starts, lengths)))
        for index, (row, start, length) in enumerate(zip(rows, starts, lengths, strict=True)):
            row.write(start, tokens[index, :length])
            assert error(output[index, :length], row.expected(start)) < 1e-12
    assert accepted > 20
    assert refused or window == 1


@pytest.mark.parametrize(("window", "chunk"), [(4, 3), (3, 1), (2, 5)])
def test_the_last_chunk_can_always_be_done_again(window: int, chunk: int) -> None:
    qkv, attention = drawn(1, 6 * chunk), built(window, chunk)
    want = uncached(qkv, window)
    for start in range(0, 6 * chunk, chunk):
        for _ in range(3):
            assert error(feed(attention, qkv, start, start + chunk), want[:, start : start + chunk]) < 1e-12


def test_what_later_positions_overwrote_stays_lost_when_a_row_goes_back() -> None:
    qkv, attention = drawn(1, 20), built(window=4, chunk=3)  # 6 slots
    for start in range(0, 18, 3):
        assert attention.earliest_start(0) == (0 if start <= 6 else start - 6 + 3)
        feed(attention, qkv, start, start + 3)
    assert attention.earliest_start(0) == 15
    feed(attention, qkv, 16, 17)
    assert attention.earliest_start(0) == 15
    message = (
        "attention: the cache of row 0 holds 17 of at most 64 positions, the first 12 of them overwritten; "
        "expected a start of 0, or from 15 to 17, got 14"
    )
    with pytest.raises(ShapeError, match=f"^{message}$"):
        feed(attention, qkv, 14, 15)
    with pytest.raises(ShapeError, match="got 18"):
        feed(attention, qkv, 18, 19)
    assert error(feed(attention, qkv, 15, 18), uncached(qkv, 4)[:, 15:18]) < 1e-12


@pytest.mark.parametrize("start_again", [1, 2, 6])
def test_a_row_that_starts_again_has_lost_nothing(start_again: int) -> None:
    qkv, other, attention = drawn(1, 20), drawn(1, 20, seed=1), built(window=4, chunk=6)
    for start in range(0, 20, 5):
        feed(attention, qkv, start, start + 5)
    assert attention.earliest_start(0) == 14
    want = uncached(other, 4)
    assert error(feed(attention, other, 0, start_again), want[:, :start_again]) < 1e-12
    assert attention.earliest_start(0) == 0
    for start in range(start_again, 20):
        assert error(feed(attention, other, start, start + 1), want[:, start : start + 1]) < 1e-12
    assert attention.earliest_start(0) == 20 - 9 + 3


def test_one_bad_row_changes_none() -> None:
    qkv, attention = drawn(2, 20), built(window=4, chunk=3, batch=2)
    for start in range(0, 12, 3):
        feed(attention, qkv, start, start + 3)
    keys, before = attention.workspace("keys").copy(), [attention.earliest_start(row) for row in range(2)]
    for starts in ([12, 13], [13, 12], [12, 2], [0, 2], [2, 0]):
        with pytest.raises(ShapeError, match=f"row {[start in (0, 12) for start in starts].index(False)} holds"):
            attention.forward(drawn(2, 2), position=Position(starts))
        assert np.array_equal(attention.workspace("keys"), keys)
        assert [attention.earliest_start(row) for row in range(2)] == before
    assert error(feed(attention, qkv, 12, 15), uncached(qkv, 4)[:, 12:15]) < 1e-12


def test_what_one_layer_refuses_changes_no_other_layer() -> None:
    ids = np.random.default_rng(0).integers(0, 11, (1, 40), np.int32)
    model, untouched = windowed_model(4, (1,)), windowed_model(4, (1,))
    for network in (model, untouched):
        network.build(BuildContext((1, 40), RuntimeMode.INFERENCE, initialize_parameters=True, prefill_size=3))
        for start in range(0, 21, 3):
            network.forward(ids[:, start : start + 3].copy(), position=Position(start))
    with pytest.raises(ShapeError, match=r"llama\.block_1\.attention: the cache of row 0 .* got 5"):
        model.forward(ids[:, 30:33].copy(), position=Position(5))
    for position in range(21, 25):
        token = ids[:, position : position + 1].copy()
        got = model.forward(token, position=Position(position))
        assert np.array_equal(got, untouched.forward(token, position=Position(position)))


def test_rows_that_are_left_out_keep_what_they_hold() -> None:
    qkv, attention = drawn(2, 20), built(window=4, chunk=3, batch=2)
    feed(attention, qkv, 0, 3)
    for start in range(3, 18, 3):
        feed(attention, qkv[:1], start, start + 3)
    assert [attention.earliest_start(row) for row in range(2)] == [15, 0]
    want = uncached(qkv, 4)
    got = attention.forward(np.stack([qkv[0, 18:20], qkv[1, 3:5]]), position=Position([18, 3]))
    assert error(got, np.stack([want[0, 18:20], want[1, 3:5]])) < 1e-12


def test_without_a_window_a_row_goes_back_anywhere() -> None:
    qkv, attention = drawn(1, 12), built(None, 4, max_seq_len=12)
    for start in (0, 4, 8, 5, 1, 3):
        got = feed(attention, qkv, start, start + 4)
        assert attention.earliest_start(0) == 0
        assert error(got, uncached(qkv, None)[:, start : start + 4]) < 1e-12
    with pytest.raises(ShapeError, match="row 0 holds 7 of at most 12 positions; expected a start of at most 7, got 8"):
        feed(attention, qkv, 8, 9)


def test_an_interrupted_call_leaves_a_row_that_can_do_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    qkv, attention = drawn(1, 20), built(window=4, chunk=3)
    for start in range(0, 12, 3):
        feed(attention, qkv, start, start + 3)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(attention.kernels), "attention_cached", interrupt)
        with pytest.raises(KeyboardInterrupt):
            feed(attention, qkv, 12, 15)
    with pytest.raises(ShapeError, match="row 0 holds 12"):
        feed(attention, qkv, 15, 16)
    assert error(feed(attention, qkv, 12, 15), uncached(qkv, 4)[:, 12:15]) < 1e-12


# ---------------------------------------------------------------------- asking


def test_asking_needs_a_build_and_a_row() -> None:
    with pytest.raises(LifecycleError, match="earliest_start needs a built component"):
        unbuilt(4).earliest_start(0)
    attention = built(4, 3, batch=2)
    for row in (-1, 2):
        with pytest.raises(ShapeError, match=f"attention: expected a row from 0 to 1, got {row}"):
            attention.earliest_start(row)


@pytest.mark.parametrize(("mode", "kv_cache"), [(RuntimeMode.TRAINING, True), (RuntimeMode.INFERENCE, False)])
def test_builds_without_a_cache_have_lost_nothing(mode: RuntimeMode, kv_cache: bool) -> None:
    config = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=3, sliding_window=4, kv_cache=kv_cache)
    attention = Attention("attention", config, device="cpu", dtype="float64")
    attention.build(BuildContext((1, 30, WIDTH), mode))
    attention.forward(drawn(1, 30))
    assert attention.earliest_start(0) == 0
