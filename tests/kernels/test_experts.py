"""The choice of experts is settled for every row, whatever its scores are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Array

KERNELS = CpuKernels(2)
LARGEST = float(np.finfo(np.float32).max)


def top_k(scores: list[float], count: int) -> tuple[Array, list[int]]:
    x = np.array([scores], np.float32)
    values, indices = np.empty((1, count), np.float32), np.empty((1, count), np.int32)
    KERNELS.top_k_forward(values, indices, x, np.empty(KERNELS.top_k_forward_workspace(*x.shape), np.float32))
    return values[0], indices[0].tolist()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, 1.0, 1.0], [0, 1, 2]),
        ([0.0, 2.0, 2.0, 1.0], [1, 2, 3]),
        ([-0.0, 0.0, -1.0], [0, 1, 2]),
        ([-math.inf, -math.inf, -math.inf, 1.0], [3, 0, 1]),
        ([-math.inf, -LARGEST, LARGEST, math.inf], [3, 2, 0]),
        ([1.0, math.nan, math.inf, math.nan], [1, 3, 2]),
        ([math.nan, math.nan, math.nan, math.nan], [0, 1, 2]),
    ],
)
def test_ties_go_to_the_lower_index_and_nan_is_largest(scores: list[float], expected: list[int]) -> None:
    values, indices = top_k(scores, 3)
    assert indices == expected
    np.testing.assert_array_equal(values, np.array(scores, np.float32)[indices])
