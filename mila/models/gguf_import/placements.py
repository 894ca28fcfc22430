"""Where the tensors of a GGUF file go: names, shapes and orders of each graph's parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

TOKEN_TABLE, HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True, slots=True)
class Placement:
    """What becomes of one tensor of the file.

    Attributes:
        source: its name in the file.
        name: its name in the Hugging Face checkpoint.
        shape: its shape there.
        interleaved_heads: where it is not 0, the rows of so many heads are stored in the order of interleaved rotary
            pairs, and come out in the order of half-split ones.
        is_transposed: the file holds it as (columns, rows).
    """

    source: str
    name: str
    shape: tuple[int, ...]
    interleaved_heads: int = 0
    is_transposed: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes every architecture has: V, C, layers, hidden width, context, H query heads, K key heads, D."""

    vocab_size: int
    width: int
    layers: int
    hidden: int
    context: int
    heads: int
    key_heads: int
    head_dim: int


def decoder_placements(
    sizes: Sizes, tied: bool, biases: frozenset[str], *, is_interleaved: bool = False, has_head_norms: bool = False
) -> Iterator[Placement]:
    """Yield the tensors of Llama's graph; `biases` names the projections that have one."""
    width, queries, keys = sizes.width, sizes.heads * sizes.head_dim, sizes.key_heads * sizes.head_dim
    projections = (
        ("attn_q", "self_attn.q_proj", (queries, width), sizes.heads if is_interleaved else 0),
        ("attn_k", "self_attn.k_proj", (keys, width), sizes.key_heads if is_interleaved else 0),
        ("attn_v", "self_attn.v_proj", (keys, width), 0),
        ("attn_output", "self_attn.o_proj", (width, queries), 0),
        ("ffn_gate", "mlp.gate_proj", (sizes.hidden, width), 0),
        ("ffn_up", "mlp.up_proj", (sizes.hidden, width), 0),
        ("ffn_down", "mlp.down_proj", (width, sizes.hidden), 0),
    )
    norms = [("attn_norm", "input_layernorm", width), ("ffn_norm", "post_attention_layernorm", width)]
    if has_head_norms:
        norms += [
            ("attn_q_norm", "self_attn.q_norm", sizes.head_dim),
            ("attn_k_norm", "self_attn.k_norm", sizes.head_dim),
        ]
    yield Placement(TOKEN_TABLE, "model.embed_tokens.weight", (sizes.vocab_size, width))
    for layer in range(sizes.layers):
        block, target = f"blk.{layer}", f"model.layers.{layer}"
        for short, long, length in norms:
            yield Placement(f"{block}.{short}.weight", f"{target}.{long}.weight", (length,))
        for short, long, shape, heads in projections:
            yield Placement(f"{block}.{short}.weight", f"{target}.{long}.weight", shape, heads)
            if short in biases:
                yield Placement(f"{block}.{short}.bias", f"{target}.{long}.bias", shape[:1], heads)
    yield Placement("output_norm.weight", "model.norm.weight", (width,))
    if not tied:
        yield Placement(HEAD, "lm_head.weight", (sizes.vocab_size, width))


def gpt2_placements(sizes: Sizes, tied: bool) -> Iterator[Placement]:
    """Yield the tensors of GPT-2, whose checkpoints hold projections as (in, out), other than GGUF."""
    width, hidden = sizes.width, sizes.hidden
    projections = (
        ("attn_qkv", "attn.c_attn", (width, 3 * width)),
        ("attn_output", "attn.c_proj", (width, width)),
        ("ffn_up", "mlp.c_fc", (width, hidden)),
        ("ffn_down", "mlp.c_proj", (hidden, width)),
    )
    norms = (("attn_norm", "ln_1"), ("ffn_norm", "ln_2"))
    yield Placement(TOKEN_TABLE, "transformer.wte.weight", (sizes.vocab_size, width))
    yield Placement("position_embd.weight", "transformer.wpe.weight", (sizes.context, width))
    for layer in range(sizes.layers):
        block, target = f"blk.{layer}", f"transformer.h.{layer}"
        for short, long in norms:
            for part in ("weight", "bias"):
                yield Placement(f"{block}.{short}.{part}", f"{target}.{long}.{part}", (width,))
        for short, long, shape in projections:
            yield Placement(f"{block}.{short}.weight", f"{target}.{long}.weight", shape, is_transposed=True)
            yield Placement(f"{block}.{short}.bias", f"{target}.{long}.bias", shape[1:])
    for part in ("weight", "bias"):
        yield Placement(f"output_norm.{part}", f"transformer.ln_f.{part}", (width,))
    if not tied:
        yield Placement(HEAD, "lm_head.weight", (sizes.vocab_size, width))
