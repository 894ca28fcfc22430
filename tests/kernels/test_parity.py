"""The CPU kernels agree with PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Array
from tests.kernels.references import function_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity
KERNELS = CpuKernels(2)
TOLERANCE = {"float32": 3e-6, "float64": 1e-14}
both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])
random = np.random.default_rng(11)


def array(dtype: str, *shape: int) -> Array:
    return random.standard_normal(shape).astype(dtype)


def leaf(x: Array) -> Any:
    return torch.from_numpy(x.copy()).requires_grad_()


def assert_close(x: Array, expected: Any, dtype: str) -> None:
    values = expected.detach().numpy()
    np.testing.assert_allclose(x, values, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * max(1, np.abs(values).max()))


FUNCTIONS = {
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 0.1),
    "mish": torch.nn.functional.mish,
    "elu": lambda x: torch.nn.functional.elu(x, 0.7),
    "hardswish": torch.nn.functional.hardswish,
    "softplus": lambda x: torch.nn.functional.softplus(x, 2.0, 3.0),
}


@both_dtypes
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_activations(kind: str, dtype: str) -> None:
    x = 3 * array(dtype, 33, 65)
    y, slope = np.empty_like(x), np.empty_like(x)
    workspace = np.empty(KERNELS.activation_forward_workspace(*x.shape), dtype)
    KERNELS.activation_forward(y, slope, x, function_of(kind), workspace)
    variable = leaf(x)
    expected = FUNCTIONS[kind](variable)
    expected.sum().backward()
    assert_close(y, expected, dtype)
    assert_close(slope, variable.grad, dtype)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_activations_of_values_that_are_not_finite(kind: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    y = np.empty_like(x)
    workspace = np.empty(KERNELS.activation_forward_workspace(1, 3), np.float32)
    KERNELS.activation_forward(y, None, x, function_of(kind), workspace)
    expected = FUNCTIONS[kind](torch.from_numpy(x)).numpy()
    if kind == "gelu":
        expected[1] = np.inf  # PyTorch says so, or NaN, by the kind of processor
    np.testing.assert_array_equal(y, expected)


@both_dtypes
def test_layer_norm(dtype: str) -> None:
    x, weight, bias, dy = array(dtype, 65, 96), array(dtype, 96), array(dtype, 96), array(dtype, 65, 96)
    y, mean, rstd = np.empty_like(x), np.empty(65, dtype), np.empty(65, dtype)
    KERNELS.layer_norm_forward(y, mean, rstd, x, weight, bias, 1e-5)
    dx, dweight, dbias = np.empty_like(x), np.empty_like(weight), np.empty_like(bias)
    workspace = np.empty(KERNELS.layer_norm_backward_workspace(65, 96), dtype)
    KERNELS.layer_norm_backward(dx, dweight, dbias, mean, rstd, dy, x, weight, False, workspace)
    variables = leaf(x), leaf(weight), leaf(bias)
    expected = torch.nn.functional.layer_norm(variables[0], (96,), variables[1], variables[2], 1e-5)
    expected.backward(torch.from_numpy(dy))
    assert_close(y, expected, dtype)
    for gradient, variable in zip((dx, dweight, dbias), variables, strict=True):
        assert_close(gradient, variable.grad, dtype)


@both_dtypes
def test_rms_norm(dtype: str) -> None:
    x, weight, dy = array(dtype, 65, 96), array(dtype, 96), array(dtype, 65, 96)
    y, rstd = np.empty_like(x), np.empty(65, dtype)
    KERNELS.rms_norm_forward(y, rstd, x, weight, None, 1e-6, 0.0, np.empty(96, dtype))
    dx, dweight = np.empty_like(x), np.empty_like(weight)
    workspace = np.empty(KERNELS.rms_norm_backward_workspace(65, 96), dtype)
    KERNELS.rms_norm_backward(dx, dweight, None, rstd, dy, x, weight, 0.0, False, workspace)
    variables = leaf(x), leaf(weight)
    expected = torch.nn.functional.rms_norm(variables[0], (96,), variables[1], 1e-6)
    expected.backward(torch.from_numpy(dy))
    assert_close(y, expected, dtype)
    assert_close(dx, variables[0].grad, dtype)
    assert_close(dweight, variables[1].grad, dtype)


@both_dtypes
@pytest.mark.parametrize("ignore_index", [-100, 3])
def test_cross_entropy(dtype: str, ignore_index: int) -> None:
    logits, targets = array(dtype, 40, 101), random.integers(0, 101, 40)
    targets[::5] = ignore_index
    loss, sums, dlogits = np.empty(1, dtype), np.empty(40, dtype), np.empty_like(logits)
    workspace = np.empty(KERNELS.cross_entropy_forward_workspace(40, 101), dtype)
    KERNELS.cross_entropy_forward(loss, sums, logits, targets, ignore_index, workspace)
    KERNELS.cross_entropy_backward(dlogits, sums, np.ones(1, dtype), logits, targets, ignore_index)
    variable = leaf(logits)
    expected = torch.nn.functional.cross_entropy(variable, torch.from_numpy(targets), ignore_index=ignore_index)
    expected.backward()
    assert_close(loss, expected.reshape(1), dtype)
    assert_close(dlogits, variable.grad, dtype)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_ten_steps_of_adamw(weight_decay: float) -> None:
    p = array("float64", 1000)
    m, v, workspace = np.zeros(1000), np.zeros(1000), np.empty(KERNELS.adamw_workspace(1000, np.dtype(np.float64)))
    variable = leaf(p)
    optimizer = torch.optim.AdamW([variable], lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay)
    for step in range(1, 11):
        g = array("float64", 1000)
        KERNELS.adamw(p, m, v, 2 * g, 3e-3, 0.9, 0.95, 1e-8, weight_decay, step, 0.5, workspace)
        variable.grad = torch.from_numpy(g)
        optimizer.step()
    np.testing.assert_allclose(p, variable.detach().numpy(), rtol=0, atol=1e-12)
