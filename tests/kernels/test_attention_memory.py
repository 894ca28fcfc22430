"""Attention allocates nothing to speak of, in workspaces that depend on shapes alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from tests.kernels.attention_reference import backward, forward, problem

HEADS = [(12, 12, 64), (32, 8, 128), (8, 1, 64), (1, 1, 16), (3, 3, 5)]


def peak(call: Callable[[], None]) -> int:
    """Most bytes allocated at one time during a call, after two calls that warm up."""
    call()
    call()
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("option", [(True, 0), (True, 50), (False, 0)], ids=str)
@pytest.mark.parametrize("heads", [(12, 12, 64), (12, 3, 64), (4, 1, 64)], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_no_kernel_allocates_an_array(
    batch: int, heads: tuple[int, int, int], option: tuple[bool, int], threads: int
) -> None:
    length = 384 if heads[0] == 12 else 1024
    kernels, p = CpuKernels(threads), problem((batch, length, *heads), option, np.float32)
    assert p.dy.nbytes >= 1_000_000
    limit = 120_000 * (threads + 1)
    output, dqkv = np.empty_like(p.dy), np.empty_like(p.qkv)
    log_sum_exp = np.empty((batch, p.heads, length), np.float32)
    first = np.empty(kernels.attention_forward_workspace(length, *heads), np.float32)
    second = np.empty(kernels.attention_backward_workspace(length, *heads), np.float32)
    scalars = (*heads, *option, p.scale)
    assert peak(lambda: kernels.attention_forward(output, log_sum_exp, p.qkv, *scalars, first)) < limit
    assert peak(lambda: kernels.attention_backward(dqkv, log_sum_exp, p.dy, output, p.qkv, *scalars, second)) < limit


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("heads", [(12, 12, 64), (12, 3, 64), (4, 1, 64)], ids=str)
@pytest.mark.parametrize("chunk", [1, 384])
def test_attention_with_a_cache_allocates_no_array(
    chunk: int, heads: tuple[int, int, int], window: int, threads: int
) -> None:
    """With a window, the cache is a ring that wraps within the chunk, and within the window of a single position."""
    kernels, p = CpuKernels(threads), problem((2, chunk, *heads), (True, window), np.float32)
    capacity = max(window - 1, 0) + 384
    start = (capacity + 20 if window else capacity) - chunk
    keys = np.zeros((2, heads[1], capacity, heads[2]), np.float32)
    values, output = keys.copy(), np.empty_like(p.dy)
    workspace = np.empty(kernels.attention_cached_workspace(chunk, capacity, *heads, window), np.float32)

    def cached() -> None:
        kernels.attention_cached(
            output, keys, values, p.qkv, [start] * 2, [chunk] * 2, heads[0], window, p.scale, workspace
        )

    assert peak(cached) < (40_000 if chunk == 1 else 120_000) * (threads + 1)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_workspaces_grow_no_faster_than_the_length(heads: tuple[int, int, int]) -> None:
    kernels = CpuKernels(2)
    for length in (2048, 4096, 8192, 16384):
        for workspace in (kernels.attention_forward_workspace, kernels.attention_backward_workspace):
            assert workspace(2 * length, *heads) <= 2.1 * workspace(length, *heads)
        cached = kernels.attention_cached_workspace
        for window in (0, 300):
            assert cached(512, 2 * length, *heads, window) <= 2.1 * cached(512, length, *heads, window)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_shorter_call_never_needs_more_workspace(heads: tuple[int, int, int]) -> None:
    kernels = CpuKernels(2)
    lengths = [*range(1, 300), 511, 512, 1024, 5000]
    for workspace in (kernels.attention_forward_workspace, kernels.attention_backward_workspace):
        sizes = [workspace(length, *heads) for length in lengths]
        assert sizes == sorted(sizes)
    for window in (0, 300):
        sizes = [kernels.attention_cached_workspace(length, 1024, *heads, window) for length in lengths]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("length", [1, 20, 300, 3000])
def test_only_a_window_takes_workspace_for_caches_that_wrap(length: int, heads: tuple[int, int, int]) -> None:
    kernels = CpuKernels(2)
    plain = kernels.attention_cached_workspace(length, length, *heads, 0)
    assert plain == kernels.attention_forward_workspace(length, *heads)
    assert kernels.attention_cached_workspace(length, length, *heads, 9) <= 2 * plain


def test_workspaces_do_not_depend_on_the_threads() -> None:
    def sizes(kernels: CpuKernels) -> list[int]:
        return [
            size
            for heads in HEADS
            for size in (
                kernels.attention_forward_workspace(300, *heads),
                kernels.attention_backward_workspace(300, *heads),
                kernels.attention_cached_workspace(20, 300, *heads, 0),
                kernels.attention_cached_workspace(20, 300, *heads, 281),
            )
        ]

    assert sizes(CpuKernels(1)) == sizes(CpuKernels(7))


def test_a_larger_workspace_changes_no_bit() -> None:
    class Generous(CpuKernels):
        def attention_forward_workspace(self, length: int, heads: int, kv_heads: int, head_dim: int) -> int:
            return 3 * super().attention_forward_workspace(2 * length, heads, kv_heads, head_dim)

        def attention_backward_workspace(self, length: int, heads: int, kv_heads: int, head_dim: int) -> int:
            return 3 * super().attention_backward_workspace(2 * length, heads, kv_heads, head_dim)

    p = problem((1, 300, 6, 3, 16), dtype=np.float32)
    assert np.array_equal(forward(Generous(2), p)[0], forward(CpuKernels(2), p)[0])
    assert np.array_equal(backward(Generous(2), p), backward(CpuKernels(2), p))
