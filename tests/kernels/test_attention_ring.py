"""A cache that is a ring gives what attention without a cache gives, wherever chunks and windows cross its end."""

from __future__ import annotations

import numpy as np
import pytest

from mila.kernels.cpu.attention_decode import KEY_BLOCK
from mila.kernels.cpu.table import CpuKernels
from tests.kernels.attention_reference import Array, Problem, error, expected, problem
from tests.kernels.test_attention_cached import TOLERANCES, Cache

ONE, TWO, THREE = CpuKernels(1), CpuKernels(2), CpuKernels(3)


def ring(kernels: CpuKernels, p: Problem, chunk: int) -> Cache:
    """The smallest ring for chunks of ``chunk``, full of NaN."""
    return Cache(kernels, p, chunk, p.window - 1 + chunk)


def chunkings(length: int, chunk: int) -> dict[str, list[int]]:
    """Ways to feed ``length`` positions in chunks of at most ``chunk``."""
    random = np.random.default_rng(length)
    odd: list[int] = []
    while sum(odd) < length:
        odd.append(min(int(random.integers(1, chunk + 1)), length - sum(odd)))
    first = min(chunk, length)
    whole, rest = divmod(length, chunk)
    return {
        "whole chunks": [chunk] * whole + [rest] * (rest > 0),
        "odd chunks": odd,
        "one by one": [1] * length,
        "a chunk, then one by one": [first] + [1] * (length - first),
        "ones before and between": [n for size in odd for n in (1, size)],
    }


def feed_all(cache: Cache, qkv: Array, chunks: list[int]) -> Array:
    """The outputs of ``chunks`` one after the other, as far as ``qkv`` reaches."""
    outputs, start = [], 0
    for size in chunks:
        part = qkv[:, start : start + size].copy()
        rows, count = part.shape[:2]
        if count:
            outputs.append(cache.feed(part, [start] * rows, [count] * rows))
        start += count
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("heads", [(1, 1, 3), (4, 2, 5), (3, 1, 2)], ids=str)
def test_any_chunking_of_any_length_agrees(heads: tuple[int, int, int], chunk: int, window: int) -> None:
    capacity = window - 1 + chunk
    for length in {window - 1, window, window + 1, 2 * window + 1, capacity, capacity + 1, 3 * capacity + 2} - {0}:
        p = problem((2, length, *heads), (True, window), seed=length)
        want = expected(p)[0]
        for name, chunks in chunkings(length, chunk).items():
            got = feed_all(ring(TWO, p, chunk), p.qkv, chunks)
            assert error(got, want) < TOLERANCES[np.float64], (length, name)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kernels", [ONE, TWO, THREE], ids=["1 thread", "2 threads", "3 threads"])
@pytest.mark.parametrize(
    ("window", "chunk", "heads"),
    [
        (300, 200, (4, 2, 8)),
        (130, 130, (4, 4, 5)),
        (40, 300, (4, 1, 16)),
        (150, 1, (8, 2, 16)),
        (100, 200, (8, 1, 256)),  # tiles that take all of their workspace
    ],
)
def test_tiles_and_blocks_of_keys_may_cross_the_end(
    window: int, chunk: int, heads: tuple[int, int, int], kernels: CpuKernels, dtype: type
) -> None:
    length = 2 * window + chunk + KEY_BLOCK + 7
    p = problem((1, length, *heads), (True, window), dtype)
    chunks = [chunk] * (length // chunk - 1) + [min(chunk, 7)] * length
    assert error(feed_all(ring(kernels, p, chunk), p.qkv, chunks), expected(p)[0]) < TOLERANCES[dtype]


@pytest.mark.parametrize("kernels", [ONE, THREE], ids=["1 thread", "3 threads"])
@pytest.mark.parametrize(("window", "chunk"), [(5, 4), (1, 6), (9, 2)])
def test_rows_may_stand_at_different_places_of_the_ring(window: int, chunk: int, kernels: CpuKernels) -> None:
    p = problem((3, 60, 4, 2, 6), (True, window))
    want, cache, random = expected(p)[0], ring(kernels, p, chunk), np.random.default_rng(0)
    positions = np.zeros(3, int)
    while (positions < 60).any():
        lengths = np.minimum(random.integers(0, chunk + 1, 3), 60 - positions)
        columns = random.integers(max(1, lengths.max()), chunk + 1)
        part = np.full((3, columns, p.qkv.shape[2]), np.nan)
        for b, (start, length) in enumerate(zip(positions, lengths, strict=True)):
            part[b, :length] = p.qkv[b, start : start + length]
        got = cache.feed(part, positions.tolist(), lengths.tolist())
        for b, (start, length) in enumerate(zip(positions, lengths, strict=True)):
            assert not got[b, length:].any()
            if length:
                assert error(got[b, :length], want[b, start : start + length]) < 1e-12
        positions += lengths


def test_position_p_lies_in_slot_p_modulo_the_slots() -> None:
    p = problem((1, 23, 4, 2, 3), (True, 4))
    cache = ring(TWO, p, 5)
    feed_all(cache, p.qkv, [5, 1, 4, 5, 3, 5])
    parts = p.qkv.reshape(1, 23, 8, 3).transpose(0, 2, 1, 3)
    for position in range(23 - 8, 23):
        assert np.array_equal(cache.keys[:, :, position % 8], parts[:, 4:6, position])
        assert np.array_equal(cache.values[:, :, position % 8], parts[:, 6:, position])


def test_single_positions_do_not_depend_on_rows_beside_them_or_on_threads() -> None:
    p = problem((3, 700, 8, 4, 32), (True, 400), np.float32)
    results = []
    for rows, kernels in ((3, ONE), (3, TWO), (3, THREE), (1, TWO)):
        cache = ring(kernels, Problem(p.qkv[:rows], p.dy[:rows], *p.sizes, p.causal, p.window), 50)
        results.append(feed_all(cache, p.qkv[:rows], [50] * 13 + [1] * 50)[:1, 650:])
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("kernels", [ONE, THREE], ids=["1 thread", "3 threads"])
def test_heads_that_do_not_fit_the_workspace_together_take_turns(kernels: CpuKernels) -> None:
    p, capacity, random = problem((1, 1, 64, 32, 4)), 6000, np.random.default_rng(1)
    cache = Cache(kernels, p, 1, capacity)
    assert cache.workspace.size < p.heads * capacity
    cache.keys[:], cache.values[:] = random.standard_normal((2, *cache.keys.shape))
    got = cache.feed(p.qkv, [capacity - 1], [1])
    scores = p.scale * np.einsum("kgd,ksd->kgs", p.qkv[0, 0, :256].reshape(32, 2, 4), cache.keys[0])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    want = np.einsum("kgs,ksd->kgd", weights / weights.sum(axis=-1, keepdims=True), cache.values[0])
    assert error(got, want.reshape(got.shape)) < TOLERANCES[np.float64]


@pytest.mark.parametrize("chunk", [1, 3])
def test_scores_that_are_not_finite_pass_without_a_warning(chunk: int) -> None:
    p = problem((1, chunk, 2, 1, 4), (True, 3))
    cache = ring(ONE, p, chunk)
    assert np.isnan(cache.feed(np.full_like(p.qkv, np.inf), [0], [chunk])).all()
