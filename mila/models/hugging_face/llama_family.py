"""Llama in model folders, and the models that share its graph: Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mila.models.hugging_face.architecture import Architecture, InexpressibleError
from mila.models.hugging_face.fields import ACTIVATION, INTEGER, NUMBER, REQUIRED, TRUTH, Field, FieldReader
from mila.models.hugging_face.names import NameTable, StoredName, linear_names
from mila.models.hugging_face.rotary import read_rotary, write_rotary
from mila.models.llama import LlamaConfig, LlamaTransformer

_FULL, _SLIDING = "full_attention", "sliding_attention"
#: Layers with a window are listed one by one: a file that claims any number of them must not fill the memory.
_MOST_LAYERS = 100_000


def _sections(config: LlamaConfig) -> Mapping[str, Sequence[int]]:
    block = config.block_config(0)
    queries, keys = block.num_heads * block.head_size, block.num_kv_heads * block.head_size
    return {
        "block_{layer}.qkv_proj": (queries, keys, keys),
        "block_{layer}.mlp.fc_gate_up": (config.hidden_dim, config.hidden_dim),
    }


_ATTENTION, _MLP = "layers.{layer}.self_attn.", "layers.{layer}.mlp."
_QKV = (f"{_ATTENTION}q_proj", f"{_ATTENTION}k_proj", f"{_ATTENTION}v_proj")
_NAMES = NameTable(
    stored=(
        StoredName("embedding.wte", (("embed_tokens.weight",),)),
        StoredName("block_{layer}.norm_1.weight", (("layers.{layer}.input_layernorm.weight",),)),
        *linear_names("block_{layer}.qkv_proj", *_QKV, fused=f"{_ATTENTION}qkv_proj"),
        StoredName("block_{layer}.qk_norm.query_weight", ((f"{_ATTENTION}q_norm.weight",),)),
        StoredName("block_{layer}.qk_norm.key_weight", ((f"{_ATTENTION}k_norm.weight",),)),
        *linear_names("block_{layer}.out_proj", f"{_ATTENTION}o_proj"),
        StoredName("block_{layer}.norm_2.weight", (("layers.{layer}.post_attention_layernorm.weight",),)),
        *linear_names(
            "block_{layer}.mlp.fc_gate_up", f"{_MLP}gate_proj", f"{_MLP}up_proj", fused=f"{_MLP}gate_up_proj"
        ),
        *linear_names("block_{layer}.mlp.fc_down", f"{_MLP}down_proj"),
        StoredName("norm_f.weight", (("norm.weight",),)),
        StoredName("lm_head.weight", (("lm_head.weight",),), prefixed=False),
    ),
    prefix="model.",
    ignored=(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
    sections=_sections,
)


def _fields(kv_heads: Any, head_dim: Any) -> tuple[Field, ...]:
    return (
        Field("vocab_size", "vocab_size", INTEGER),
        Field("max_position_embeddings", "max_seq_len", INTEGER),
        Field("hidden_size", "embedding_dim", INTEGER),
        Field("intermediate_size", "hidden_dim", INTEGER),
        Field("num_hidden_layers", "num_layers", INTEGER),
        Field("num_attention_heads", "num_heads", INTEGER),
        Field("num_key_value_heads", "num_kv_heads", INTEGER, kv_heads, nullable=True),
        Field("head_dim", "head_dim", INTEGER, head_dim),
        Field("hidden_act", "gate_activation", ACTIVATION),
        Field("rms_norm_eps", "norm_epsilon", NUMBER),
        Field("tie_word_embeddings", "tie_word_embeddings", TRUTH, False),
    )


def _read_windows(reader: FieldReader) -> dict[str, Any]:
    """``sliding_window`` and ``sliding_layers`` of Qwen2 and Qwen3."""
    is_used = reader.read("use_sliding_window", TRUTH, REQUIRED if reader.raw.get("sliding_window") else False)
    window = reader.read("sliding_window", INTEGER, REQUIRED if is_used else None, nullable=True)
    window = window if is_used else None
    types, layers = reader.take("layer_types"), reader.take("num_hidden_layers")
    first = reader.read("max_window_layers", INTEGER, None if window is None or types is not None else REQUIRED)
    if first is not None and first < 0:
        reader.problems.append(f"max_window_layers: expected at least 0, got {first}")
    if not isinstance(layers, int):
        return {}
    if layers > _MOST_LAYERS:
        reader.problems.append(f"num_hidden_layers: expected at most {_MOST_LAYERS}, got {layers}")
        return {}
    if types is None:
        return _windows(window, range(min(first or 0, layers), layers))
    if not isinstance(types, list) or len(types) != layers or any(each not in (_FULL, _SLIDING) for each in types):
        reader.problems.append(f"layer_types: expected {layers} times {_FULL} or {_SLIDING}, got {types!r}")
        return {}
    sliding = [layer for layer, each in enumerate(types) if each == _SLIDING]
    if sliding and window is None:
        reader.problems.append(
            f"layer_types: expected {_FULL} only, as use_sliding_window or sliding_window say, got {_SLIDING}"
        )
    return _windows(window, sliding)


def _windows(window: int | None, layers: Sequence[int]) -> dict[str, Any]:
    if window is None or not layers:
        return {"sliding_window": None}
    return {"sliding_window": window, "sliding_layers": tuple(layers)}


def _write_windows(config: LlamaConfig) -> dict[str, Any]:
    sliding = range(config.num_layers) if config.sliding_layers is None else config.sliding_layers
    has_window = config.sliding_window is not None
    first = min(sliding, default=config.num_layers) if has_window else config.num_layers
    types = [_SLIDING if has_window and layer in sliding else _FULL for layer in range(config.num_layers)]
    return {
        "use_sliding_window": has_window,
        "sliding_window": config.sliding_window,
        "max_window_layers": first,
        "layer_types": types,
    }


def _llama_read(reader: FieldReader) -> dict[str, Any]:
    bias = reader.read("attention_bias", TRUTH, False)
    mlp_bias = reader.read("mlp_bias", TRUTH, False)
    rotary = read_rotary(reader, may_lack_theta=True)
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": mlp_bias, **rotary}


def _mistral_read(reader: FieldReader) -> dict[str, Any]:
    window = reader.read("sliding_window", INTEGER, nullable=True)
    return {"sliding_window": window, **read_rotary(reader)}


def _qwen2_read(reader: FieldReader) -> dict[str, Any]:
    return {"qkv_bias": True, **_read_windows(reader), **read_rotary(reader)}


def _qwen3_read(reader: FieldReader) -> dict[str, Any]:
    bias = reader.read("attention_bias", TRUTH, False)
    windows = _read_windows(reader)
    return {"qkv_bias": bias, "out_bias": bias, "qk_norm": True, **windows, **read_rotary(reader)}


def _need(config: LlamaConfig, **expected: Any) -> None:
    """Raise where a config has other values than the only ones that an architecture knows."""
    for name, value in expected.items():
        if getattr(config, name) != value:
            raise InexpressibleError(f"{name}={getattr(config, name)!r}")


def _common_fields(config: LlamaConfig) -> dict[str, Any]:
    block = config.block_config(0)
    heads = {"num_key_value_heads": block.num_kv_heads, "head_dim": block.head_size}
    return heads | write_rotary(config.rope_theta, config.rope_scaling)


def _llama_write(config: LlamaConfig) -> dict[str, Any]:
    _need(config, sliding_window=None, qk_norm=False, out_bias=config.qkv_bias)
    if config.embedding_dim % config.num_heads:
        raise InexpressibleError(f"embedding_dim {config.embedding_dim} with {config.num_heads} heads")
    return {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias, **_common_fields(config)}


def _mistral_write(config: LlamaConfig) -> dict[str, Any]:
    _need(config, qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm=False)
    if config.sliding_window is not None and config.sliding_layers not in (None, tuple(range(config.num_layers))):
        raise InexpressibleError(f"sliding_layers={config.sliding_layers}")
    return {"sliding_window": config.sliding_window, **_common_fields(config)}


def _qwen2_write(config: LlamaConfig) -> dict[str, Any]:
    _need(config, qkv_bias=True, out_bias=False, mlp_bias=False, qk_norm=False)
    return {**_write_windows(config), **_common_fields(config)}


def _qwen3_write(config: LlamaConfig) -> dict[str, Any]:
    _need(config, out_bias=config.qkv_bias, mlp_bias=False, qk_norm=True)
    return {"attention_bias": config.qkv_bias, **_write_windows(config), **_common_fields(config)}


def _member(
    model_type: str,
    family: str,
    read: Callable[[FieldReader], dict[str, Any]],
    write: Callable[[Any], dict[str, Any]],
    *,
    kv_heads: Any = REQUIRED,
    head_dim: Any = None,
    fixed: Mapping[str, tuple[Any, ...]] | None = None,
) -> Architecture:
    return Architecture(
        model_type=model_type,
        class_name=f"{family}ForCausalLM",
        base_class_name=f"{family}Model",
        config_class=LlamaConfig,
        network_class=LlamaTransformer,
        fields=_fields(kv_heads, head_dim),
        fixed={"rope_interleaved": (False, None), **(fixed or {})},
        dropouts=("attention_dropout",),
        dropout_fields=(),
        read=read,
        write=write,
        names=_NAMES,
    )


LLAMA = _member("llama", "Llama", _llama_read, _llama_write, kv_heads=None)
_NO_BIASES = {"attention_bias": (False, None), "mlp_bias": (False, None)}
MISTRAL = _member("mistral", "Mistral", _mistral_read, _mistral_write, fixed=_NO_BIASES)
QWEN2 = _member(
    "qwen2",
    "Qwen2",
    _qwen2_read,
    _qwen2_write,
    fixed={"attention_bias": (True, None), "mlp_bias": (False, None), "use_mrope": (False, None)},
)
QWEN3 = _member(
    "qwen3",
    "Qwen3",
    _qwen3_read,
    _qwen3_write,
    head_dim=REQUIRED,
    fixed={"mlp_bias": (False, None)},
)
