"""The architectures that are understood: config.json from the metadata, and every tensor's name, shape and order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mila.errors import UnknownArchitectureError
from mila.models.gguf_import.placements import (
    HEAD,
    TOKEN_TABLE,
    Placement,
    Sizes,
    decoder_placements,
    gpt2_placements,
)
from mila.models.gguf_import.rotary import FACTORS, read_rope_scaling
from mila.models.gguf_import.source import GgufSource
from mila.serialization.failures import refusal, shown

_MOST_LISTED = 20
#: What llama.cpp computes with where a file does not say (``rope_freq_base_train`` in its loader of models).
_DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What the file says about its model.

    Attributes:
        config: the content of ``config.json``, without dtype and token ids.
        placements: every tensor that is imported, in the order of the file.
        context_length: the longest text it was trained on, in tokens.
        notes: what a user should be told.
    """

    config: dict[str, Any]
    placements: tuple[Placement, ...]
    context_length: int
    notes: tuple[str, ...]

    @property
    def vocab_size(self) -> int:
        """The rows V of the token table."""
        size: int = self.config["vocab_size"]
        return size

    @property
    def parameter_count(self) -> int:
        """The elements of all tensors that are imported."""
        return sum(math.prod(placement.shape) for placement in self.placements)


def describe_model(source: GgufSource) -> ModelDescription:
    """Return the model of a file, all of its metadata and all of its tensors' names and shapes checked.

    Raises:
        UnknownArchitectureError: another than these.
        CheckpointError: a missing key, an option without a kernel, or tensors that are missing, unexpected or of
            another shape.
    """
    _check_kind(source)
    architecture = source.text("general.architecture")
    if architecture not in _ARCHITECTURES:
        expected = " or ".join(_ARCHITECTURES)
        raise UnknownArchitectureError(str(source.refuse("general.architecture", expected, shown(architecture))))
    config, placements = _ARCHITECTURES[architecture](source)
    table = {placement.source: placement for placement in placements}
    is_second_table = config["tie_word_embeddings"] and HEAD in source.tensors
    read_already = ({FACTORS} if "rope_scaling" in config else set()) | ({HEAD} if is_second_table else set())
    _check_tensors(source, table, read_already)
    return ModelDescription(
        config,
        tuple(table[name] for name in source.tensors if name in table),
        source.integer(f"{architecture}.context_length"),
        tuple(_notes(source, architecture, config, is_second_table=is_second_table)),
    )


def _notes(source: GgufSource, prefix: str, config: dict[str, Any], *, is_second_table: bool) -> Iterator[str]:
    """What a user should be told."""
    if is_second_table:
        yield f"{HEAD} is the token table a second time: the head is tied"
    if "rope_theta" in config and not source.has(_theta_key(prefix)):
        yield f"there is no {_theta_key(prefix)}: taken as {_DEFAULT_THETA:g}, as llama.cpp does"


def _theta_key(prefix: str) -> str:
    return f"{prefix}.rope.freq_base"


def _check_kind(source: GgufSource) -> None:
    if source.has("split.count") and source.integer("split.count") > 1:
        hint = "join the files with llama-gguf-split --merge first"
        got = f"one of {source.integer('split.count')} files of a split model"
        raise refusal(source.path, expected="a whole model", got=got, hint=hint)
    if source.has("general.type") and source.text("general.type") != "model":
        raise source.refuse("general.type", "model", shown(source.text("general.type")))


def _check_keys(source: GgufSource, prefix: str, understood: frozenset[str]) -> None:
    """Refuse what may change the result and is not understood."""
    for key in source.metadata:
        if key.startswith(f"{prefix}.") and key.removeprefix(f"{prefix}.") not in understood:
            raise source.refuse(key, "no such key", "one that is not understood")
    for name in ("expert_count", "expert_used_count"):
        if source.has(f"{prefix}.{name}") and source.integer(f"{prefix}.{name}"):
            raise source.refuse(f"{prefix}.{name}", "0", "a mixture of experts")
    layout = f"{prefix}.tensor_data_layout"
    if source.has(layout) and source.text(layout) not in ("reference", "Meta AI original pth"):
        raise source.refuse(layout, "a known layout", shown(source.text(layout)))


