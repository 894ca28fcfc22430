"""NaN, infinities and huge scores in attention: they reach what sees them, as on the CPU, and no other head or row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from tests.cuda.on_device import OnDevice
from tests.cuda.test_attention import computed
from tests.kernels.attention_reference import Array, Problem, problem
from tests.kernels.test_attention_cached import Cache

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

CPU = CpuKernels(1)
#: Two rows, two tiles of queries, two query heads for each key/value head.
LENGTH, HEADS, KV_HEADS, SIZE = 70, 4, 2, 8
#: What is changed: of row 1, a position in the first tile, the second query head or key/value head.
ROW, PLACE, HEAD = 1, 30, 1
OPTIONS = ((True, 0), (True, 25), (False, 0))
SPECIAL = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0)

every_option = pytest.mark.parametrize("option", OPTIONS, ids=str)


def on_device(device: CudaDevice) -> CpuKernels:
    return cast(CpuKernels, OnDevice(device))


def changed(p: Problem, first: int, value: float) -> Problem:
    """With ``value`` in the whole of one head, counted among query, key and value heads."""
    qkv = p.qkv.copy()
    qkv.reshape(*qkv.shape[:2], -1, SIZE)[ROW, PLACE, first + HEAD] = value
    return replace(p, qkv=qkv)


def run(kernels: CpuKernels, p: Problem) -> dict[str, Array]:
    """Output (B, T, H, D), log-sum-exp (B, T, H) and the packed gradient (B, T, H + 2 K, D)."""
    with np.errstate(all="ignore"):
        output, log_sum_exp, gradient = computed(kernels, p)
    shape = (*output.shape[:2], -1, SIZE)
    return {"output": output.reshape(shape), "sums": log_sum_exp.swapaxes(1, 2), "gradient": gradient.reshape(shape)}


def sees(option: tuple[bool, int]) -> Array:
    """Which queries see the place."""
    causal, window = option
    queries = np.arange(LENGTH)
    return (queries >= PLACE if causal else queries >= 0) & (queries < PLACE + window if window else True)


@every_option
@pytest.mark.parametrize("value", SPECIAL, ids=str)
def test_a_special_query_is_what_it_is_on_the_cpu(value: float, option: tuple[bool, int], cuda: CudaDevice) -> None:
    """Its scores may all be minus infinity, all infinity, or not numbers; only its own output is touched."""
    p = changed(problem((2, LENGTH, HEADS, KV_HEADS, SIZE), option, np.float32), 0, value)
    found, wanted = run(on_device(cuda), p), run(CPU, p)
    for name in ("output", "sums"):
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(found[name]), test(wanted[name]), f"{name}: {test.__name__}")
        others = np.ones(found[name].shape[:3], bool)
        others[ROW, PLACE, HEAD] = False
        assert np.isfinite(found[name][others]).all()
        finite = np.isfinite(wanted[name])
        np.testing.assert_allclose(found[name][finite], wanted[name][finite], rtol=1e-5, atol=1e-5)


@every_option
@pytest.mark.parametrize("part", ["key", "value"])
def test_a_special_key_reaches_those_that_see_it_and_no_other_head(
    part: str, option: tuple[bool, int], cuda: CudaDevice
) -> None:
    """Other queries of the same head may become NaN with it, as a weight of zero times NaN is NaN."""
    clean = problem((2, LENGTH, HEADS, KV_HEADS, SIZE), option, np.float32)
    p = changed(clean, HEADS if part == "key" else HEADS + KV_HEADS, np.nan)
    before, after = run(on_device(cuda), clean), run(on_device(cuda), p)
    group = np.arange(HEADS) // (HEADS // KV_HEADS) == HEAD
    assert np.isnan(after["output"][ROW][sees(option)][:, group]).all()
    touched = np.concatenate([group, np.arange(KV_HEADS) == HEAD, np.arange(KV_HEADS) == HEAD])
    for name, heads in (("output", group), ("sums", group), ("gradient", touched)):
        assert np.array_equal(after[name][1 - ROW], before[name][1 - ROW])
        assert np.array_equal(after[name][ROW][:, ~heads], before[name][ROW][:, ~heads])
    for name in ("output", "sums"):
        assert ((after[name] == before[name]) | np.isnan(after[name])).all()


@pytest.mark.parametrize("value", SPECIAL, ids=str)
@pytest.mark.parametrize("cached", [LENGTH, 300])
def test_decoding_a_special_query_is_what_it_is_on_the_cpu(cached: int, value: float, cuda: CudaDevice) -> None:
    p = problem((2, 1, HEADS, KV_HEADS, SIZE), dtype=np.float32)
    p.qkv.reshape(2, 1, -1, SIZE)[ROW, 0, HEAD] = value
    outputs: list[Any] = []
    for kernels in (on_device(cuda), CPU):
        cache, random = Cache(kernels, p, 1, cached + 1), np.random.default_rng(1)
        for array in (cache.keys, cache.values):
            array[...] = random.standard_normal(array.shape)
        with np.errstate(all="ignore"):
            outputs.append(cache.feed(p.qkv, [cached, cached], [1, 1]))
    found, wanted = outputs
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", [64, 70, 128, 192])
@pytest.mark.parametrize("cached", [LENGTH, 200, 700])
def test_decoding_passes_over_keys_whose_scores_are_minus_infinity(cached: int, first: int, cuda: CudaDevice) -> None:
    """As many as are looked at together, and as a split has: they have no weight, and the others have all of it."""
    p = problem((2, 1, HEADS, KV_HEADS, SIZE), dtype=np.float32)
    parts = p.qkv.reshape(2, 1, -1, SIZE)
    parts[:, :, :HEADS] = np.abs(parts[:, :, :HEADS])
    outputs: list[Any] = []
    for kernels in (on_device(cuda), CPU):
        cache, random = Cache(kernels, p, 1, cached + 1), np.random.default_rng(1)
        for array in (cache.keys, cache.values):
            array[...] = random.standard_normal(array.shape)
        cache.keys[:, :, : min(first, cached - 1)] = -np.inf
        with np.errstate(all="ignore"):
            outputs.append(cache.feed(p.qkv, [cached, cached], [1, 1]))
    found, wanted = outputs
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_row_whose_scores_are_all_minus_infinity_touches_no_other(cuda: CudaDevice) -> None:
    """It has no weights: 0 / 0, as on the CPU. Rows beside it are as ever."""
    p = problem((1, 5, 1, 1, SIZE), dtype=np.float32)
    parts = p.qkv.reshape(1, 5, 3, SIZE)
    parts[:, :, 1] = np.abs(parts[:, :, 1])
    parts[0, 3, 0] = -np.inf
    for kernels in (on_device(cuda), CPU):
        found = run(kernels, p)
        for name in ("output", "sums"):
            is_nan = np.isnan(found[name][0]).reshape(5, -1)
            assert not is_nan[[0, 1, 2, 4]].any()
            assert name == "sums" or is_nan[3].all()
