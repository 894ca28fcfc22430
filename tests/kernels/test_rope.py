"""Rotary positions turn pairs of elements by the angle of their position, and back."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mila.kernels.cpu.table import CpuKernels

Array = NDArray[Any]

TOLERANCES: dict[type, float] = {np.float64: 1e-14, np.float32: 1e-6}
#: (B, T, heads that turn, heads that pass, D, rotary_dim)
SHAPES = (
    (1, 1, 1, 0, 2, 2),
    (2, 5, 3, 2, 6, 6),
    (3, 7, 4, 4, 8, 4),
    (1, 13, 2, 1, 5, 4),
    (3, 11, 4, 0, 6, 6),
    (2, 150, 8, 4, 64, 64),
    (2, 150, 8, 4, 64, 32),
)
ONE, TWO, THREE = CpuKernels(1), CpuKernels(2), CpuKernels(3)


def frequencies(rotary_dim: int, theta: float = 10000.0) -> list[float]:
    return [float(theta ** (-2.0 * index / rotary_dim)) for index in range(rotary_dim // 2)]


def tables(positions: int, rotary_dim: int, dtype: type, theta: float = 10000.0) -> tuple[Array, Array]:
    cosine: Array = np.full((positions, rotary_dim // 2), np.nan, dtype)
    sine: Array = np.full_like(cosine, np.nan)
    ONE.rope_tables(cosine, sine, frequencies(rotary_dim, theta))
    return cosine, sine


def rotate(
    x: Array,
    shape: tuple[int, int, int, int, int, int],
    starts: Sequence[int],
    inverse: bool = False,
    kernels: CpuKernels = TWO,
    in_place: bool = False,
) -> Array:
    _, length, heads, _, head_dim, rotary_dim = shape
    cosine, sine = tables(length + 40, rotary_dim, x.dtype.type)
    x = x.copy()
    output = x if in_place else np.full_like(x, np.nan)
    workspace = np.full(kernels.rope_workspace(length, heads, head_dim), np.nan, x.dtype)
    kernels.rope(output, x, cosine, sine, starts, heads, head_dim, inverse, workspace)
    return output


def draw(shape: tuple[int, int, int, int, int, int], dtype: type) -> tuple[Array, list[int]]:
    batch, length, heads, others, head_dim, _ = shape
    x = np.random.default_rng(3).standard_normal((batch, length, (heads + others) * head_dim))
    return x.astype(dtype), [(11 * b) % 37 for b in range(batch)]


def turned_as_complex_numbers(
    x: Array, shape: tuple[int, int, int, int, int, int], starts: Sequence[int], inverse: bool
) -> Array:
    batch, length, heads, others, head_dim, rotary_dim = shape
    half = rotary_dim // 2
    output = x.astype(np.float64).reshape(batch, length, heads + others, head_dim)
    position = np.asarray(starts)[:, None] + np.arange(length)
    angle = position[:, :, None, None] * np.array(frequencies(rotary_dim))
    pairs = output[:, :, :heads, :half] + 1j * output[:, :, :heads, half:rotary_dim]
    pairs *= np.exp(-1j * angle if inverse else 1j * angle)
    output[:, :, :heads, :half] = pairs.real
    output[:, :, :heads, half:rotary_dim] = pairs.imag
    return output.reshape(x.shape)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pairs_turn_as_complex_numbers(shape: tuple[int, int, int, int, int, int], inverse: bool, dtype: type) -> None:
    x, starts = draw(shape, dtype)
    want = turned_as_complex_numbers(x, shape, starts, inverse)
    assert np.abs(rotate(x, shape, starts, inverse) - want).max() < 4 * TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_in_place_and_any_number_of_threads_give_the_same_bits(
    shape: tuple[int, int, int, int, int, int], dtype: type
) -> None:
    x, starts = draw(shape, dtype)
    want = rotate(x, shape, starts)
    assert np.array_equal(rotate(x, shape, starts, in_place=True), want)
    for kernels in (ONE, THREE):
        assert np.array_equal(rotate(x, shape, starts, kernels=kernels, in_place=True), want)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_inverse_turns_back(shape: tuple[int, int, int, int, int, int], dtype: type) -> None:
    x, starts = draw(shape, dtype)
    back = rotate(rotate(x, shape, starts), shape, starts, inverse=True)
    assert np.abs(back - x).max() < 4 * TOLERANCES[dtype]


def test_the_other_heads_and_elements_pass_bit_for_bit() -> None:
    shape = (3, 7, 4, 4, 8, 4)
    x, starts = draw(shape, np.float32)
    for in_place in (False, True):
        got = rotate(x, shape, starts, in_place=in_place).reshape(3, 7, 8, 8)
        assert np.array_equal(got[:, :, 4:], x.reshape(3, 7, 8, 8)[:, :, 4:])
        assert np.array_equal(got[:, :, :, 4:], x.reshape(3, 7, 8, 8)[:, :, :, 4:])


def test_backward_is_the_transpose_of_forward() -> None:
    shape = (2, 5, 3, 2, 6, 4)
    x, starts = draw(shape, np.float64)
    dy = np.random.default_rng(4).standard_normal(x.shape)
    left = (rotate(x, shape, starts) * dy).sum()
    right = (x * rotate(dy, shape, starts, inverse=True)).sum()
    assert left == pytest.approx(right, rel=1e-13)


def test_a_row_that_starts_later_equals_the_tail_of_a_longer_one() -> None:
    long = (1, 30, 2, 1, 8, 8)
    x, _ = draw(long, np.float32)
    tail = rotate(x[:, 20:].copy(), (1, 10, *long[2:]), [20])
    assert np.array_equal(rotate(x, long, [0])[:, 20:], tail)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("rotary_dim", [64, 16])
def test_tables_are_rounded_once_from_float64(rotary_dim: int, theta: float) -> None:
    positions = 3000
    angle = np.arange(positions)[:, None] * np.array(frequencies(rotary_dim, theta))
    for dtype, tolerance in ((np.float32, 6e-8), (np.float64, 1e-12)):
        cosine, sine = tables(positions, rotary_dim, dtype, theta)
        assert cosine.dtype == sine.dtype == dtype
        assert np.abs(cosine - np.cos(angle)).max() < tolerance
        assert np.abs(sine - np.sin(angle)).max() < tolerance


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_any_frequencies_will_do_and_one_table_may_be_left_out(dtype: type) -> None:
    given = [3.0, 0.0, -0.25]
    cosine: Array = np.full((100, 3), np.nan, dtype)
    sine: Array = np.full_like(cosine, np.nan)
    ONE.rope_tables(cosine, None, given)
    assert np.isnan(sine).all()
    ONE.rope_tables(None, sine, given)
    angle = np.arange(100)[:, None] * np.array(given)
    assert np.array_equal(cosine, np.cos(angle).astype(dtype))
    assert np.array_equal(sine, np.sin(angle).astype(dtype))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_nothing_is_allocated(batch: int, threads: int) -> None:
    kernels = CpuKernels(threads)
    x, _ = draw((batch, 256, 16, 8, 64, 64), np.float32)
    cosine, sine = tables(256, 64, np.float32)
    workspace = np.empty(kernels.rope_workspace(256, 16, 64), np.float32)
    assert x.nbytes > 1_000_000
    for output in (x, np.empty_like(x)):
        kernels.rope(output, x, cosine, sine, [0] * batch, 16, 64, False, workspace)
        tracemalloc.start()
        kernels.rope(output, x, cosine, sine, [0] * batch, 16, 64, False, workspace)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 120_000 * (threads + 1)


def test_the_workspace_is_one_tile() -> None:
    sizes = [TWO.rope_workspace(length, 32, 128) for length in range(1, 300)]
    assert sizes == sorted(sizes)
    assert TWO.rope_workspace(100_000, 32, 128) == TWO.rope_workspace(1000, 32, 128)
    assert CpuKernels(7).rope_workspace(100, 32, 128) == TWO.rope_workspace(100, 32, 128)
