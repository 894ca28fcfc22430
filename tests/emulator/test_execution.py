"""Correct kernels give NumPy's results in every order, and the checks have nothing to say about them."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from tests.emulator.device_array import DeviceArray
from tests.emulator.kernel_files import module, needs_emulator
from tests.emulator.module import RUNS, Run

pytestmark = [needs_emulator, pytest.mark.parametrize("run", RUNS, ids=str)]


def drawn(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("count", [1, 37, 1000])
def test_vector_add(run: Run, count: int) -> None:
    a, b = drawn(count), drawn(count, seed=1)
    result = DeviceArray((count,), np.float32)
    arguments = [DeviceArray.from_host(a), DeviceArray.from_host(b), result, np.int32(count)]
    kernel = module("vector_add.cu", run.mode).kernel("vector_add")
    kernel.launch([-(-count // 64)], [64], arguments, order=run.order)
    assert_array_equal(result.to_host(), a + b)


@pytest.mark.parametrize(
    ("dtype", "element", "tolerance"), [(np.float32, "float", 2e-6), (ml_dtypes.bfloat16, "__nv_bfloat16", 2e-2)]
)
@pytest.mark.parametrize(("rows", "columns"), [(3, 1), (2, 96), (2, 771)])
def test_layer_norm(run: Run, dtype: Any, element: str, tolerance: float, rows: int, columns: int) -> None:
    x, weight, bias = drawn(rows, columns).astype(dtype), drawn(columns, seed=1), drawn(columns, seed=2)
    y, mean, rstd = DeviceArray(x.shape, dtype), DeviceArray((rows,), np.float32), DeviceArray((rows,), np.float32)
    inputs = [DeviceArray.from_host(values) for values in (x, weight, bias)]
    kernel = module("layer_norm.cu", run.mode).kernel(f"layer_norm<{element}>")
    arguments = [y, mean, rstd, *inputs, np.int32(columns), np.float32(1e-5)]
    kernel.launch([rows], [128], arguments, shared_memory=4 * 4, order=run.order)

    exact = x.astype(np.float64)
    center, variance = exact.mean(1, keepdims=True), exact.var(1, keepdims=True)
    expected = (exact - center) / np.sqrt(variance + 1e-5) * weight + bias
    assert_allclose(y.to_host().astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    assert_allclose(mean.to_host(), center[:, 0], rtol=1e-5, atol=1e-6)
    assert_allclose(rstd.to_host(), 1 / np.sqrt(variance[:, 0] + 1e-5), rtol=1e-5)


def test_histogram(run: Run) -> None:
    values = np.random.default_rng(0).integers(0, 50, 999).astype(np.int32)
    counts = DeviceArray.from_host(np.zeros(50, np.uint32))
    kernel = module("histogram.cu", run.mode).kernel("histogram")
    kernel.launch(
        [3], [96], [counts, DeviceArray.from_host(values), np.int32(values.size), np.int32(50)], order=run.order
    )
    assert_array_equal(counts.to_host(), np.bincount(values, minlength=50))


@pytest.mark.parametrize(("M", "N", "K"), [(1, 1, 1), (16, 32, 48), (17, 19, 23)])
def test_matmul(run: Run, M: int, N: int, K: int) -> None:
    a, b, product = drawn(M, K), drawn(K, N, seed=1), DeviceArray((M, N), np.float32)
    arguments = [product, DeviceArray.from_host(a), DeviceArray.from_host(b), *map(np.int32, (M, N, K))]
    kernel = module("matmul.cu", run.mode).kernel("matmul")
    kernel.launch([-(-N // 16), -(-M // 16)], [16, 16], arguments, order=run.order)
    assert_allclose(product.to_host(), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


def test_gelu_of_bfloat16_pairs(run: Run) -> None:
    x = drawn(514).astype(ml_dtypes.bfloat16)
    y = DeviceArray(x.shape, x.dtype)
    module("gelu.cu", run.mode).kernel("gelu").launch(
        [3], [96], [y, DeviceArray.from_host(x), np.int32(257)], order=run.order
    )
    exact = x.astype(np.float64)
    expected = 0.5 * exact * (1 + np.tanh(0.79788456 * (exact + 0.044715 * exact**3)))
    assert_allclose(y.to_host().astype(np.float64), expected, rtol=2**-8, atol=1e-6)


def test_tensor_core_product(run: Run) -> None:
    a, b = (drawn(*shape).astype(ml_dtypes.bfloat16) for shape in ((32, 48), (24, 48)))
    product = DeviceArray((32, 24), np.float32)
    arguments = [product, DeviceArray.from_host(a), DeviceArray.from_host(b), np.int32(24), np.int32(48)]
    module("matrix_units.cu", run.mode).kernel("multiply").launch([2, 3], [32], arguments, order=run.order)
    assert_allclose(product.to_host(), a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-5, atol=1e-5)


def test_integer_functions(run: Run) -> None:
    out = DeviceArray((19,), np.int32)
    module("intrinsics.cu", run.mode).kernel("integers").launch([1], [1], [out], order=run.order)
    expected = [8, 31, 32, 4, 2, 3, 1, 1, 1, 1, 2, -2, -3, 3, 2**31 - 1, 0, 0, 0x3F800000, 7]
    assert out.to_host().tolist() == expected


def test_number_functions(run: Run) -> None:
    out = DeviceArray((10,), np.float32)
    module("intrinsics.cu", run.mode).kernel("numbers").launch([1], [1], [out], order=run.order)
    rounded = [float(kind(0.1)) for kind in (np.float16, ml_dtypes.bfloat16)]
    assert_array_equal(out.to_host(), np.array([0.5, 0.125, 1, 10, 1, np.pi, 1, 3, *rounded], np.float32))


def test_bfloat16_functions(run: Run) -> None:
    out, x = DeviceArray((13,), np.float32), np.array([1.5, -2.25, 0.375, 3], ml_dtypes.bfloat16)
    kernel = module("formats.cu", run.mode).kernel("bfloat16_numbers")
    kernel.launch([1], [1], [out, DeviceArray.from_host(x)], order=run.order)
    (a, b), (c, d) = (1.5, -2.25), (0.375, 3)
    expected = [a, d, a * d, a * c + b, b * d + b, a + c, np.float32(0.5625) + a, a, b, 1, b, a, a]
    rounded = np.array(expected).astype(ml_dtypes.bfloat16)
    assert_array_equal(out.to_host(), rounded.astype(np.float32))


def test_half_functions(run: Run) -> None:
    out, x = DeviceArray((5,), np.float32), np.array([1.001, 3.7, -3.69], np.float16)
    kernel = module("formats.cu", run.mode).kernel("half_numbers")
    kernel.launch([1], [1], [out, DeviceArray.from_host(x)], order=run.order)
    fused = np.float16(float(x[0]) * float(x[1]) + float(x[2]))
    expected = [x[0] + x[1], x[0] * x[1], fused, x[1], float(ml_dtypes.float8_e4m3fn(1.1))]
    assert_array_equal(out.to_host(), np.array(expected, np.float32))


def test_mathematics(run: Run) -> None:
    out = DeviceArray((7,), np.float32)
    module("formats.cu", run.mode).kernel("mathematics").launch([1], [1], [out, np.float32(1)], order=run.order)
    assert_allclose(out.to_host(), [7, math.erf(1), 2 + 2 + 1 + 2 - 1 + 8, 1, math.sin(1), math.cos(1), 1], rtol=1e-6)


def test_vectors(run: Run) -> None:
    x, out = drawn(4, 4), DeviceArray((8, 4), np.float32)
    kernel = module("formats.cu", run.mode).kernel("vectors")
    kernel.launch([1], [4], [out, DeviceArray.from_host(x)], order=run.order)
    assert_array_equal(out.to_host()[:4], x + np.array([1, 0, 0, 0], np.float32))
    assert_array_equal(out.to_host()[4:, 3], x[:, 3])


def test_warp_operations(run: Run) -> None:
    out = DeviceArray((9, 32), np.int32)
    module("intrinsics.cu", run.mode).kernel("warp_operations").launch([1], [32], [out], order=run.order)
    lane = np.arange(32)
    ballot = sum(1 << i for i in range(0, 32, 3))
    expected = [
        np.full(32, 3),
        lane // 8 * 8 + 1,
        np.where(lane < 2, lane, lane - 2),
        np.where(lane % 16 < 14, lane + 2, lane),
        lane ^ 5,
        np.full(32, ballot - 2**32 if ballot >= 2**31 else ballot),
        np.full(32, 1),
        np.full(32, lane.sum()),
        np.full(32, -5),
    ]
    assert_array_equal(out.to_host(), expected)


def test_atomics(run: Run) -> None:
    out = DeviceArray.from_host(np.array([0, 0, -1, 99, 0, 0xFF, 0, 0, 0, 0], np.int32))
    module("intrinsics.cu", run.mode).kernel("atomics").launch([1], [64], [out], order=run.order)
    assert out.to_host().tolist() == [128, -64, 63, -7, 0xFF, 0, 0, 9, 5, 64 % 5]


@pytest.mark.parametrize(
    ("name", "grid", "block", "expected"),
    [
        ("half_warps", 1, 64, lambda x, t: x[t ^ 15]),
        ("partial_warp", 1, 50, lambda x, t: np.where(t % 32, x[t - 1], 0)),
        ("counted_barriers", 1, 64, lambda x, t: np.full(64, 32 + 1000 + 4000)),
        ("shared_types", 1, 64, lambda x, t: 6.0 * (63 - t)),
        ("local_array", 1, 64, lambda x, t: 8 * x[t] + 28),
        ("constant_table", 1, 64, lambda x, t: 2.0 ** (t % 4)),
        ("atomics_between_blocks", 3, 64, None),
        ("small_elements", 1, 64, None),
    ],
)
def test_what_looks_like_a_bug_and_is_none(run: Run, name: str, grid: int, block: int, expected: Any) -> None:
    x, y = drawn(64), DeviceArray.from_host(np.zeros(192, np.float32))
    kernel = module("correct.cu", run.mode).kernel(name)
    kernel.launch([grid], [block], [y, DeviceArray.from_host(x), np.int32(64)], 64 * 16, order=run.order)
    if expected is not None:
        assert_allclose(y.to_host()[:block], expected(x, np.arange(block)), rtol=1e-5)
