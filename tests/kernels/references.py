"""The formulas of the kernels in plain NumPy and float64, written for clarity alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from mila.kernels.signatures import ActivationFunction, Array

ACTIVATIONS = (
    "none",
    "relu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "tanh",
    "sigmoid",
    "leaky_relu",
    "mish",
    "elu",
    "hardswish",
    "softplus",
)
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    """Logistic function without overflow."""
    small = np.exp(-np.abs(x))
    ratio: Array = np.where(x > 0, 1, small) / (1 + small)
    return ratio


def function_of(kind: str) -> ActivationFunction:
    """A function with unusual options; ``beta * x`` is exact, so that all dtypes agree on where it is linear."""
    return ActivationFunction(kind, leaky_relu_slope=0.1, elu_alpha=0.7, softplus_beta=2.0, softplus_threshold=3.0)


def activation(function: ActivationFunction, x: Array) -> Array:
    """``f(x)`` by the textbook formula."""
    beta = function.softplus_beta
    formulas: dict[str, Callable[[], Array]] = {
        "none": x.copy,
        "relu": lambda: np.maximum(x, 0),
        "gelu": lambda: x * 0.5 * _erfc(-x / math.sqrt(2)),
        "gelu_tanh": lambda: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "quick_gelu": lambda: x * sigmoid(1.702 * x),
        "silu": lambda: x * sigmoid(x),
        "tanh": lambda: np.tanh(x),
        "sigmoid": lambda: sigmoid(x),
        "leaky_relu": lambda: np.where(x > 0, x, function.leaky_relu_slope * x),
        "mish": lambda: x * np.tanh(np.logaddexp(0, x)),
        "elu": lambda: np.where(x > 0, x, function.elu_alpha * np.expm1(np.minimum(x, 0))),
        "hardswish": lambda: x * np.clip(x + 3, 0, 6) / 6,
        "softplus": lambda: np.where(beta * x > function.softplus_threshold, x, np.logaddexp(0, beta * x) / beta),
    }
    return formulas[function.kind]()


def _gelu_tanh_derivative(x: Array) -> Array:
    t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    derivative: Array = 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * slope
    return derivative


def activation_derivative(function: ActivationFunction, x: Array) -> Array:
    """``f'(x)`` by the textbook formula; at the kink of a rectifier the derivative from the left."""
    beta = function.softplus_beta
    s, quick, t = sigmoid(x), sigmoid(1.702 * x), np.tanh(np.logaddexp(0, x))
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    formulas: dict[str, Callable[[], Array]] = {
        "none": lambda: np.ones_like(x),
        "relu": lambda: (x > 0).astype(np.float64),
        "gelu": lambda: 0.5 * (1 + _erf(x / math.sqrt(2))) + x * density,
        "gelu_tanh": lambda: _gelu_tanh_derivative(x),
        "quick_gelu": lambda: quick + 1.702 * x * quick * (1 - quick),
        "silu": lambda: s + x * s * (1 - s),
        "tanh": lambda: 1 - np.tanh(x) ** 2,
        "sigmoid": lambda: s * (1 - s),
        "leaky_relu": lambda: np.where(x > 0, 1.0, function.leaky_relu_slope),
        "mish": lambda: t + x * (1 - t * t) * s,
        "elu": lambda: np.where(x > 0, 1.0, function.elu_alpha * np.exp(np.minimum(x, 0))),
        "hardswish": lambda: np.select([x <= -3, x < 3], [0.0, x / 3 + 0.5], 1.0),
        "softplus": lambda: np.where(beta * x > function.softplus_threshold, 1.0, sigmoid(beta * x)),
    }
    return formulas[function.kind]()


def softmax(x: Array, axis: int) -> Array:
    """Softmax along ``axis``."""
    shifted = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    probabilities: Array = shifted / shifted.sum(axis=axis, keepdims=True)
    return probabilities


def log_sum_exp(x: Array) -> Array:
    """Logarithm of the sum of exponentials of every row."""
    largest = x.max(axis=1)
    logarithm: Array = np.log(np.exp(x - largest[:, None]).sum(axis=1)) + largest
    return logarithm


@functools.cache
def keep_mask(size: int, probability: float, key: int) -> Array:
    """The dropout mask, element by element in Python integers."""
    modulus, kept = 1 << 64, []
    for i in range(size):
        z = (key + (i + 1) * 0x9E3779B97F4A7C15) % modulus
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % modulus
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % modulus
        kept.append((z ^ (z >> 31)) >> 32 >= round(probability * 2**32))
    return np.array(kept, bool)