def _check_tensors(source: GgufSource, table: dict[str, Placement], read_already: set[str]) -> None:
    """Report every missing, unexpected and mismatched tensor at once."""
    problems = [f"missing {shown(name)}" for name in table if name not in source.tensors]
    for name, tensor in source.tensors.items():
        if name in read_already:
            continue
        if name not in table:
            problems.append(f"unexpected {shown(name)}")
            continue
        placement = table[name]
        shape = placement.shape[::-1] if placement.is_transposed else placement.shape
        if tensor.shape != shape:
            problems.append(f"{shown(name)} of shape {list(tensor.shape)} instead of {list(shape)}")
    if problems:
        more = f" and {len(problems) - _MOST_LISTED} more" if len(problems) > _MOST_LISTED else ""
        got = ", ".join(problems[:_MOST_LISTED]) + more
        raise refusal(source.path, expected="the tensors that its metadata describes", got=got)


_COMMON_KEYS = frozenset(
    {
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "expert_count",
        "expert_used_count",
        "tensor_data_layout",
    }
)
_ROTARY_KEYS = frozenset(
    {
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
    }
)


def _sizes(source: GgufSource, prefix: str) -> Sizes:
    layers = source.integer(f"{prefix}.block_count", minimum=1, maximum=len(source.tensors))
    width = source.integer(f"{prefix}.embedding_length", minimum=1)
    heads = source.integer(f"{prefix}.attention.head_count", minimum=1)
    # The specification says what holds where these are absent: as many key heads, and C / H for each head.
    key_heads_key, size_key = f"{prefix}.attention.head_count_kv", f"{prefix}.attention.key_length"
    key_heads = source.integer(key_heads_key, minimum=1) if source.has(key_heads_key) else heads
    if source.has(size_key):
        head_dim = source.integer(size_key, minimum=1)
    elif width % heads:
        expected = f"metadata {size_key}, because {heads} heads do not divide a width of {width}"
        raise refusal(source.path, expected=expected, got="none")
    else:
        head_dim = width // heads
    value_key = f"{prefix}.attention.value_length"
    if source.has(value_key):
        source.integer(value_key, minimum=head_dim, maximum=head_dim)
    return Sizes(
        vocab_size=_vocab_size(source, prefix, width),
        width=width,
        layers=layers,
        hidden=source.integer(f"{prefix}.feed_forward_length", minimum=1),
        context=source.integer(f"{prefix}.context_length", minimum=1),
        heads=heads,
        key_heads=key_heads,
        head_dim=head_dim,
    )


def _vocab_size(source: GgufSource, prefix: str, width: int) -> int:
    """Return the rows of the token table, which the metadata must agree with."""
    table = source.tensors.get(TOKEN_TABLE)
    if table is None or len(table.shape) != 2:
        raise refusal(source.path, tensor=TOKEN_TABLE, expected=f"a table of {width} columns", got="none")
    rows = table.shape[0]
    if source.has(f"{prefix}.vocab_size"):
        source.integer(f"{prefix}.vocab_size", minimum=rows, maximum=rows)
    return rows


