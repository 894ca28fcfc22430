"""Attention with a cache on the emulated device gives what attention without one gives, however positions arrive."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mila.kernels.cuda.row_positions import MOST_ROWS
from tests.cuda.test_attention import CHECKED, ORDERS, TOLERANCES, in_all_dtypes, on_device
from tests.emulator.stand_in.settings import use
from tests.kernels.attention_reference import Array, error, expected, problem
from tests.kernels.test_attention_cached import Cache
from tests.kernels.test_attention_ring import chunkings, feed_all, ring

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

CHUNKS = ((20,), (1, 1, 1, 1), (7, 1, 13, 1), (70, 1, 5))
#: (H, K, D): whole vectors and odd sizes, groups of 1 to 9.
HEADS = ((4, 4, 16), (6, 2, 5), (4, 1, 8), (9, 1, 3))


def fed(cache: Cache, qkv: Array, chunks: tuple[int, ...]) -> Array:
    """The outputs of ``chunks`` one after the other, of every row."""
    outputs, start, rows = [], 0, len(qkv)
    for chunk in chunks:
        outputs.append(cache.feed(qkv[:, start : start + chunk].copy(), [start] * rows, [chunk] * rows))
        start += chunk
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize(
    ("chunks", "heads", "window", "dtype"), in_all_dtypes(product(CHUNKS, HEADS, (0, 1, 6))), ids=str
)
def test_any_chunking_agrees_with_attention_without_a_cache(
    chunks: tuple[int, ...], heads: Any, window: int, dtype: Any, cuda: CudaDevice
) -> None:
    p = problem((2, sum(chunks), *heads), (True, window), dtype)
    got = fed(Cache(on_device(cuda), p, max(chunks)), p.qkv, chunks)
    assert error(got.astype(np.float64), expected(p)[0]) < TOLERANCES[dtype][0]


@pytest.mark.parametrize(
    ("heads", "window", "dtype"), in_all_dtypes([((4, 2, 8), 3), ((3, 1, 5), 0), ((9, 1, 4), 0)]), ids=str
)
def test_every_access_is_in_bounds_and_ordered(heads: Any, window: int, dtype: Any, cuda: CudaDevice) -> None:
    p = problem((2, 12, *heads), (True, window), dtype)
    cache = ring(on_device(cuda), p, 7) if window else Cache(on_device(cuda), p, 7)
    with use(CHECKED):
        got = fed(cache, p.qkv, (7, 1, 1, 3))
    assert error(got.astype(np.float64), expected(p)[0]) < TOLERANCES[dtype][0]


def test_any_order_of_threads_gives_the_same_bits(cuda: CudaDevice) -> None:
    p, results = problem((2, 12, 4, 2, 8), dtype=np.float32), []
    for order in ORDERS:
        with use(order):
            results.append(fed(Cache(on_device(cuda), p, 7), p.qkv, (7, 1, 1, 3)).tobytes())
    assert results[1:] == results[:1] * 2


@pytest.mark.parametrize("window", [1, 2, 7])
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_a_ring_serves_wherever_chunks_cross_its_end(chunk: int, window: int, cuda: CudaDevice) -> None:
    capacity = window - 1 + chunk
    length = 3 * capacity + 2
    p = problem((1, length, 4, 2, 5), (True, window), np.float32)
    for name, chunks in chunkings(length, chunk).items():
        assert error(feed_all(ring(on_device(cuda), p, chunk), p.qkv, chunks), expected(p)[0]) < 2e-6, name


@pytest.mark.parametrize("window", [70, 130])
def test_tiles_of_keys_may_cross_the_end_of_a_ring(window: int, cuda: CudaDevice) -> None:
    p = problem((1, 3 * window, 2, 1, 5), (True, window), np.float32)
    chunks = [66, 66, 7, 1, 1] * 9
    assert error(feed_all(ring(on_device(cuda), p, 66), p.qkv, chunks), expected(p)[0]) < 2e-6


def test_rows_may_stand_at_different_positions_and_nothing_else_is_read_or_written(cuda: CudaDevice) -> None:
    p = problem((3, 140, 4, 2, 8), dtype=np.float32)
    want, cache, positions = expected(p)[0], Cache(on_device(cuda), p, 90), [0, 0, 0]
    for lengths in ((90, 1, 37), (2, 90, 60), (1, 1, 1), (1, 0, 1), (46, 48, 41)):
        chunk = np.full((3, max(lengths), p.qkv.shape[2]), np.nan, np.float32)
        for b, length in enumerate(lengths):
            chunk[b, :length] = p.qkv[b, positions[b] : positions[b] + length]
        got = cache.feed(chunk, positions, lengths)
        for b, length in enumerate(lengths):
            stop = positions[b] + length
            assert np.array_equal(got[b, length:], np.zeros_like(got[b, length:]))
            if length:
                assert error(got[b, :length], want[b, positions[b] : stop]) < 2e-6
            assert np.isnan(cache.keys[b, :, stop:]).all()
            assert np.isnan(cache.values[b, :, stop:]).all()
            positions[b] = stop
    assert positions == [140, 140, 140]


def test_position_p_lies_in_slot_p_modulo_the_slots(cuda: CudaDevice) -> None:
    p = problem((1, 23, 4, 2, 8), (True, 4), np.float32)
    cache = ring(on_device(cuda), p, 5)
    feed_all(cache, p.qkv, [5, 1, 4, 5, 3, 5])
    parts = p.qkv.reshape(1, 23, 8, 8).transpose(0, 2, 1, 3)
    for position in range(23 - 8, 23):
        assert np.array_equal(cache.keys[:, :, position % 8], parts[:, 4:6, position])
        assert np.array_equal(cache.values[:, :, position % 8], parts[:, 6:, position])


@pytest.mark.parametrize("rows", [MOST_ROWS, MOST_ROWS + 1])
@pytest.mark.parametrize("chunk", [1, 2])
def test_many_rows_take_several_launches(chunk: int, rows: int, cuda: CudaDevice) -> None:
    p = problem((rows, 2, 1, 1, 2), dtype=np.float32)
    got = fed(Cache(on_device(cuda), p, chunk, 2), p.qkv, (chunk,) * (2 // chunk))
    assert error(got, expected(p)[0]) < 2e-6


def long_cache(
    device: CudaDevice, rows: int, count: int, dtype: Any, heads: tuple[int, int, int]
) -> tuple[Cache, Array]:
    """Caches of ``count`` positions but the last, and the packed projections of that one."""
    p = problem((rows, 1, *heads), dtype=dtype)
    cache = Cache(on_device(device), p, 1, count)
    random = np.random.default_rng(1)
    for array in (cache.keys, cache.values):
        array[...] = random.standard_normal(array.shape)
    return cache, p.qkv


def attended(cache: Cache, qkv: Array) -> Array:
    """One position attends to all of ``cache``, which holds it already; in float64."""
    p = cache.problem
    keys, values = cache.keys.astype(np.float64), cache.values.astype(np.float64)
    queries = qkv[:, 0, : p.heads * p.head_dim].astype(np.float64).reshape(len(qkv), p.kv_heads, -1, p.head_dim)
    scores = p.scale * np.einsum("bkgd,bksd->bkgs", queries, keys)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    output: Array = np.einsum("bkgs,bksd->bkgd", weights, values)
    return output.reshape(len(qkv), 1, -1)


@pytest.mark.parametrize(
    ("count", "heads", "dtype"), in_all_dtypes(product((255, 257, 700), ((2, 1, 64), (3, 3, 7)))), ids=str
)
def test_long_contexts_are_split_and_merged(count: int, heads: Any, dtype: Any, cuda: CudaDevice) -> None:
    cache, qkv = long_cache(cuda, 1, count, dtype, heads)
    got = cache.feed(qkv, [count - 1], [1])
    assert bool(cache.workspace.size) is (count > 256)
    assert error(got.astype(np.float64), attended(cache, qkv)) < TOLERANCES[dtype][0]


@pytest.mark.parametrize("head_dim", [7, 8])
def test_every_access_of_splits_is_in_bounds_and_ordered(head_dim: int, cuda: CudaDevice) -> None:
    cache, qkv = long_cache(cuda, 2, 300, np.float32, (2, 1, head_dim))
    with use(CHECKED):
        got = cache.feed(qkv, [299, 299], [1, 1])
    assert error(got, attended(cache, qkv)) < 2e-6


def test_splits_are_longer_in_very_long_contexts(cuda: CudaDevice) -> None:
    count = 64 * 256 + 1
    cache, qkv = long_cache(cuda, 1, count, np.float32, (1, 1, 2))
    assert error(cache.feed(qkv, [count - 1], [1]), attended(cache, qkv)) < 2e-6
    at_most_64 = cache.kernels.attention_cached_workspace(1, 64 * 256, 1, 1, 2, 0)
    assert cache.kernels.attention_cached_workspace(1, 10**7, 1, 1, 2, 0) == at_most_64


def test_a_row_does_not_depend_on_the_rows_beside_it(cuda: CudaDevice) -> None:
    """Nine rows with splits do not fit the workspace at once, and each row is split by its own length."""
    cache, qkv = long_cache(cuda, 9, 600, np.float32, (2, 1, 4))
    starts = [599, 3, 300, 599, 599, 0, 256, 255, 599]
    keys, values = cache.keys.copy(), cache.values.copy()
    together = cache.feed(qkv, starts, [1, 1, 1, 1, 0, 1, 1, 1, 1])
    assert not together[4].any()
    for row in (0, 1, 2, 6, 7, 8):
        cache.keys, cache.values = keys[row : row + 1].copy(), values[row : row + 1].copy()
        assert np.array_equal(cache.feed(qkv[row : row + 1].copy(), [starts[row]], [1]), together[row : row + 1])


@pytest.mark.parametrize("window", [0, 3])
def test_a_bound_step_is_the_kernel(window: int, cuda: CudaDevice) -> None:
    p = problem((2, 6, 4, 2, 8), (True, window), np.float32)
    kernels, cache = on_device(cuda), Cache(on_device(cuda), p, 1, 8)
    output, qkv = np.full((1, 1, 32), np.nan, np.float32), np.empty((1, 1, p.qkv.shape[2]), np.float32)
    step = kernels.bind_attention_cached(
        output, cache.keys, cache.values, qkv, p.heads, p.window, p.scale, cache.workspace
    )
    for position in range(6):
        qkv[...] = p.qkv[:1, position : position + 1]
        step(position)
        assert error(output, expected(p)[0][:1, position : position + 1]) < 2e-6
    assert np.isnan(cache.keys[1]).all()
