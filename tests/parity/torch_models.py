"""GPT-2 and Llama in plain PyTorch, as one would write them: what Mila's models are compared with.

Nothing of Mila runs here; only the configs are shared. Modules carry the names of Mila's components, so that parameters
are found by name (:func:`load_parameters`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from mila.components import LinearScaling, Llama3Scaling
from mila.kernels.signatures import Array
from mila.models import GptConfig, LlamaConfig

#: Tensors and modules; PyTorch counts as untyped, whether it is installed or not.
Tensor = Any

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "leaky_relu": functional.leaky_relu,
    "mish": functional.mish,
    "elu": functional.elu,
    "hardswish": functional.hardswish,
    "softplus": functional.softplus,
}

#: How Mila calls the parameters that PyTorch calls ``weight``.
MILA_NAMES = {"embedding.weight": "embedding.wte", "positions.weight": "positions.wpe"}


class Module(nn.Module):  # type: ignore[misc]
    """``torch.nn.Module``, which has no types here; calling it returns logits or activations."""


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(B, T, H D) to (B, H, T, D)."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def window_mask(length: int, window: int) -> Tensor:
    """(T, T), true where a position may look: at itself and the ``window - 1`` positions before it."""
    offsets = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    return (offsets >= 0) & (offsets < window)


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, window: int | None = None, scale: float | None = None
) -> Tensor:
    """Attention of q (B, H, T, D) to k, v (B, K, T, D), each shared by H / K query heads; returns (B, T, H D)."""
    mask = None if window is None else window_mask(q.shape[2], window)
    grouped = q.shape[1] != k.shape[1]
    y = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=grouped
    )
    return y.transpose(1, 2).flatten(2)


def scaled_frequencies(frequencies: Tensor, scaling: LinearScaling | Llama3Scaling | None) -> Tensor:
    """Rotary frequencies after scaling, by wavelengths as Llama 3.1 describes it."""
    if scaling is None:
        return frequencies
    divided = frequencies / scaling.factor
    if isinstance(scaling, LinearScaling):
        return divided
    wavelengths, length = 2 * math.pi / frequencies, scaling.original_max_seq_len
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    smooth = (length / wavelengths - low) / (high - low)
    between = (1 - smooth) * divided + smooth * frequencies
    short_or_between = torch.where(wavelengths < length / high, frequencies, between)
    return torch.where(wavelengths > length / low, divided, short_or_between)


def rotary_tables(
    length: int, rotary_dim: int, theta: float, scaling: LinearScaling | Llama3Scaling | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, R / 2) of ``position * theta ** (-2 i / R)``, float64."""
    frequencies = theta ** (-2.0 * torch.arange(rotary_dim // 2, dtype=torch.float64) / rotary_dim)
    frequencies = scaled_frequencies(frequencies, scaling)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (i, i + rotary_dim / 2) of the first rotary_dim elements of (B, H, T, D)."""
    half = cosine.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1)


class GptMlp(Module):
    """Project, activate, project back."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        hidden = config.hidden_dim or 4 * config.embedding_dim
        self.fc_1 = nn.Linear(config.embedding_dim, hidden, bias=config.bias)
        self.fc_2 = nn.Linear(hidden, config.embedding_dim, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_2(self.activation(self.fc_1(x)))


class GptBlock(Module):
    """Attention and feed-forward branches, each behind a norm."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__()
        width, bias, epsilon = config.embedding_dim, config.bias, config.norm_epsilon
        self.head_dim = width // config.num_heads
        by_head_dim = 1 / math.sqrt(self.head_dim)
        self.scale = {"head_dim": by_head_dim, "none": 1.0, "head_dim_and_layer": by_head_dim / (layer + 1)}[
            config.attention_scaling
        ]
        self.ln_1 = nn.LayerNorm(width, eps=epsilon, bias=bias)
        self.qkv_proj = nn.Linear(width, 3 * width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)
        self.ln_2 = nn.LayerNorm(width, eps=epsilon, bias=bias)
        self.mlp = GptMlp(config)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.head_dim) for part in self.qkv_proj(self.ln_1(x)).chunk(3, dim=-1))
        x = x + self.out_proj(attend(q, k, v, scale=self.scale))
        return x + self.mlp(self.ln_2(x))


class TorchGpt(Module):
    """GPT-2: ids (B, T) to logits (B, T, V)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.positions = nn.Embedding(config.max_seq_len, config.embedding_dim)
        self.blocks = [GptBlock(config, layer) for layer in range(config.num_layers)]
        for layer, block in enumerate(self.blocks):
            self.add_module(f"block_{layer}", block)
        self.ln_f = nn.LayerNorm(config.embedding_dim, eps=config.norm_epsilon, bias=config.bias)
        self.lm_head = nn.Linear(config.embedding_dim, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class LlamaMlp(Module):
    """``fc_down(f(gate) * up)`` with gate and up in one projection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.fc_gate_up = nn.Linear(config.embedding_dim, 2 * config.hidden_dim, bias=config.mlp_bias)
        self.fc_down = nn.Linear(config.hidden_dim, config.embedding_dim, bias=config.mlp_bias)
        self.activation = ACTIVATIONS[config.gate_activation]

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.fc_gate_up(x).chunk(2, dim=-1)
        return self.fc_down(self.activation(gate) * up)


class HeadNorm(Module):
    """RMS norms of query and key heads (B, H, T, D)."""

    def __init__(self, head_dim: int, epsilon: float) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.ones(head_dim))
        self.key_weight = nn.Parameter(torch.ones(head_dim))
        self.epsilon = epsilon

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        shape = self.query_weight.shape
        normalized = functional.rms_norm(q, shape, self.query_weight, self.epsilon)
        return normalized, functional.rms_norm(k, shape, self.key_weight, self.epsilon)


class LlamaBlock(Module):
    """Attention with rotary positions and grouped heads, and the gated feed-forward branch."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim or config.embedding_dim // config.num_heads
        kv_heads = config.num_kv_heads or config.num_heads
        self.widths = [heads * self.head_dim for heads in (config.num_heads, kv_heads, kv_heads)]
        has_window = config.sliding_layers is None or layer in config.sliding_layers
        self.window = config.sliding_window if has_window else None
        self.theta, self.scaling = config.rope_theta, config.rope_scaling
        self.norm_1 = nn.RMSNorm(config.embedding_dim, eps=config.norm_epsilon)
        self.qkv_proj = nn.Linear(config.embedding_dim, sum(self.widths), bias=config.qkv_bias)
        self.qk_norm = HeadNorm(self.head_dim, config.norm_epsilon) if config.qk_norm else None
        self.out_proj = nn.Linear(self.widths[0], config.embedding_dim, bias=config.out_bias)
        self.norm_2 = nn.RMSNorm(config.embedding_dim, eps=config.norm_epsilon)
        self.mlp = LlamaMlp(config)

    def forward(self, x: Tensor) -> Tensor:
        tables = rotary_tables(x.shape[1], self.head_dim, self.theta, self.scaling)
        cosine, sine = (table.to(x.dtype) for table in tables)
        parts = self.qkv_proj(self.norm_1(x)).split(self.widths, dim=-1)
        q, k, v = (split_heads(part, self.head_dim) for part in parts)
        if self.qk_norm is not None:
            q, k = self.qk_norm(q, k)
        y = attend(rotate(q, cosine, sine), rotate(k, cosine, sine), v, window=self.window)
        x = x + self.out_proj(y)
        return x + self.mlp(self.norm_2(x))


class TorchLlama(Module):
    """Llama: ids (B, T) to logits (B, T, V)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.blocks = [LlamaBlock(config, layer) for layer in range(config.num_layers)]
        for layer, block in enumerate(self.blocks):
            self.add_module(f"block_{layer}", block)
        self.norm_f = nn.RMSNorm(config.embedding_dim, eps=config.norm_epsilon)
        self.lm_head = nn.Linear(config.embedding_dim, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm_f(x))


def torch_model(config: GptConfig | LlamaConfig) -> TorchGpt | TorchLlama:
    """The PyTorch model of a config, with weights of PyTorch's own."""
    return TorchGpt(config) if isinstance(config, GptConfig) else TorchLlama(config)


def mila_parameters(model: Module) -> dict[str, Tensor]:
    """The parameters by Mila's names, a tied one once."""
    return {MILA_NAMES.get(name, name): parameter for name, parameter in model.named_parameters()}


def load_parameters(model: Module, parameters: Mapping[str, Array]) -> None:
    """Copy parameters in by Mila's names; both sides must have the same names and shapes."""
    own = mila_parameters(model)
    if own.keys() != parameters.keys():
        raise ValueError(f"expected the parameters {sorted(own)}, got {sorted(parameters)}")
    with torch.no_grad():
        for name, parameter in own.items():
            if tuple(parameter.shape) != parameters[name].shape:
                raise ValueError(f"{name}: expected shape {tuple(parameter.shape)}, got {parameters[name].shape}")
            parameter.copy_(torch.from_numpy(parameters[name].copy()))


def decay_groups(model: Module, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's groups: matrices of projections decay; norms, biases and embeddings, tied ones too, do not."""
    decaying: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in mila_parameters(model).items():
        is_projection = parameter.ndim == 2 and not name.startswith(("embedding.", "positions."))
        (decaying if is_projection else others).append(parameter)
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def cross_entropy(logits: Tensor, targets: Tensor, ignore_index: int | None = None) -> Tensor:
    """The mean loss over the targets that are not ignored."""
    ignored = -100 if ignore_index is None else ignore_index
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=ignored)


def clip_gradients(model: Module, maximum_norm: float | None) -> float:
    """Scale the gradients down to a global norm, where one is given; returns the norm before.

    ``torch.nn.utils.clip_grad_norm_`` divides by the norm plus 1e-6, which would hide differences of that size.
    """
    parameters: Iterable[Tensor] = list(model.parameters())
    norm = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(p.grad, dtype=torch.float64) for p in parameters if p.grad is not None])
    )
    if maximum_norm is not None and norm > maximum_norm:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(maximum_norm / norm)
    return float(norm)
