"""Backward kernels are the derivatives of the forward kernels, by central differences in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Array
from tests.kernels.references import ACTIVATIONS, function_of

KERNELS = CpuKernels(2)
STEP = 1e-5
ROWS, COLUMNS = 5, 7


def random(*shape: int) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape)


def numeric_gradient(function: Callable[[], Array], x: Array, dy: Array) -> Array:
    """Gradient of ``sum(dy * function())`` with respect to ``x``, which the function reads."""
    gradient = np.empty_like(x)
    for index in np.ndindex(*x.shape):
        kept = x[index]
        x[index] = kept + STEP
        above = float((dy * function()).sum())
        x[index] = kept - STEP
        gradient[index] = (above - float((dy * function()).sum())) / (2 * STEP)
        x[index] = kept
    return gradient


def assert_gradient(gradient: Array, function: Callable[[], Array], x: Array, dy: Array) -> None:
    np.testing.assert_allclose(gradient, numeric_gradient(function, x, dy), rtol=2e-8, atol=2e-9)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation(kind: str) -> None:
    x, dy, slope = random(ROWS, COLUMNS), random(ROWS, COLUMNS), np.empty((ROWS, COLUMNS))
    function, workspace = function_of(kind), np.empty(KERNELS.activation_forward_workspace(ROWS, COLUMNS))

    def forward() -> Array:
        y = np.empty_like(x)
        KERNELS.activation_forward(y, None, x, function, workspace)
        return y

    y, dx = np.empty_like(x), np.empty_like(x)
    KERNELS.activation_forward(y, slope, x, function, workspace)
    KERNELS.activation_backward(dx, dy, slope)
    np.testing.assert_allclose(y, forward(), rtol=1e-15, atol=1e-15)
    assert_gradient(dx, forward, x, dy)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_gated_activation(kind: str) -> None:
    x, dy, function = random(ROWS, 2 * COLUMNS), random(ROWS, COLUMNS), function_of(kind)
    workspace = np.empty(KERNELS.gated_backward_workspace(ROWS, COLUMNS))

    def forward() -> Array:
        y = np.empty((ROWS, COLUMNS))
        KERNELS.gated_forward(y, x, function, workspace)
        return y

    dx = np.empty_like(x)
    KERNELS.gated_backward(dx, dy, x, function, workspace)
    assert_gradient(dx, forward, x, dy)


def test_layer_norm() -> None:
    x, dy, weight, bias = random(ROWS, COLUMNS), random(ROWS, COLUMNS + 0), random(COLUMNS), random(COLUMNS)
    mean, rstd = np.empty(ROWS), np.empty(ROWS)

    def forward() -> Array:
        y = np.empty_like(x)
        KERNELS.layer_norm_forward(y, mean, rstd, x, weight, bias, 1e-5)
        return y

    forward()
    dx, dweight, dbias = np.empty_like(x), np.empty(COLUMNS), np.empty(COLUMNS)
    workspace = np.empty(KERNELS.layer_norm_backward_workspace(ROWS, COLUMNS))
    KERNELS.layer_norm_backward(dx, dweight, dbias, mean.copy(), rstd.copy(), dy, x, weight, False, workspace)
    for gradient, variable in ((dx, x), (dweight, weight), (dbias, bias)):
        assert_gradient(gradient, forward, variable, dy)


@pytest.mark.parametrize("unit_offset", [0.0, 1.0])
def test_rms_norm(unit_offset: float) -> None:
    x, dy, weight, bias = random(ROWS, COLUMNS), random(COLUMNS, ROWS).T.copy(), random(COLUMNS), random(COLUMNS)
    rstd, row = np.empty(ROWS), np.empty(COLUMNS)

    def forward() -> Array:
        y = np.empty_like(x)
        KERNELS.rms_norm_forward(y, rstd, x, weight, bias, 1e-5, unit_offset, row)
        return y

    forward()
    dx, dweight, dbias = np.empty_like(x), np.empty(COLUMNS), np.empty(COLUMNS)
    workspace = np.empty(KERNELS.rms_norm_backward_workspace(ROWS, COLUMNS))
    KERNELS.rms_norm_backward(dx, dweight, dbias, rstd.copy(), dy, x, weight, unit_offset, False, workspace)
    for gradient, variable in ((dx, x), (dweight, weight), (dbias, bias)):
        assert_gradient(gradient, forward, variable, dy)


def test_head_norm() -> None:
    heads, kv_heads = 3, 2
    x, dy = random(ROWS, 7 * COLUMNS), random(7 * COLUMNS, ROWS).T.copy()
    weights = random(COLUMNS), random(1, COLUMNS)[0]
    normal, rstd = np.empty((ROWS, 5 * COLUMNS)), np.empty((ROWS, 5))
    workspace = np.empty(KERNELS.head_norm_backward_workspace(ROWS, heads, kv_heads, COLUMNS))

    def forward() -> Array:
        y = np.empty_like(x)
        KERNELS.head_norm_forward(y, normal, rstd, x, *weights, heads, kv_heads, 1e-5, workspace)
        return y

    forward()
    dx, dquery, dkey = np.empty_like(x), np.empty(COLUMNS), np.empty(COLUMNS)
    saved = normal.copy(), rstd.copy()
    KERNELS.head_norm_backward(dx, dquery, dkey, *saved, dy, *weights, heads, kv_heads, False, workspace)
    for gradient, variable in ((dx, x), (dquery, weights[0]), (dkey, weights[1])):
        assert_gradient(gradient, forward, variable, dy)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax(axis: int) -> None:
    x, dy = random(3, 4, 5), random(5, 4, 3).T.copy()
    workspace = np.empty(KERNELS.softmax_workspace(x.shape, axis))

    def forward() -> Array:
        y = np.empty_like(x)
        KERNELS.softmax_forward(y, x, axis, workspace)
        return y

    dx = np.empty_like(x)
    KERNELS.softmax_backward(dx, dy, forward(), axis, workspace)
    assert_gradient(dx, forward, x, dy)


@pytest.mark.parametrize("ignore_index", [None, 2])
def test_cross_entropy(ignore_index: int | None) -> None:
    logits, targets, dloss = random(ROWS, COLUMNS), np.array([0, 2, 6, 3, 2], np.int32), np.array([1.7])
    sums, workspace = np.empty(ROWS), np.empty(KERNELS.cross_entropy_forward_workspace(ROWS, COLUMNS))

    def forward() -> Array:
        loss = np.empty(1)
        KERNELS.cross_entropy_forward(loss, sums, logits, targets, ignore_index, workspace)
        return loss

    forward()
    dlogits = np.empty_like(logits)
    KERNELS.cross_entropy_backward(dlogits, sums.copy(), dloss, logits, targets, ignore_index)
    assert_gradient(dlogits, forward, logits, dloss)


def test_linear() -> None:
    x, weight, bias, dy = random(ROWS, COLUMNS), random(3, COLUMNS), random(3), random(ROWS, 3)

    def forward() -> Array:
        y = np.empty((ROWS, 3))
        KERNELS.linear_forward(y, x, weight, bias)
        return y

    dx, dweight, dbias = np.empty_like(x), np.empty_like(weight), np.empty_like(bias)
    workspace = np.empty(KERNELS.linear_backward_weight_workspace(ROWS, 3, COLUMNS))
    KERNELS.linear_backward_input(dx, dy, weight)
    KERNELS.linear_backward_weight(dweight, dy, x, False, workspace)
    KERNELS.linear_backward_bias(dbias, dy, False, workspace)
    for gradient, variable in ((dx, x), (dweight, weight), (dbias, bias)):
        assert_gradient(gradient, forward, variable, dy)
