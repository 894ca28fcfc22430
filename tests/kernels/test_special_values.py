"""NaN and infinities pass through, extreme finite values stay finite, and NumPy never warns (a warning is an error)."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from mila.errors import ConfigurationError
from mila.kernels.cpu.table import CpuKernels
from mila.kernels.cpu.widening import widen_float8
from mila.kernels.signatures import ActivationFunction, Array
from tests.kernels.references import ACTIVATIONS, activation, activation_derivative, function_of

KERNELS = CpuKernels(2)
both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def compute(function: ActivationFunction, values: list[float], dtype: str) -> tuple[Array, Array]:
    x = np.array(values, dtype)
    y, slope = np.empty_like(x), np.empty_like(x)
    workspace = np.empty(KERNELS.activation_forward_workspace(1, x.size), dtype)
    KERNELS.activation_forward(y, slope, x, function, workspace)
    return y, slope


def activate(kind: str, values: list[float], dtype: str) -> tuple[Array, Array]:
    return compute(function_of(kind), values, dtype)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@both_dtypes
def test_activations_are_finite_wherever_their_values_are(kind: str, dtype: str) -> None:
    largest = float(np.finfo(dtype).max)
    values = [-largest, -1e30, -1e4, -100.0, -50.0, -0.0, 0.0, 50.0, 100.0, 1e4, 1e30, largest]
    y, slope = activate(kind, values, dtype)
    assert np.isfinite(y).all()
    assert np.isfinite(slope).all()
    linear = {"none": 1.0, "tanh": 0.0, "sigmoid": 0.0}.get(kind, 1.0)
    np.testing.assert_array_equal(slope[-4:], linear)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@both_dtypes
def test_activations_keep_nan_and_infinity(kind: str, dtype: str) -> None:
    y, slope = activate(kind, [math.nan, math.inf, 1.0], dtype)
    assert np.isnan(y[0])
    assert y[1] == (1.0 if kind in ("tanh", "sigmoid") else math.inf)
    assert np.isfinite(y[2])
    assert np.isnan(slope[0]) or slope[0] == {"none": 1.0, "relu": 1.0, "leaky_relu": y.dtype.type(0.1)}[kind]


@pytest.mark.parametrize("kind", ["gelu", "silu", "quick_gelu", "sigmoid", "mish", "elu", "softplus"])
@pytest.mark.parametrize(("dtype", "relative"), [("float32", 6e-6), ("float64", 2e-14)])
def test_activations_are_accurate_in_their_tails(kind: str, dtype: str, relative: float) -> None:
    x = np.linspace(-12, 12, 241)
    y, _ = activate(kind, x.tolist(), dtype)
    expected = activation(function_of(kind), x.astype(dtype).astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=relative, atol=1e-37)


@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "elu", "hardswish", "softplus"])
@both_dtypes
def test_derivatives_at_a_bend_are_those_of_the_formula(kind: str, dtype: str) -> None:
    x = [-3.0, np.nextafter(-3, 0), -1e-300, -0.0, 0.0, 1e-300, 1.5, np.nextafter(1.5, 2), np.nextafter(3, 0), 3.0]
    values = np.array(x, dtype)
    y, slope = activate(kind, x, dtype)
    function, wide = function_of(kind), values.astype(np.float64)
    tolerance = 4 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(y, activation(function, wide), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(slope, activation_derivative(function, wide), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("beta", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("threshold", [-1.0, 0.0, 20.0, 1e30])
@both_dtypes
def test_softplus_neither_overflows_nor_warns_with_any_options(beta: float, threshold: float, dtype: str) -> None:
    largest = float(np.finfo(dtype).max)
    x = [-math.inf, -largest, -300.0, -1.0, 0.0, 1.0, 300.0, largest, math.inf]
    function = ActivationFunction("softplus", softplus_beta=beta, softplus_threshold=threshold)
    y, slope = compute(function, x, dtype)
    with np.errstate(over="ignore"):
        values = np.array(x, dtype).astype(np.float64)
        expected, derivative = activation(function, values), activation_derivative(function, values)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(slope, derivative, rtol=1e-5, atol=1e-37)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="got 'swish'"):
        activate("swish", [1.0], "float32")


@both_dtypes
def test_softmax_of_extreme_rows(dtype: str) -> None:
    rows = [[1e30, 1e30, -1e30], [-math.inf, 0.0, 0.0], [-math.inf] * 3, [math.nan, 0.0, 1.0], [math.inf, 0.0, 0.0]]
    x = np.array(rows, dtype)
    y = np.empty_like(x)
    KERNELS.softmax_forward(y, x, -1, np.empty(KERNELS.softmax_workspace(x.shape, -1), dtype))
    np.testing.assert_array_equal(y[0], [0.5, 0.5, 0.0])
    np.testing.assert_array_equal(y[1], [0.0, 0.5, 0.5])
    assert np.isnan(y[2:]).any(axis=1).all()


@both_dtypes
def test_norms_keep_nan_in_its_row(dtype: str) -> None:
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(dtype)
    x[1, 2] = math.nan
    ones, y, mean, rstd = np.ones(8, dtype), np.empty_like(x), np.empty(3, dtype), np.empty(3, dtype)
    KERNELS.layer_norm_forward(y, mean, rstd, x, ones, None, 1e-5)
    np.testing.assert_array_equal(np.isnan(y).all(axis=1), [False, True, False])
    np.testing.assert_array_equal(np.isnan(y).any(axis=1), [False, True, False])
    KERNELS.rms_norm_forward(y, rstd, x, ones, None, 1e-5, 0.0, np.empty(8, dtype))
    np.testing.assert_array_equal(np.isnan(y).any(axis=1), [False, True, False])


@both_dtypes
def test_norms_of_heads_keep_nan_in_its_head(dtype: str) -> None:
    x = np.random.default_rng(1).standard_normal((2, 5 * 4)).astype(dtype)
    x[1, 4 + 2] = math.nan
    ones, y, rstd, workspace = np.ones(4, dtype), np.empty_like(x), np.empty((2, 4), dtype), np.empty(3 * 16, dtype)
    KERNELS.head_norm_forward(y, None, rstd, x, ones, ones, 3, 1, 1e-5, workspace)
    is_nan = np.isnan(y).reshape(2, 5, 4)
    np.testing.assert_array_equal(is_nan.all(axis=2), is_nan.any(axis=2))
    np.testing.assert_array_equal(np.argwhere(is_nan.any(axis=2)), [[1, 1]])


@both_dtypes
def test_cross_entropy_of_extreme_logits(dtype: str) -> None:
    logits = np.array([[1e4, 0.0, -1e4], [-math.inf, 0.0, 0.0], [math.nan, 0.0, 0.0]], dtype)
    loss, sums = np.empty(1, dtype), np.empty(3, dtype)
    workspace = np.empty(KERNELS.cross_entropy_forward_workspace(3, 3), dtype)
    targets = np.array([1, 2, -1], np.int32)
    KERNELS.cross_entropy_forward(loss, sums, logits, targets, -1, workspace)
    assert loss[0] == pytest.approx((1e4 + math.log(2)) / 2, rel=1e-6)
    KERNELS.cross_entropy_backward(logits, sums, np.ones(1, dtype), logits, targets, -1)
    np.testing.assert_allclose(logits, [[0.5, -0.5, 0.0], [0.0, 0.25, -0.25], [0.0, 0.0, 0.0]], rtol=1e-6)


@both_dtypes
def test_cross_entropy_without_valid_targets_is_zero(dtype: str) -> None:
    logits, targets = np.ones((2, 3), dtype), np.full(2, -100, np.int64)
    loss, sums = np.empty(1, dtype), np.empty(2, dtype)
    workspace = np.empty(KERNELS.cross_entropy_forward_workspace(2, 3), dtype)
    KERNELS.cross_entropy_forward(loss, sums, logits, targets, -100, workspace)
    KERNELS.cross_entropy_backward(logits, sums, np.ones(1, dtype), logits, targets, -100)
    assert loss[0] == 0
    np.testing.assert_array_equal(logits, 0)


def test_cross_entropy_of_a_vocabulary_beyond_one_tile() -> None:
    logits = np.random.default_rng(3).standard_normal((2, 200_000)).astype(np.float32)
    loss, sums = np.empty(1, np.float32), np.empty(2, np.float32)
    workspace = np.full(KERNELS.cross_entropy_forward_workspace(2, 200_000), np.nan, np.float32)
    KERNELS.cross_entropy_forward(loss, sums, logits, np.array([5, 199_999]), None, workspace)
    expected = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
    np.testing.assert_allclose(sums, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3e30, 4e30], 5e30),
        ([3e-30, 4e-30], 5e-30),
        ([0.0, 0.0], 0.0),
        ([], 0.0),
        ([1.0, math.inf], math.inf),
        ([1.0, -math.inf], math.inf),
        ([math.inf, math.nan], math.nan),
    ],
)
def test_the_norm_neither_overflows_nor_hides(values: list[float], expected: float) -> None:
    norm = KERNELS.global_norm(np.array(values, np.float32))
    assert norm == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_the_norm_of_the_largest_float64_values_is_finite() -> None:
    assert math.isfinite(KERNELS.global_norm(np.full(10, np.finfo(np.float64).max)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 40_000, 700_000, 999_999])
def test_the_first_non_finite_element_is_found(value: float, position: int) -> None:
    x = np.ones(1_000_000, np.float32)
    x[position] = value
    x[-1] = value
    assert KERNELS.first_non_finite(x) == position


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_range_of_integers_is_not_narrowed(dtype: type[np.signedinteger]) -> None:
    information = np.iinfo(dtype)
    ids = np.array([[5, information.max], [information.min, 0]], dtype)
    assert KERNELS.integer_range(ids) == (information.min, information.max)
    assert KERNELS.integer_range(ids[:0]) == (0, -1)


@both_dtypes
def test_every_byte_of_float8_widens_exactly(dtype: str) -> None:
    stored = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    output = np.empty(256, dtype)
    widen_float8(output, stored)
    np.testing.assert_array_equal(output, stored.astype(dtype))
