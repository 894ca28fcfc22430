"""Casts between half precision and float32: every value, every tie, and what is beyond."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Array

KERNELS = CpuKernels(2)
HALVES = [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)]
both = pytest.mark.parametrize("dtype", HALVES, ids=str)


def cast(array: Array, dtype: np.dtype[np.generic] | type[np.generic]) -> Array:
    result = np.full(array.shape, 7, dtype)
    KERNELS.cast(result, array)
    return result


def every_value(dtype: np.dtype[np.generic]) -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def exact(values: Array) -> Array:
    with np.errstate(all="ignore"):  # signalling NaN
        return values.astype(np.float64)


@both
def test_widening_is_exact_and_narrowing_gives_the_same_bits_again(dtype: np.dtype[np.generic]) -> None:
    values = every_value(dtype)
    wide = cast(values, np.float32)
    is_nan = np.isnan(wide)
    assert np.array_equal(is_nan, np.isnan(exact(values)))
    assert np.array_equal(wide[~is_nan].astype(np.float64), exact(values)[~is_nan])
    again = cast(wide, dtype)
    assert np.isnan(exact(again)[is_nan]).all()
    assert again[~is_nan].tobytes() == values[~is_nan].tobytes()


@both
def test_what_lies_between_two_values_goes_to_the_nearest_and_a_tie_to_the_even_one(
    dtype: np.dtype[np.generic],
) -> None:
    values = every_value(dtype)[: 1 << 15]
    finite = values[np.isfinite(exact(values))].astype(np.float32)  # ascending from 0
    below, above = finite[:-1], finite[1:]
    tie = ((below.astype(np.float64) + above) / 2).astype(np.float32)  # exact: a bit more is enough
    down, up = np.nextafter(tie, np.float32(0)), np.nextafter(tie, np.float32(np.inf))
    even = np.where(np.arange(len(tie)) % 2 == 0, below, above)
    for source, expected in ((down, below), (up, above), (tie, even)):
        for sign in (1, -1):
            assert np.array_equal(cast(sign * source, dtype).astype(np.float32), sign * expected)


@both
def test_the_largest_values_overflow_to_infinity(dtype: np.dtype[np.generic]) -> None:
    wide = np.array([np.inf, -np.inf, np.finfo(np.float32).max, -np.finfo(np.float32).max, np.nan, -0.0], np.float32)
    got = cast(wide, dtype).astype(np.float32)
    assert np.array_equal(got[:4], [np.inf, -np.inf, np.inf, -np.inf])
    assert np.isnan(got[4])
    assert np.signbit(got[5])
