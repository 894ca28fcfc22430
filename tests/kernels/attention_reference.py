"""Attention and its gradient by the formula, with whole float64 matrices, and the shapes and options of the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mila.kernels.cpu.table import CpuKernels

Array = NDArray[Any]

#: (B, T, H, K, D): one position, odd and prime sizes, shared key/value heads, one and several blocks of queries.
SHAPES = (
    (1, 1, 1, 1, 4),
    (2, 5, 4, 2, 3),
    (1, 16, 12, 12, 64),
    (3, 97, 4, 1, 7),
    (1, 131, 6, 3, 5),
    (2, 150, 2, 2, 64),
    (1, 301, 3, 3, 33),
)
#: (causal, window)
OPTIONS = ((True, 0), (True, 1), (True, 7), (True, 70), (True, 1000), (False, 0), (False, 9))


@dataclass(frozen=True)
class Problem:
    """Inputs of attention, drawn from a seed, and its sizes and options."""

    qkv: Array
    dy: Array
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    window: int = 0

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.heads, self.kv_heads, self.head_dim


def problem(
    shape: tuple[int, int, int, int, int], option: tuple[bool, int] = (True, 0), dtype: type = np.float64, seed: int = 0
) -> Problem:
    batch, length, heads, kv_heads, head_dim = shape
    random = np.random.default_rng(seed)
    qkv = 1.5 * random.standard_normal((batch, length, (heads + 2 * kv_heads) * head_dim))
    dy = random.standard_normal((batch, length, heads * head_dim))
    return Problem(qkv.astype(dtype), dy.astype(dtype), heads, kv_heads, head_dim, *option)


def forward(kernels: CpuKernels, p: Problem, with_statistics: bool = True) -> tuple[Array, Array]:
    """Run the kernel with a workspace of exactly the declared size, full of NaN."""
    batch, length, _ = p.qkv.shape
    output = np.full(p.dy.shape, np.nan, p.qkv.dtype)
    log_sum_exp = np.full((batch, p.heads, length), np.nan, p.qkv.dtype)
    workspace = np.full(kernels.attention_forward_workspace(length, *p.sizes), np.nan, p.qkv.dtype)
    saved = log_sum_exp if with_statistics else None
    kernels.attention_forward(output, saved, p.qkv, *p.sizes, p.causal, p.window, p.scale, workspace)
    return output, log_sum_exp


def backward(kernels: CpuKernels, p: Problem) -> Array:
    """Run both kernels and return the gradient of ``qkv``."""
    output, log_sum_exp = forward(kernels, p)
    dqkv = np.full(p.qkv.shape, np.nan, p.qkv.dtype)
    workspace = np.full(kernels.attention_backward_workspace(p.qkv.shape[1], *p.sizes), np.nan, p.qkv.dtype)
    kernels.attention_backward(dqkv, log_sum_exp, p.dy, output, p.qkv, *p.sizes, p.causal, p.window, p.scale, workspace)
    return dqkv


def expected(p: Problem) -> tuple[Array, Array, Array]:
    """Output, log-sum-exp and gradient of ``qkv`` from whole float64 matrices."""
    batch, length, _ = p.qkv.shape
    group = p.heads // p.kv_heads
    packed = p.qkv.astype(np.float64).reshape(batch, length, -1, p.head_dim).transpose(0, 2, 1, 3)
    dy = p.dy.astype(np.float64).reshape(batch, length, p.heads, p.head_dim).transpose(0, 2, 1, 3)
    queries, keys, values = np.split(packed, [p.heads, p.heads + p.kv_heads], axis=1)
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    query, key = np.ogrid[:length, :length]
    kept = np.ones((length, length), bool)
    if p.causal:
        kept &= key <= query
    if p.window:
        kept &= key > query - p.window
    scores = np.where(kept, p.scale * queries @ keys.swapaxes(-1, -2), -np.inf)
    peak = scores.max(axis=-1, keepdims=True)
    log_sum_exp = peak + np.log(np.exp(scores - peak).sum(axis=-1, keepdims=True))
    probabilities = np.exp(scores - log_sum_exp)
    output = probabilities @ values
    dprobabilities = dy @ values.swapaxes(-1, -2)
    dscores = probabilities * (dprobabilities - (dy * output).sum(axis=-1, keepdims=True))
    dqueries = p.scale * dscores @ keys
    per_head = p.scale * dscores.swapaxes(-1, -2) @ queries, probabilities.swapaxes(-1, -2) @ dy
    shared = [x.reshape(batch, p.kv_heads, group, length, p.head_dim).sum(axis=2) for x in per_head]
    return _packed(output), log_sum_exp[..., 0], _packed(np.concatenate([dqueries, *shared], axis=1))


def _packed(x: Array) -> Array:
    batch, heads, length, head_dim = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * head_dim)


def error(got: Array, want: Array) -> float:
    """Largest difference, relative to the largest wanted value."""
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / max(1e-30, np.abs(want).max()))
