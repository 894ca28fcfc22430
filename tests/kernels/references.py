"""The formulas of the kernels in plain NumPy and float64, written for clarity alone."""

from __future__ import annotations

import math

import numpy as np

from mila.kernels.signatures import Array

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
)
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    """Logistic function without overflow."""
    return np.where(x > 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def activation(kind: str, x: Array, alpha: float) -> Array:
    """``f(x)`` by the textbook formula."""
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "gelu":
        return x * 0.5 * _erfc(-x / math.sqrt(2))
    if kind == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if kind == "quick_gelu":
        return x * sigmoid(1.702 * x)
    if kind == "silu":
        return x * sigmoid(x)
    if kind == "tanh":
        return np.tanh(x)
    if kind == "sigmoid":
        return sigmoid(x)
    if kind == "leaky_relu":
        return np.where(x > 0, x, alpha * x)
    if kind == "mish":
        return x * np.tanh(np.logaddexp(0, x))
    return x.copy()


def activation_derivative(kind: str, x: Array, alpha: float) -> Array:
    """``f'(x)`` by the textbook formula; at a kink the derivative from the left."""
    if kind == "relu":
        return (x > 0).astype(np.float64)
    if kind == "gelu":
        return 0.5 * (1 + _erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    if kind == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
        return 0.5 * (1 + np.tanh(inner)) + 0.5 * x * (1 - np.tanh(inner) ** 2) * slope
    if kind == "quick_gelu":
        s = sigmoid(1.702 * x)
        return s + 1.702 * x * s * (1 - s)
    if kind == "silu":
        s = sigmoid(x)
        return s + x * s * (1 - s)
    if kind == "tanh":
        return 1 - np.tanh(x) ** 2
    if kind == "sigmoid":
        return sigmoid(x) * (1 - sigmoid(x))
    if kind == "leaky_relu":
        return np.where(x > 0, 1.0, alpha)
    if kind == "mish":
        t = np.tanh(np.logaddexp(0, x))
        return t + x * (1 - t * t) * sigmoid(x)
    return np.ones_like(x)


def softmax(x: Array, axis: int) -> Array:
    """Softmax along ``axis``."""
    shifted = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def log_sum_exp(x: Array) -> Array:
    """Logarithm of the sum of exponentials of every row."""
    largest = x.max(axis=1)
    return np.log(np.exp(x - largest[:, None]).sum(axis=1)) + largest


def keep_mask(size: int, probability: float, key: int) -> Array:
    """The dropout mask, element by element in Python integers."""
    modulus, kept = 1 << 64, []
    for i in range(size):
        z = (key + (i + 1) * 0x9E3779B97F4A7C15) % modulus
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % modulus
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % modulus
        kept.append((z ^ (z >> 31)) >> 32 >= round(probability * 2**32))
    return np.array(kept, bool)
