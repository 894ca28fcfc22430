"""Each component computes its formula, written out once more in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mila.components import (
    Attention,
    AttentionConfig,
    LayerNorm,
    LayerNormConfig,
    LearnedPositionEncoding,
    LearnedPositionEncodingConfig,
    Residual,
    ResidualConfig,
    RmsNorm,
    RmsNormConfig,
    Rope,
    RopeConfig,
    Softmax,
    SoftmaxConfig,
    SoftmaxCrossEntropy,
    Swiglu,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from mila.core import BuildContext, Component, RuntimeMode

Float = NDArray[np.float64]
RANDOM = np.random.default_rng(0)


def run(component: Component[Any], *inputs: NDArray[np.generic]) -> Float:
    shapes = {port.name: array.shape for port, array in zip(component.ports, inputs, strict=True)}
    component.build(BuildContext(shapes, RuntimeMode.TRAINING))
    result: Float = component.forward(*inputs)
    return result


def softmax(x: Float, axis: int = -1) -> Float:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)  # type: ignore[no-any-return]


def test_layer_norm() -> None:
    x = RANDOM.standard_normal((2, 3, 7))
    norm = LayerNorm("norm", LayerNormConfig(normalized_dim=7, epsilon=0.1), device="cpu", dtype="float64")
    got = run(norm, x)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1)
    assert np.allclose(got, expected, rtol=1e-12)
    norm.load_parameter("weight", np.arange(7.0))
    norm.load_parameter("bias", np.arange(7.0) - 3)
    assert np.allclose(norm.forward(x), expected * np.arange(7.0) + np.arange(7.0) - 3, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("offset", [0.0, 1.0, 0.5])
def test_rms_norm(offset: float) -> None:
    x = RANDOM.standard_normal((2, 7))
    config = RmsNormConfig(normalized_dim=7, epsilon=0.1, unit_offset=offset)
    norm = RmsNorm("norm", config, device="cpu", dtype="float64")
    got = run(norm, x)
    normalized = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1)
    assert np.allclose(got, normalized, rtol=1e-12)  # the weight starts at 1 - offset


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax(axis: int) -> None:
    x = RANDOM.standard_normal((2, 3, 5))
    got = run(Softmax("softmax", SoftmaxConfig(axis=axis), device="cpu", dtype="float64"), x)
    assert np.allclose(got, softmax(x, axis), rtol=1e-12)


def test_residual_and_gate() -> None:
    x, y = RANDOM.standard_normal((2, 2, 3, 4))
    assert np.allclose(run(Residual("r", ResidualConfig(scale=0.5), device="cpu", dtype="float64"), x, y), x + y / 2)
    gate, value = x[..., :2], x[..., 2:]
    got = run(Swiglu("gate", device="cpu", dtype="float64"), x)
    assert np.allclose(got, gate / (1 + np.exp(-gate)) * value, rtol=1e-12)


def test_tables() -> None:
    ids = RANDOM.integers(0, 5, (2, 3), np.int32)
    config = TokenEmbeddingConfig(vocab_size=5, embedding_dim=4, embedding_scale=3.0)
    embedding = TokenEmbedding("wte", config, device="cpu", dtype="float64")
    assert np.allclose(run(embedding, ids), embedding.get_parameters()[0][ids] * 3)
    x = RANDOM.standard_normal((2, 3, 4))
    positions = LearnedPositionEncodingConfig(max_seq_len=5, embedding_dim=4)
    encoding = LearnedPositionEncoding("wpe", positions, device="cpu", dtype="float64")
    assert np.allclose(run(encoding, x), x + encoding.get_parameters()[0][:3])


def test_cross_entropy() -> None:
    logits, targets = RANDOM.standard_normal((2, 3, 7)), RANDOM.integers(0, 7, (2, 3), np.int32)
    got = run(SoftmaxCrossEntropy("loss", device="cpu", dtype="float64"), logits, targets)
    probabilities = np.take_along_axis(softmax(logits), targets[..., None], -1)
    assert np.allclose(got, -np.log(probabilities).mean(), rtol=1e-12)


@pytest.mark.parametrize("rotary_dim", [None, 4, 2])
def test_rope(rotary_dim: int | None) -> None:
    """Complex numbers (x_i, x_{i + R/2}) times exp(j t theta^(-2 i / R)), on query and key heads."""
    heads, kv_heads, size = 2, 1, 6
    turning = rotary_dim or size
    x = RANDOM.standard_normal((2, 5, (heads + 2 * kv_heads) * size))
    config = RopeConfig(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=size, theta=50.0, rotary_dim=rotary_dim, max_seq_len=9
    )
    got = run(Rope("rope", config, device="cpu", dtype="float64"), x).reshape(2, 5, heads + 2 * kv_heads, size)
    split = x.reshape(2, 5, heads + 2 * kv_heads, size)
    angle = np.arange(5)[:, None] * 50.0 ** (-2 * np.arange(turning // 2) / turning)
    turned = (split[..., : turning // 2] + 1j * split[..., turning // 2 : turning]) * np.exp(1j * angle)[:, None]
    expected = split.copy()
    rotated = slice(0, heads + kv_heads)
    expected[:, :, rotated, : turning // 2] = turned.real[:, :, rotated]
    expected[:, :, rotated, turning // 2 : turning] = turned.imag[:, :, rotated]
    assert np.allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 2), (True, 1), (True, 99)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (4, 1)])
def test_attention(causal: bool, window: int | None, heads: int, kv_heads: int) -> None:
    size, batch, length = 3, 2, 6
    qkv = RANDOM.standard_normal((batch, length, (heads + 2 * kv_heads) * size))
    config = AttentionConfig(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=size, causal=causal, sliding_window=window
    )
    got = run(Attention("attention", config, device="cpu", dtype="float64"), qkv)
    split = qkv.reshape(batch, length, heads + 2 * kv_heads, size).transpose(0, 2, 1, 3)
    q, k, v = split[:, :heads], split[:, heads : heads + kv_heads], split[:, heads + kv_heads :]
    k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(size)
    i, j = np.indices((length, length))
    seen = np.ones((length, length), bool)
    if causal:
        seen &= j <= i
    if window is not None:
        seen &= i - j < window
    expected = softmax(np.where(seen, scores, -np.inf)) @ v
    assert np.allclose(got, expected.transpose(0, 2, 1, 3).reshape(batch, length, heads * size), rtol=1e-12)
