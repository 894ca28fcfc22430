"""GPT-2 in model folders."""

from __future__ import annotations

from typing import Any

from mila.models.gpt import GptConfig, GptTransformer
from mila.models.hugging_face.architecture import Architecture, InexpressibleError
from mila.models.hugging_face.fields import ACTIVATION, INTEGER, NUMBER, TRUTH, Field, FieldReader
from mila.models.hugging_face.names import NameTable, StoredName, linear_names

_SCALINGS = {(True, False): "head_dim", (False, False): "none", (True, True): "head_dim_and_layer"}


def _read(reader: FieldReader) -> dict[str, Any]:
    weights = reader.read("scale_attn_weights", TRUTH, True)
    layers = reader.read("scale_attn_by_inverse_layer_idx", TRUTH, False)
    if (weights, layers) == (False, True):
        reader.problems.append(
            "scale_attn_by_inverse_layer_idx: expected False where scale_attn_weights is False, got True, "
            "which Mila does not compute"
        )
    return {"attention_scaling": _SCALINGS.get((weights, layers), "head_dim")}


def _write(config: GptConfig) -> dict[str, Any]:
    if not config.bias:
        raise InexpressibleError("bias=False")
    weights, layers = next(key for key, meaning in _SCALINGS.items() if meaning == config.attention_scaling)
    return {
        "scale_attn_weights": weights,
        "scale_attn_by_inverse_layer_idx": layers,
        "n_ctx": config.max_seq_len,
    }


GPT2 = Architecture(
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    base_class_name="GPT2Model",
    config_class=GptConfig,
    network_class=GptTransformer,
    fields=(
        Field("vocab_size", "vocab_size", INTEGER),
        Field("n_positions", "max_seq_len", INTEGER),
        Field("n_embd", "embedding_dim", INTEGER),
        Field("n_layer", "num_layers", INTEGER),
        Field("n_head", "num_heads", INTEGER),
        Field("n_inner", "hidden_dim", INTEGER, None),
        Field("activation_function", "activation", ACTIVATION, "gelu_tanh"),
        Field("layer_norm_epsilon", "norm_epsilon", NUMBER),
        Field("initializer_range", "initial_std", NUMBER, 0.02),
        Field("tie_word_embeddings", "tie_word_embeddings", TRUTH, True),
    ),
    fixed={},
    dropouts=("embd_pdrop", "resid_pdrop", "attn_pdrop"),
    dropout_fields=("embd_pdrop", "resid_pdrop"),
    read=_read,
    write=_write,
    names=NameTable(
        stored=(
            StoredName("embedding.wte", (("wte.weight",),)),
            StoredName("positions.wpe", (("wpe.weight",),)),
            *linear_names("block_{layer}.ln_1", "h.{layer}.ln_1"),
            *linear_names("block_{layer}.qkv_proj", "h.{layer}.attn.c_attn", transposed=True),
            *linear_names("block_{layer}.out_proj", "h.{layer}.attn.c_proj", transposed=True),
            *linear_names("block_{layer}.ln_2", "h.{layer}.ln_2"),
            *linear_names("block_{layer}.mlp.fc_1", "h.{layer}.mlp.c_fc", transposed=True),
            *linear_names("block_{layer}.mlp.fc_2", "h.{layer}.mlp.c_proj", transposed=True),
            *linear_names("ln_f", "ln_f"),
            StoredName("lm_head.weight", (("lm_head.weight",),), prefixed=False),
        ),
        prefix="transformer.",
        ignored=(r"h\.\d+\.attn\.(bias|masked_bias)",),
        sections=lambda config: {},
    ),
)
