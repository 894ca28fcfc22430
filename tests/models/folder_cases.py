"""The model folders of the tests: configs as ``transformers`` knows them, and how each is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

GOLDEN = Path(__file__).parent / "golden"
#: Batch and length of the ids that are compared; longer than every window and than the pretraining length of scalings.
SHAPE = (2, 11)


@dataclass(frozen=True)
class FolderCase:
    """One model folder.

    Attributes:
        name: begins with the model type.
        fields: of the config class in ``transformers``.
        dtype: of the weights in the files.
        shards: number of files.
        dialect: of ``config.json``: where rotary parameters and the dtype stand.
        bare: saved from the model without its head, so that names have no prefix; only where the head is tied.
        is_golden: also a checked-in folder.
    """

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    shards: Literal[1, 3] = 1
    dialect: Literal[4, 5] = 5
    bare: bool = False
    is_golden: bool = False

    @property
    def model_type(self) -> str:
        """As in ``config.json``."""
        return self.name.partition("_")[0]

    @property
    def seed(self) -> int:
        """Of the weights and ids."""
        return int.from_bytes(self.name.encode(), "little") % 2**32


def _gpt2(name: str, *, fields: dict[str, Any] | None = None, **stored: Any) -> FolderCase:
    base = {"vocab_size": 37, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 2}
    return FolderCase(f"gpt2_{name}", base | _NO_IDS | (fields or {}), **stored)


def _llama(name: str, *, fields: dict[str, Any] | None = None, **stored: Any) -> FolderCase:
    return FolderCase(name, _BASE | _NO_IDS | (fields or {}), **stored)


_NO_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_BASE = {
    "vocab_size": 37,
    "hidden_size": 12,
    "intermediate_size": 14,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}
_MULTI_HEAD = {"num_key_value_heads": 2}
_TIED = {"tie_word_embeddings": True}
_THETA = {"rope_theta": 500.0, "rope_type": "default"}
_LINEAR = {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.5}
_LLAMA3 = {
    "rope_theta": 50.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
#: Three heads over two layers, sizes that are no multiples of anything, and a head size of its own.
_ODD = {
    "vocab_size": 41,
    "hidden_size": 15,
    "intermediate_size": 23,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 6,
}
_WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
_ALL_WINDOWS = _WINDOW | {"max_window_layers": 0}

FOLDER_CASES = (
    _gpt2("tied", is_golden=True, dialect=4),
    _gpt2("untied_three_shards", fields={"tie_word_embeddings": False, "n_inner": 20}, shards=3),
    _gpt2("bare_bfloat16", dtype="bfloat16", bare=True, is_golden=True),
    _gpt2("odd_relu_float16", fields={"vocab_size": 41, "n_embd": 15, "n_head": 3, "activation_function": "relu"},
          dtype="float16", dialect=4),
    _gpt2("scaled_by_layer", fields={"scale_attn_by_inverse_layer_idx": True, "n_layer": 3, "n_head": 3,
                                     "activation_function": "gelu"}),
    _gpt2("not_scaled_bare", fields={"scale_attn_weights": False, "activation_function": "silu"}, bare=True, shards=3),
    _gpt2("upcast_bfloat16", fields={"reorder_and_upcast_attn": True, "layer_norm_epsilon": 1e-3}, dtype="bfloat16"),
    _llama("llama_grouped", is_golden=True, dialect=4),
    _llama("llama_tied_llama3", fields=_TIED | {"rope_parameters": _LLAMA3}, shards=3, is_golden=True),
    _llama("llama_linear_bfloat16", fields=_MULTI_HEAD | {"rope_parameters": _LINEAR}, dtype="bfloat16", dialect=4),
    _llama("llama_biases_float16", fields={"attention_bias": True, "mlp_bias": True, "rope_parameters": _THETA},
           dtype="float16"),
    _llama("llama_odd", fields=_ODD | {"rms_norm_eps": 1e-3}),
    _llama("llama_old_llama3_three_shards", fields=_MULTI_HEAD | {"rope_parameters": _LLAMA3, "hidden_act": "gelu"},
           dialect=4, shards=3),
    _llama("llama_bare", fields=_TIED | {"attention_bias": True}, bare=True, dtype="bfloat16"),
    _llama("mistral_window", fields={"sliding_window": 4}, is_golden=True),
    _llama("mistral_without_window", fields={"sliding_window": None} | _MULTI_HEAD, dialect=4),
    _llama("mistral_tied_bfloat16", fields=_TIED | {"sliding_window": 7}, dtype="bfloat16", shards=3),
    _llama("mistral_odd", fields=_ODD | {"sliding_window": 1, "rope_parameters": _THETA}),
    _llama("mistral_theta_float16", fields={"sliding_window": 16, "rope_parameters": _THETA}, dtype="float16",
           dialect=4),
    _llama("mistral_linear_bare", fields=_TIED | {"sliding_window": 5, "rope_parameters": _LINEAR}, bare=True),
    _llama("qwen2_tied", fields=_TIED, is_golden=True, dialect=4),
    _llama("qwen2_untied_three_shards", fields=_MULTI_HEAD, shards=3),
    _llama("qwen2_some_windows", fields=_WINDOW),
    _llama("qwen2_old_windows_bfloat16", fields=_WINDOW | _TIED, dtype="bfloat16", dialect=4),
    _llama("qwen2_odd_all_windows", fields=_ODD | _ALL_WINDOWS | {"rope_parameters": _LINEAR}),
    _llama("qwen2_theta_float16", fields={"rope_parameters": _THETA} | _MULTI_HEAD, dtype="float16", dialect=4),
    _llama("qwen2_layer_types_bare", fields=_TIED | _WINDOW | {
        "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]
    }, bare=True),
    _llama("qwen3_tied", fields=_TIED | {"head_dim": 8}, is_golden=True),
    _llama("qwen3_untied_three_shards", fields=_MULTI_HEAD | {"head_dim": 4}, shards=3, dialect=4),
    _llama("qwen3_biases_bfloat16", fields={"attention_bias": True, "head_dim": 6}, dtype="bfloat16"),
    _llama("qwen3_odd_some_windows", fields=_ODD | _WINDOW),
    _llama("qwen3_llama3_float16", fields={"head_dim": 6, "rope_parameters": _LLAMA3}, dtype="float16", dialect=4),
    _llama("qwen3_bare_epsilon", fields=_TIED | {"head_dim": 10, "rms_norm_eps": 1e-2}, bare=True),
)  # fmt: skip
GOLDEN_CASES = [case for case in FOLDER_CASES if case.is_golden]
