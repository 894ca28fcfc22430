"""Plain PyTorch decoders with preallocated key/value caches: what somebody writes who wants tokens and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn import functional

Tensor = Any


class Caches:
    """Keys and values (1, K, S, D) of every layer."""

    def __init__(self, layers: int, heads: int, length: int, size: int) -> None:
        self.keys = [torch.zeros(1, heads, length, size) for _ in range(layers)]
        self.values = [torch.zeros(1, heads, length, size) for _ in range(layers)]

    def attend(self, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append, and attend to everything so far: q (1, H, T, D) to (T, H D)."""
        length = q.shape[2]
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, start : start + length] = k
        values[:, :, start : start + length] = v
        keys, values = keys[:, :, : start + length], values[:, :, : start + length]
        is_prefill = length > 1
        out = functional.scaled_dot_product_attention(
            q, keys, values, is_causal=is_prefill, enable_gqa=q.shape[1] != keys.shape[1]
        )
        return out.transpose(1, 2).reshape(length, -1)


class PlainLlama:
    """Llama, one row."""

    def __init__(self, folder: Path, fields: dict[str, Any], length: int) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self.layers, self.heads = fields["num_hidden_layers"], fields["num_attention_heads"]
        self.kv_heads, self.size = fields["num_key_value_heads"], fields["hidden_size"] // self.heads
        self.caches = Caches(self.layers, self.kv_heads, length, self.size)
        frequencies = fields["rope_theta"] ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
        self.cosine, self.sine = angles.cos(), angles.sin()
        attention = [f"self_attn.{name}_proj" for name in "qkvo"]
        mlp = [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
        names = ["input_layernorm", *attention, "post_attention_layernorm", *mlp]
        prefix = "model.layers"
        self.blocks = [
            [self.weights[f"{prefix}.{layer}.{name}.weight"] for name in names] for layer in range(self.layers)
        ]
        self.table = self.weights["model.embed_tokens.weight"]
        self.norm = self.weights["model.norm.weight"]

    def turn(self, x: Tensor, start: int) -> Tensor:
        """Rotate (1, H, T, D)."""
        half = self.size // 2
        rows = slice(start, start + x.shape[2])
        other = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self.cosine[rows] + other * self.sine[rows]

    def split(self, x: Tensor, heads: int) -> Tensor:
        """(T, H D) to (1, H, T, D)."""
        return x.view(1, -1, heads, self.size).transpose(1, 2)

    def forward(self, ids: list[int], start: int) -> int:
        """Ids at ``start`` on to the likeliest next id."""
        x = functional.embedding(torch.tensor(ids), self.table)
        width = (x.shape[-1],)
        for layer, (norm1, q, k, v, o, norm2, gate, up, down) in enumerate(self.blocks):
            h = functional.rms_norm(x, width, norm1, 1e-6)
            queries = self.turn(self.split(functional.linear(h, q), self.heads), start)
            keys = self.turn(self.split(functional.linear(h, k), self.kv_heads), start)
            values = self.split(functional.linear(h, v), self.kv_heads)
            x = x + functional.linear(self.caches.attend(layer, start, queries, keys, values), o)
            h = functional.rms_norm(x, width, norm2, 1e-6)
            x = x + functional.linear(functional.silu(functional.linear(h, gate)) * functional.linear(h, up), down)
        return int(functional.linear(functional.rms_norm(x[-1:], width, self.norm, 1e-6), self.table).argmax())


class PlainGpt2:
    """GPT-2, one row."""

    def __init__(self, folder: Path, fields: dict[str, Any], length: int) -> None:
        weights = load_file(folder / "model.safetensors")
        self.table, self.positions = weights["transformer.wte.weight"], weights["transformer.wpe.weight"]
        self.heads = 12
        self.layers = sum(name.endswith("ln_1.weight") for name in weights)
        self.size = self.table.shape[1] // self.heads
        self.caches = Caches(self.layers, self.heads, length, self.size)
        names = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
        self.blocks = [
            [
                self._weight(weights, f"transformer.h.{layer}.{name}.{kind}")
                for name in names
                for kind in ("weight", "bias")
            ]
            for layer in range(self.layers)
        ]
        self.norm = [weights[f"transformer.ln_f.{kind}"] for kind in ("weight", "bias")]

    @staticmethod
    def _weight(weights: dict[str, Tensor], name: str) -> Tensor:
        tensor = weights[name]
        return tensor.T.contiguous() if ".c_" in name and tensor.dim() == 2 else tensor

    def split(self, x: Tensor) -> Tensor:
        """(T, H D) to (1, H, T, D)."""
        return x.reshape(1, -1, self.heads, self.size).transpose(1, 2)

    def forward(self, ids: list[int], start: int) -> int:
        """Ids at ``start`` on to the likeliest next id."""
        x = functional.embedding(torch.tensor(ids), self.table) + self.positions[start : start + len(ids)]
        width = x.shape[-1:]
        for layer, (g1, b1, qkv, qkv_b, out, out_b, g2, b2, fc, fc_b, proj, proj_b) in enumerate(self.blocks):
            h = functional.linear(functional.layer_norm(x, width, g1, b1), qkv, qkv_b)
            q, k, v = (self.split(part) for part in h.split(width[0], dim=-1))
            x = x + functional.linear(self.caches.attend(layer, start, q, k, v), out, out_b)
            h = functional.gelu(
                functional.linear(functional.layer_norm(x, width, g2, b2), fc, fc_b), approximate="tanh"
            )
            x = x + functional.linear(h, proj, proj_b)
        return int(functional.linear(functional.layer_norm(x[-1:], width, *self.norm), self.table).argmax())


def plain_decoder(folder: Path, model_class: str, fields: dict[str, Any], length: int) -> PlainLlama | PlainGpt2:
    """The decoder of a model folder."""
    torch.set_grad_enabled(False)
    return (PlainLlama if model_class.startswith("Llama") else PlainGpt2)(folder, fields, length)
