"""Attention agrees with PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from tests.kernels.attention_reference import OPTIONS, backward, error, forward, problem

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("option", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(2, 64, 4, 4, 16), (1, 131, 6, 2, 8), (1, 256, 4, 4, 64)], ids=str)
def test_output_and_gradient_agree_with_pytorch(
    shape: tuple[int, int, int, int, int], option: tuple[bool, int]
) -> None:
    torch = pytest.importorskip("torch")
    p = problem(shape, option, np.float32)
    batch, length, heads, kv_heads, head_dim = shape
    qkv = torch.from_numpy(p.qkv.copy()).requires_grad_()
    parts = qkv.view(batch, length, heads + 2 * kv_heads, head_dim).transpose(1, 2)
    queries, keys, values = parts.split([heads, kv_heads, kv_heads], dim=1)
    position = torch.arange(length)
    age = position[:, None] - position[None]
    kept = (age >= 0) if p.causal else torch.ones_like(age, dtype=torch.bool)
    if p.window:
        kept &= age < p.window
    output = torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=kept, enable_gqa=heads != kv_heads
    )
    output = output.transpose(1, 2).reshape(batch, length, heads * head_dim)
    output.backward(torch.from_numpy(p.dy))
    kernels = CpuKernels(2)
    assert error(forward(kernels, p)[0], output.detach().numpy()) < 2e-6
    assert error(backward(kernels, p), qkv.grad.numpy()) < 4e-6
