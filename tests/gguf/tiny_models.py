"""Tiny models as metadata and tensors of GGUF, with a byte-level tokenizer of 256 bytes, two merges, three specials."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from tests.gguf.gguf_bytes import Array, gguf_bytes, random_array

Parts = tuple[dict[str, Any], dict[str, Any]]
"""The metadata and the tensors of a file."""

BYTES = sorted(ByteLevel.alphabet())
TOKENS = [*BYTES, "he", "Ġhe", "<|end|>", "<|turn|>", "<tool>"]
END, TURN, TOOL = 258, 259, 260
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|turn|>{% endfor %}"
V, C, LAYERS, F, H, K, D = len(TOKENS), 32, 2, 64, 4, 2, 8
# transformers' own loader takes these two from its defaults, whatever the file says.
QWEN3_D, GPT2_CONTEXT = 128, 1024


def tokenizer_metadata(pre: str = "smollm") -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": np.array([1] * 258 + [3, 3, 4], "<i4"),
        "tokenizer.ggml.merges": ["h e", "Ġ he"],
        "tokenizer.ggml.bos_token_id": END,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.eot_token_id": TURN,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def rotary_model(
    architecture: str = "llama",
    *,
    biases: bool = False,
    mlp_biases: bool = False,
    tied: bool = True,
    dtype: Any = "<f4",
) -> Parts:
    """A model of Llama's graph; grouped heads, more than their width together for Qwen3."""
    head_dim = QWEN3_D if architecture == "qwen3" else D
    metadata = {
        "general.architecture": architecture,
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.context_length": 64,
        f"{architecture}.embedding_length": C,
        f"{architecture}.feed_forward_length": F,
        f"{architecture}.attention.head_count": H,
        f"{architecture}.attention.head_count_kv": K,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        f"{architecture}.rope.dimension_count": head_dim,
        **tokenizer_metadata(),
    }
    if architecture == "qwen3":
        metadata["qwen3.attention.key_length"] = head_dim
        metadata["qwen3.attention.value_length"] = head_dim
    tensors = {"token_embd.weight": random_array(0, V, C, dtype=dtype)}
    for layer in range(LAYERS):
        block = _rotary_block(layer, head_dim, biases, mlp_biases, dtype, has_head_norms=architecture == "qwen3")
        tensors |= {f"blk.{layer}.{name}": array for name, array in block.items()}
    tensors["output_norm.weight"] = 1 + random_array(1, C)
    if not tied:
        tensors["output.weight"] = random_array(2, V, C, dtype=dtype)
    return metadata, tensors


def _rotary_block(
    layer: int, head_dim: int, biases: bool, mlp_biases: bool, dtype: Any, has_head_norms: bool
) -> dict[str, Array]:
    seed = 100 * (layer + 1)
    rows = {"attn_q": H * head_dim, "attn_k": K * head_dim, "attn_v": K * head_dim, "attn_output": C}
    rows |= {"ffn_gate": F, "ffn_up": F, "ffn_down": C}
    columns = {"attn_output": H * head_dim, "ffn_down": F}
    block = {"attn_norm.weight": 1 + random_array(seed, C), "ffn_norm.weight": 1 + random_array(seed + 1, C)}
    if has_head_norms:
        block |= {f"attn_{part}_norm.weight": 1 + random_array(seed + 2, head_dim) for part in "qk"}
    for number, (name, count) in enumerate(rows.items()):
        block[f"{name}.weight"] = random_array(seed + 10 + number, count, columns.get(name, C), dtype=dtype)
        if mlp_biases if name.startswith("ffn") else biases:
            block[f"{name}.bias"] = random_array(seed + 20 + number, count)
    return block


def gpt2_model(*, head: str = "none") -> Parts:
    """A GPT-2; `head` is none, table (the table a second time) or own."""
    metadata = {
        "general.architecture": "gpt2",
        "gpt2.block_count": LAYERS,
        "gpt2.context_length": GPT2_CONTEXT,
        "gpt2.embedding_length": C,
        "gpt2.feed_forward_length": 4 * C,
        "gpt2.attention.head_count": H,
        "gpt2.attention.layer_norm_epsilon": 1e-5,
        **tokenizer_metadata("gpt-2"),
    }
    tensors = {"token_embd.weight": random_array(0, V, C), "position_embd.weight": random_array(1, GPT2_CONTEXT, C)}
    shapes = {"attn_qkv": (3 * C, C), "attn_output": (C, C), "ffn_up": (4 * C, C), "ffn_down": (C, 4 * C)}
    for layer in range(LAYERS):
        for number, (name, shape) in enumerate(shapes.items()):
            tensors[f"blk.{layer}.{name}.weight"] = random_array(100 * layer + 10 + number, *shape)
            tensors[f"blk.{layer}.{name}.bias"] = random_array(100 * layer + 20 + number, shape[0])
        for number, name in enumerate(("attn_norm", "ffn_norm")):
            tensors[f"blk.{layer}.{name}.weight"] = 1 + random_array(100 * layer + 30 + number, C)
            tensors[f"blk.{layer}.{name}.bias"] = random_array(100 * layer + 40 + number, C)
    tensors |= {"output_norm.weight": 1 + random_array(2, C), "output_norm.bias": random_array(3, C)}
    if head != "none":
        tensors["output.weight"] = tensors["token_embd.weight"] if head == "table" else random_array(4, V, C)
    return metadata, tensors


def sentencepiece_metadata(pieces: dict[str, float]) -> dict[str, Any]:
    """A SentencePiece vocabulary: unknown, start, end, 256 bytes, and pieces with their scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([0.0] * 259 + list(pieces.values()), "<f4"),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(pieces), "<i4"),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def file_bytes(parts: Parts) -> bytes:
    return gguf_bytes(*parts)