def _is_tied(source: GgufSource) -> bool:
    """Whether the head is the token table: there is none, or (older files of GPT-2) it is stored a second time."""
    if HEAD not in source.tensors or TOKEN_TABLE not in source.tensors:
        return True
    head, table = source.tensors[HEAD], source.tensors[TOKEN_TABLE]
    if (head.kind, head.shape) != (table.kind, table.shape):
        return False
    step = max(1, (1 << 22) // table.row_bytes)
    for first in range(0, table.shape[0], step):
        last = min(first + step, table.shape[0])
        if bytes(source.raw_rows(head, first, last)) != bytes(source.raw_rows(table, first, last)):
            return False
    return True


def _has(source: GgufSource, suffix: str) -> bool:
    """Whether the first block has the tensor; the check of all names finds blocks that differ."""
    return f"blk.0.{suffix}" in source.tensors


def _rotary_config(source: GgufSource, prefix: str, sizes: Sizes, tied: bool) -> dict[str, Any]:
    """The part of ``config.json`` that all architectures with rotary positions share."""
    dimensions = f"{prefix}.rope.dimension_count"
    if sizes.head_dim % 2:
        raise refusal(source.path, expected="heads of an even size", got=str(sizes.head_dim))
    if prefix == "llama" or source.has(dimensions):  # the specification requires it of llama alone
        source.integer(dimensions, minimum=sizes.head_dim, maximum=sizes.head_dim)
    theta = source.number(_theta_key(prefix)) if source.has(_theta_key(prefix)) else _DEFAULT_THETA
    return {
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.key_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": sizes.context,
        "rms_norm_eps": source.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": read_rope_scaling(source, prefix, sizes.head_dim, theta),
        "tie_word_embeddings": tied,
        "attention_dropout": 0.0,
    }


_Described = tuple[dict[str, Any], list[Placement]]


def _llama(source: GgufSource) -> _Described:
    """Llama and what shares its graph; Mistral where the file has a sliding window."""
    _check_keys(source, "llama", _COMMON_KEYS | _ROTARY_KEYS)
    sizes, tied = _sizes(source, "llama"), _is_tied(source)
    attention_bias, mlp_bias = _has(source, "attn_q.bias"), _has(source, "ffn_gate.bias")
    config = _rotary_config(source, "llama", sizes, tied)
    window = "llama.attention.sliding_window"
    if not source.has(window):
        config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        config |= {"attention_bias": attention_bias, "mlp_bias": mlp_bias}
    elif attention_bias or mlp_bias:
        raise source.refuse(window, "no sliding window beside biases", "both, which no architecture has")
    else:
        config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
        config |= {"sliding_window": source.integer(window, minimum=1)}
    biases = (("attn_q", "attn_k", "attn_v", "attn_output") if attention_bias else ()) + (
        ("ffn_gate", "ffn_up", "ffn_down") if mlp_bias else ()
    )
    return config, list(decoder_placements(sizes, tied, frozenset(biases), is_interleaved=True))


def _qwen2(source: GgufSource) -> _Described:
    _check_keys(source, "qwen2", _COMMON_KEYS | _ROTARY_KEYS - {"attention.sliding_window"})
    sizes, tied = _sizes(source, "qwen2"), _is_tied(source)
    config = _rotary_config(source, "qwen2", sizes, tied)
    config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    config |= {"use_sliding_window": False, "sliding_window": None}
    if config.pop("head_dim") * sizes.heads != sizes.width:
        expected = f"{sizes.width // sizes.heads}, the width over the heads"
        raise source.refuse("qwen2.attention.key_length", expected, str(sizes.head_dim))
    return config, list(decoder_placements(sizes, tied, frozenset({"attn_q", "attn_k", "attn_v"})))


def _qwen3(source: GgufSource) -> _Described:
    _check_keys(source, "qwen3", _COMMON_KEYS | _ROTARY_KEYS - {"attention.sliding_window"})
    sizes, tied = _sizes(source, "qwen3"), _is_tied(source)
    attention_bias = _has(source, "attn_q.bias")
    config = _rotary_config(source, "qwen3", sizes, tied)
    config |= {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": attention_bias}
    config |= {"use_sliding_window": False, "sliding_window": None}
    biases = frozenset({"attn_q", "attn_k", "attn_v", "attn_output"} if attention_bias else ())
    return config, list(decoder_placements(sizes, tied, biases, has_head_norms=True))


def _gpt2(source: GgufSource) -> _Described:
    _check_keys(source, "gpt2", _COMMON_KEYS | {"attention.layer_norm_epsilon"})
    sizes, tied = _sizes(source, "gpt2"), _is_tied(source)
    if (sizes.key_heads, sizes.head_dim * sizes.heads) != (sizes.heads, sizes.width):
        got = f"{sizes.heads} query heads, {sizes.key_heads} key heads of {sizes.head_dim}"
        raise refusal(source.path, expected=f"equal heads that make up the width {sizes.width}", got=got)
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": sizes.vocab_size,
        "n_positions": sizes.context,
        "n_embd": sizes.width,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
        "n_inner": sizes.hidden,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": source.number("gpt2.attention.layer_norm_epsilon"),
        "embd_pdrop": 0.0,  # the file knows of no dropout
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": tied,
    }
    return config, list(gpt2_placements(sizes, tied))


_ARCHITECTURES: MappingProxyType[str, Callable[[GgufSource], _Described]] = MappingProxyType(
    {"llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "gpt2": _gpt2}
)
