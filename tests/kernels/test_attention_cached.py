"""Attention with a cache gives what attention without one gives, however the positions arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from tests.kernels.attention_reference import Array, Problem, error, expected, forward, problem

CAPACITY = 160
TOLERANCES: dict[type, float] = {np.float64: 1e-12, np.float32: 2e-6}
TWO = CpuKernels(2)


class Cache:
    """Caches full of NaN, to show that nothing beyond the valid positions is ever read."""

    def __init__(self, kernels: CpuKernels, p: Problem, chunk: int, capacity: int = CAPACITY) -> None:
        shape = (len(p.qkv), p.kv_heads, capacity, p.head_dim)
        self.kernels, self.problem, self.chunk = kernels, p, chunk
        self.keys = np.full(shape, np.nan, p.qkv.dtype)
        self.values = np.full(shape, np.nan, p.qkv.dtype)
        elements = kernels.attention_cached_workspace(chunk, capacity, *p.sizes, p.window)
        self.workspace = np.full(elements, np.nan, p.qkv.dtype)

    def feed(self, qkv: Array, starts: Sequence[int], lengths: Sequence[int]) -> Array:
        p = self.problem
        output = np.full((*qkv.shape[:2], p.heads * p.head_dim), np.nan, qkv.dtype)
        self.kernels.attention_cached(
            output, self.keys, self.values, qkv, starts, lengths, p.heads, p.window, p.scale, self.workspace
        )
        return output


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("window", [0, 1, 6, 100])
@pytest.mark.parametrize("heads", [(4, 4, 16), (6, 2, 5), (4, 1, 8)], ids=str)
@pytest.mark.parametrize("chunks", [(150,), (1,) * 20, (7, 1, 64, 1, 13), (70, 80), (100, 1, 1, 1)], ids=str)
def test_any_chunking_agrees_with_attention_without_a_cache(
    chunks: tuple[int, ...], heads: tuple[int, int, int], window: int, dtype: type
) -> None:
    p = problem((2, sum(chunks), *heads), (True, window), dtype)
    cache = Cache(TWO, p, max(chunks))
    outputs = []
    start = 0
    for chunk in chunks:
        outputs.append(cache.feed(p.qkv[:, start : start + chunk].copy(), [start] * 2, [chunk] * 2))
        start += chunk
    assert error(np.concatenate(outputs, axis=1), expected(p)[0]) < TOLERANCES[dtype]


@pytest.mark.parametrize("kernels", [CpuKernels(1), TWO, CpuKernels(3)], ids=["1 thread", "2 threads", "3 threads"])
@pytest.mark.parametrize("window", [0, 9])
def test_rows_may_stand_at_different_positions(window: int, kernels: CpuKernels) -> None:
    p = problem((3, 140, 4, 2, 16), (True, window))
    want = expected(p)[0]
    cache = Cache(kernels, p, 90)
    positions = [0, 0, 0]
    for lengths in ((90, 1, 37), (2, 90, 60), (1, 1, 1), (3, 0, 2), (44, 48, 40)):
        chunk = np.full((3, max(lengths), p.qkv.shape[2]), np.nan)
        for b, length in enumerate(lengths):
            chunk[b, :length] = p.qkv[b, positions[b] : positions[b] + length]
        got = cache.feed(chunk, positions, lengths)
        for b, length in enumerate(lengths):
            stop = positions[b] + length
            assert np.array_equal(got[b, length:], np.zeros_like(got[b, length:]))
            if length:
                assert error(got[b, :length], want[b, positions[b] : stop]) < 1e-12
            assert np.isnan(cache.keys[b, :, stop:]).all()
            assert np.isnan(cache.values[b, :, stop:]).all()
            positions[b] = stop
    assert positions == [140, 140, 140]


def test_the_cache_holds_the_keys_and_values_themselves() -> None:
    p = problem((2, 10, 4, 2, 3), dtype=np.float32)
    cache = Cache(TWO, p, 10)
    cache.feed(p.qkv, [0, 0], [10, 10])
    parts = p.qkv.reshape(2, 10, 8, 3).transpose(0, 2, 1, 3)
    assert np.array_equal(cache.keys[:, :, :10], parts[:, 4:6])
    assert np.array_equal(cache.values[:, :, :10], parts[:, 6:])


def test_a_row_may_start_again_over_old_entries() -> None:
    first, second = problem((1, 30, 2, 2, 4)), problem((1, 20, 2, 2, 4), seed=1)
    cache = Cache(TWO, first, 30)
    cache.feed(first.qkv, [0], [30])
    assert error(cache.feed(second.qkv, [0], [20]), expected(second)[0]) < 1e-12


def test_a_cache_may_be_filled_to_its_end() -> None:
    p = problem((1, CAPACITY, 2, 1, 4))
    cache = Cache(TWO, p, CAPACITY)
    cache.feed(p.qkv[:, :-1].copy(), [0], [CAPACITY - 1])
    last = cache.feed(p.qkv[:, -1:].copy(), [CAPACITY - 1], [1])
    assert error(last, expected(p)[0][:, -1:]) < 1e-12


def test_long_decode_gives_the_same_bits_on_any_number_of_threads() -> None:
    p = replace(problem((1, 900, 12, 12, 64), dtype=np.float32), window=0)
    results = []
    for kernels in (CpuKernels(1), TWO, CpuKernels(3)):
        cache = Cache(kernels, p, 899, 1024)
        cache.feed(p.qkv[:, :-1].copy(), [0], [899])
        results.append(cache.feed(p.qkv[:, -1:].copy(), [899], [1]))
    assert error(results[0], forward(TWO, p)[0][:, -1:]) < TOLERANCES[np.float32]
    assert np.array_equal(results[1], results[0])
    assert np.array_equal(results[2], results[0])
