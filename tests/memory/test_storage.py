"""Sizes of stored elements."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mila.memory import storage_bytes
from mila.memory.storage import align_up, element_count

WHOLE_BYTES: list[tuple[Any, int]] = [
    (np.float32, 4),
    ("float64", 8),
    (np.dtype(np.float16), 2),
    (ml_dtypes.bfloat16, 2),
    (ml_dtypes.float8_e4m3fn, 1),
    (ml_dtypes.float8_e5m2, 1),
    (np.int32, 4),
    (np.int64, 8),
    (np.bool_, 1),
    (np.uint8, 1),
]
BITS: list[tuple[Any, int]] = [
    (ml_dtypes.float4_e2m1fn, 4),
    (ml_dtypes.int4, 4),
    (ml_dtypes.uint4, 4),
    (ml_dtypes.int2, 2),
    (ml_dtypes.uint2, 2),
    (ml_dtypes.float6_e2m3fn, 6),
    (ml_dtypes.float6_e3m2fn, 6),
]


@pytest.mark.parametrize(("dtype", "size"), WHOLE_BYTES)
@given(count=st.integers(0, 2**50))
def test_dtypes_of_whole_bytes(dtype: Any, size: int, count: int) -> None:
    assert storage_bytes(dtype, count) == size * count


@pytest.mark.parametrize(("dtype", "bits"), BITS)
@given(count=st.integers(0, 2**50))
def test_narrower_dtypes_are_packed_and_rounded_up_once(dtype: Any, bits: int, count: int) -> None:
    assert storage_bytes(dtype, count) == (bits * count + 7) // 8


def test_packed_examples() -> None:
    assert [storage_bytes(ml_dtypes.float4_e2m1fn, n) for n in (0, 1, 2, 3, 32)] == [0, 1, 1, 2, 16]
    assert [storage_bytes(ml_dtypes.float6_e2m3fn, n) for n in (1, 4, 5)] == [1, 3, 4]


def test_counts_do_not_overflow() -> None:
    assert element_count((2**40, 2**40)) == 2**80
    assert element_count(()) == 1


@given(st.integers(0, 2**60), st.sampled_from([1, 64, 512]))
def test_alignment_rounds_up(size: int, alignment: int) -> None:
    aligned = align_up(size, alignment)
    assert aligned % alignment == 0
    assert 0 <= aligned - size < alignment
