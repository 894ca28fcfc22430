"""Reading ``config.json``: both dialects, real configs, and everything that is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mila.components.rope_scaling import LinearScaling, Llama3Scaling
from mila.errors import CheckpointError, ConfigurationError
from mila.models import LlamaConfig, ModelFolder, read_model_folder
from mila.models.hugging_face.folder import ARCHITECTURES
from mila.models.hugging_face.harmless_fields import HARMLESS_FIELDS
from mila.serialization import ArchiveMode, ModelArchive
from tests.models.real_configs import (
    GPT2,
    LLAMA_2_7B,
    LLAMA_3_1_8B,
    MISTRAL_7B_V0_1,
    QWEN2_0_5B,
    QWEN3_0_6B,
    REAL_CONFIGS,
    TINYLLAMA,
)
from tests.serialization.privileges import as_ordinary_user

Fields = dict[str, Any]
REMOVED = object()


def read(folder: Path, fields: Fields, changes: Fields | None = None, **options: Any) -> ModelFolder:
    """Read a folder whose config has these fields, and nothing else."""
    merged = {key: value for key, value in (fields | (changes or {})).items() if value is not REMOVED}
    (folder / "config.json").write_text(json.dumps(merged))
    return read_model_folder(folder, **options)


@pytest.mark.parametrize(("fields", "count"), REAL_CONFIGS.values(), ids=REAL_CONFIGS)
def test_real_configs_are_read(tmp_path: Path, fields: Fields, count: int) -> None:
    folder = read(tmp_path, fields)
    assert folder.network().parameter_count() == count


@pytest.mark.parametrize("fields", [fields for fields, _ in REAL_CONFIGS.values()], ids=REAL_CONFIGS)
def test_a_config_is_expressed_as_it_was_read(tmp_path: Path, fields: Fields) -> None:
    folder = read(tmp_path, fields)
    written = folder.architecture.express(folder.config)
    again = read(tmp_path, written)
    assert folder.architecture.express(again.config) == written
    assert again.notes == ()


def test_llama3_scaling_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, LLAMA_3_1_8B).config
    assert isinstance(config, LlamaConfig)
    assert config.rope_theta == 500000.0
    assert config.rope_scaling == Llama3Scaling(
        factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_seq_len=8192
    )


NEW_DIALECT = {"rope_theta": REMOVED, "rope_scaling": REMOVED, "torch_dtype": REMOVED, "dtype": "bfloat16"}
LLAMA3: Fields = LLAMA_3_1_8B["rope_scaling"]  # type: ignore[assignment]
LINEAR = {"rope_type": "linear", "factor": 4}
BOTH_TYPES = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}} | {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e6}
}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            {"rope_theta": 500000.0, "rope_scaling": LLAMA_3_1_8B["rope_scaling"]},
            {"rope_parameters": LLAMA_3_1_8B["rope_scaling"] | {"rope_theta": 500000.0}},  # type: ignore[operator]
        ),
        ({"rope_theta": 7, "rope_scaling": LINEAR}, {"rope_parameters": LINEAR | {"rope_theta": 7.0}}),
        ({"rope_theta": 7, "rope_scaling": {"type": "linear", "factor": 4}},
         {"rope_parameters": LINEAR | {"rope_theta": 7}}),
        ({"rope_theta": 1e6, "rope_scaling": None}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        ({"rope_theta": 1e6}, {"rope_parameters": {"rope_theta": 1000000}}),
        ({"rope_theta": 1e6}, {"rope_parameters": BOTH_TYPES}),
    ],
)  # fmt: skip
def test_both_dialects_say_the_same(tmp_path: Path, old: Fields, new: Fields) -> None:
    assert read(tmp_path, TINYLLAMA, old).config == read(tmp_path, TINYLLAMA, NEW_DIALECT | new).config


def test_what_says_the_same_twice_is_accepted(tmp_path: Path) -> None:
    twice = {"rope_scaling": LINEAR, "rope_parameters": LINEAR | {"rope_theta": 1e4}, "dtype": "bfloat16"}
    config = read(tmp_path, TINYLLAMA, twice).config
    assert isinstance(config, LlamaConfig)
    assert config.rope_scaling == LinearScaling(factor=4.0)


def test_the_theta_from_before_there_was_one_is_told(tmp_path: Path) -> None:
    (note,) = read(tmp_path, LLAMA_2_7B).notes
    assert "no rope_theta" in note
    assert "10000" in note


REFUSED: list[tuple[Fields, Fields, str]] = [
    (GPT2, {"model_type": "gpt_neox"}, "expected one of the model types gpt2, llama, mistral, qwen2, qwen3, got 'gpt"),
    (GPT2, {"model_type": REMOVED}, "missing model_type: expected one of"),
    (GPT2, {"n_embd": REMOVED}, "missing n_embd: expected an integer"),
    (GPT2, {"layer_norm_epsilon": REMOVED}, "missing layer_norm_epsilon"),
    (GPT2, {"n_head": 12.0}, "n_head: expected an integer, got 12.0"),
    (GPT2, {"n_layer": True}, "n_layer: expected an integer, got True"),
    (GPT2, {"n_layer": None}, "n_layer: expected an integer, got None"),
    (GPT2, {"n_head": 7}, "n_head 7 must divide n_embd 768"),
    (GPT2, {"n_embd": 0}, "json: n_embd: expected greater than 0, got 0"),
    (GPT2, {"initializer_range": -1}, "json: initializer_range: expected greater than 0, got -1.0"),
    (GPT2, {"n_inner": -4}, "json: n_inner: expected greater than 0, got -4"),
    (GPT2, {"attn_pdrop": 1.5}, "attn_pdrop: expected a probability, got 1.5"),
    (GPT2, {"embd_pdrop": -1}, "embd_pdrop: expected a probability, got -1.0"),
    (GPT2, {"architectures": ["GPT2DoubleHeadsModel"]}, "architectures: expected GPT2LMHeadModel or GPT2Model, got"),
    (GPT2, {"torch_dtype": "int8"}, "torch_dtype: expected one of float32, bfloat16, float16, float64, torch.float32"),
    (GPT2, {"activation_function": "relu2"}, "activation_function: expected one of gelu_new"),
    (GPT2, {"add_cross_attention": True}, "add_cross_attention: expected False"),
    (GPT2, {"is_encoder_decoder": True}, "is_encoder_decoder: expected False"),
    (GPT2, {"pruned_heads": {"0": [1]}}, "pruned_heads: expected {}"),
    (GPT2, {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    (GPT2, {"scale_attn_weights": 1}, "scale_attn_weights: expected true or false, got 1"),
    (GPT2, {"quantization_config": {"quant_method": "gptq"}}, "quantization_config: expected None"),
    (GPT2, {"rope_theta": 1e4}, "rope_theta = 10000.0 is not known and may change the result"),
    (TINYLLAMA, {"hidden_size": 0}, "json: hidden_size: expected greater than 0, got 0"),
    (TINYLLAMA, {"num_hidden_layers": -1}, "json: num_hidden_layers: expected greater than or equal to 0, got -1"),
    (TINYLLAMA, {"rms_norm_eps": -1}, "json: rms_norm_eps: expected greater than 0, got -1.0"),
    (TINYLLAMA, {"max_position_embeddings": 0}, "json: max_position_embeddings: expected greater than 0, got 0"),
    (TINYLLAMA, {"num_key_value_heads": 5}, "json: num_key_value_heads 5 must divide num_attention_heads 32"),
    (TINYLLAMA, {"num_attention_heads": 7, "num_key_value_heads": 7},
     "json: num_attention_heads 7 must divide hidden_size 2048, or give head_dim"),
    (TINYLLAMA, {"head_dim": 5}, "json: head_dim must be even"),
    (TINYLLAMA, {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
     "rope_scaling: high_freq_factor must be greater than low_freq_factor 1.0"),
    (TINYLLAMA, {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0}},
     "rope_scaling: original_max_position_embeddings: expected greater than 0, got 0"),
    *((TINYLLAMA, {"architectures": names}, "architectures: expected a list of names")
      for names in list[Any]([3, "X", [1], {}])),
    (TINYLLAMA, {"architectures": ["LlamaForSequenceClassification"]},
     "expected LlamaForCausalLM or LlamaModel, got 'LlamaForSequenceClassification'"),
    (TINYLLAMA, {"architectures": ["LlamaForCausalLM", "X"]}, "expected LlamaForCausalLM or LlamaModel, got 'X'"),
    (TINYLLAMA, {"torch_dtype": 3}, "torch_dtype: expected the name of a dtype, got 3"),
    (TINYLLAMA, {"torch_dtype": ""}, "torch_dtype: expected one of"),
    (TINYLLAMA, {"torch_dtype": REMOVED, "dtype": "float8_e4m3fn"}, "json: dtype: expected one of"),
    (TINYLLAMA, {"logit_scale": 8.0}, "logit_scale = 8.0 is not known and may change the result; if it does not, pass "
     "ignore_fields=['logit_scale']"),
    (TINYLLAMA, {"auto_map": {"AutoModelForCausalLM": "modeling.Llama"}}, "auto_map"),
    (TINYLLAMA, {"sliding_window": 4096}, "sliding_window = 4096 is not known"),
    (TINYLLAMA, {"hidden_act": "relu2"}, "hidden_act: expected one of"),
    (TINYLLAMA, {"rope_interleaved": True}, "rope_interleaved: expected False or None, got True"),
    (TINYLLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1 or None, got 0.5"),
    (TINYLLAMA, {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "rope_parameters: partial"),
    (TINYLLAMA, {"rope_theta": "10000"}, "rope_theta: expected a number, got '10000'"),
    (TINYLLAMA, {"rope_theta": 0}, "rope_theta"),
    *((TINYLLAMA, {"rope_scaling": {"rope_type": kind, "factor": 2.0}},
       f"rope_scaling: expected one of the rotary types default, linear, llama3, got '{kind}'")
      for kind in ("dynamic", "yarn", "longrope", "su", "mrope")),
    (TINYLLAMA, {"rope_scaling": {"factor": 2.0}}, "rope_scaling: factor = 2.0 has no meaning for type 'default'"),
    (TINYLLAMA, {"rope_scaling": {"type": "linear"}}, "rope_scaling: missing factor"),
    (TINYLLAMA, {"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2}}, "type and rope_type"),
    (TINYLLAMA, {"rope_scaling": LINEAR | {"attention_factor": 2}}, "attention_factor = 2 has no meaning"),
    (TINYLLAMA, {"rope_scaling": LINEAR | {"factor": -1}}, "rope_scaling: factor"),
    (TINYLLAMA, {"rope_scaling": 4}, "rope_scaling: expected an object"),
    (TINYLLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "missing original_max_position_embeddings"),
    (TINYLLAMA, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
     "two values: rope_theta = 10000.0, rope_parameters.rope_theta = 500000.0"),
    (TINYLLAMA, {"rope_scaling": LINEAR, "rope_parameters": LINEAR | {"factor": 2}}, "contradict each other"),
    (TINYLLAMA, {"dtype": "float16"}, "two values: dtype = float16, torch_dtype = bfloat16"),
    (TINYLLAMA, {"rope_parameters": BOTH_TYPES | {"full_attention": {"rope_theta": 5.0}}}, "the same parameters for"),
    (TINYLLAMA, {"rope_parameters": BOTH_TYPES | {"full_attention": None}}, "the same parameters for"),
    (TINYLLAMA, NEW_DIALECT | {"rope_parameters": {"rope_type": "default"}}, "missing rope_theta"),
    (MISTRAL_7B_V0_1, {"rope_theta": REMOVED}, "missing rope_theta"),
    (MISTRAL_7B_V0_1, {"num_key_value_heads": REMOVED}, "missing num_key_value_heads"),
    (MISTRAL_7B_V0_1, {"sliding_window": REMOVED}, "missing sliding_window"),
    (MISTRAL_7B_V0_1, {"attention_bias": True}, "attention_bias: expected False"),
    (QWEN2_0_5B, {"use_sliding_window": REMOVED}, "missing use_sliding_window"),
    (QWEN2_0_5B, {"use_sliding_window": True, "max_window_layers": REMOVED}, "missing max_window_layers"),
    (QWEN2_0_5B, {"use_sliding_window": True, "sliding_window": REMOVED}, "missing sliding_window"),
    (QWEN2_0_5B, {"use_sliding_window": True, "num_hidden_layers": 10**30}, "num_hidden_layers: expected at most 1"),
    (QWEN2_0_5B, {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers: expected at least 0"),
    (QWEN2_0_5B, {"use_mrope": True}, "use_mrope"),
    (QWEN2_0_5B, {"layer_types": ["full_attention"]}, "layer_types: expected 24 times"),
    (QWEN2_0_5B, {"layer_types": ["chunked_attention"] * 24}, "layer_types: expected 24 times"),
    (QWEN2_0_5B, {"layer_types": ["sliding_attention"] * 24}, "layer_types: expected full_attention only"),
    (QWEN2_0_5B, {"is_causal": False}, "is_causal: expected True"),
    (QWEN3_0_6B, {"head_dim": REMOVED}, "missing head_dim"),
    (QWEN3_0_6B, {"head_dim": None}, "head_dim: expected an integer, got None"),
    (QWEN3_0_6B, {"mlp_bias": True}, "mlp_bias: expected False"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "changes", "message"), REFUSED, ids=[message[:40] for *_, message in REFUSED])
def test_what_cannot_be_computed_is_refused_by_name(
    tmp_path: Path, fields: Fields, changes: Fields, message: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, fields, changes)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")
    assert "\n" not in str(caught.value)


JUNK: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        1.5,
        1e300,
        10**30,
        "",
        "x",
        "linear",
        [],
        [1],
        ["x"],
        [{}],
        {},
        {"a": 1},
        {"a": {}},
    ),
    *({"type": ["linear"]}, {"rope_type": {}, "factor": []}, {"type": "linear", "factor": "x"}, {"rope_theta": {}}),
)


@pytest.mark.parametrize("fields", [GPT2, LLAMA_3_1_8B, MISTRAL_7B_V0_1, QWEN2_0_5B, QWEN3_0_6B])
def test_whatever_a_field_holds_is_read_or_refused(tmp_path: Path, fields: Fields) -> None:
    """No value is met by anything but a config or one error that names the file."""
    small = {key: 4 for key in fields if key in ("n_layer", "num_hidden_layers", "max_window_layers")}
    for key in [
        *fields,
        "rope_parameters",
        "partial_rotary_factor",
        "layer_types",
        "use_sliding_window",
        "pruned_heads",
    ]:
        for value in JUNK:
            try:
                read(tmp_path, fields, small | {key: value})
            except CheckpointError as error:
                assert str(tmp_path) in str(error)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    changes = {
        "hidden_size": REMOVED,
        "rope_scaling": {"type": "yarn"},
        "logit_scale": 2,
        "hidden_act": "x",
        "mlp_bias": 3,
    }
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, TINYLLAMA, changes)
    for name in ("hidden_size", "yarn", "logit_scale", "hidden_act", "mlp_bias"):
        assert name in str(caught.value)


def test_unknown_fields_may_be_ignored_or_empty(tmp_path: Path) -> None:
    folder = read(tmp_path, TINYLLAMA, {"logit_scale": 8.0, "surprise": None}, ignore_fields=["logit_scale"])
    assert folder.config == read(tmp_path, TINYLLAMA).config
    assert read(tmp_path, GPT2, {"add_cross_attention": None}).config == read(tmp_path, GPT2).config
    with pytest.raises(CheckpointError, match="hidden_act"):
        read(tmp_path, TINYLLAMA, {"hidden_act": 3}, ignore_fields=["hidden_act"])


def test_windows_of_some_layers(tmp_path: Path) -> None:
    used: Fields = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 21}
    types = ["full_attention"] * 21 + ["sliding_attention"] * 3
    last_three: list[Fields] = [used, used | {"layer_types": types}]
    last_three.append(used | {"layer_types": types, "max_window_layers": REMOVED})
    for changes in last_three:
        config = read(tmp_path, QWEN2_0_5B, changes).config
        assert isinstance(config, LlamaConfig)
        assert (config.sliding_window, config.sliding_layers) == (64, (21, 22, 23))
    nowhere: list[Fields] = [{}, used | {"max_window_layers": 24}, used | {"sliding_window": None}]
    for changes in nowhere:
        config = read(tmp_path, QWEN2_0_5B, changes).config
        assert isinstance(config, LlamaConfig)
        assert (config.sliding_window, config.sliding_layers) == (None, None)


@pytest.mark.parametrize("names", [None, [], ["LlamaForCausalLM"], ["LlamaModel"]])
def test_classes_with_the_same_graph_are_read(tmp_path: Path, names: list[str] | None) -> None:
    assert read(tmp_path, TINYLLAMA, {"architectures": names}).config == read(tmp_path, TINYLLAMA).config


@pytest.mark.parametrize(
    ("fields", "key", "values"),
    [
        (GPT2, "n_inner", (None, REMOVED, 3072)),
        (TINYLLAMA, "head_dim", (None, REMOVED, 64)),
        (LLAMA_2_7B, "num_key_value_heads", (None, REMOVED, 32)),
        (GPT2, "tie_word_embeddings", (REMOVED, True)),
        (TINYLLAMA, "tie_word_embeddings", (REMOVED, False)),
    ],
)
def test_documented_defaults(tmp_path: Path, fields: Fields, key: str, values: tuple[Any, ...]) -> None:
    counts = {read(tmp_path, fields, {key: value}).network().parameter_count() for value in values}
    assert len(counts) == 1


def test_dropout_is_what_the_caller_says(tmp_path: Path) -> None:
    assert read(tmp_path, GPT2).config.model_dump()["dropout"] == 0.0
    assert read(tmp_path, GPT2, dropout=0.2).config.model_dump()["dropout"] == 0.2
    assert dict(read(tmp_path, GPT2).dropouts) == {"embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.1}
    with pytest.raises(ConfigurationError, match="has no dropout"):
        read(tmp_path, TINYLLAMA, dropout=0.2)
    assert read(tmp_path, TINYLLAMA, dropout=0.0).config == read(tmp_path, TINYLLAMA).config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "config.json"),
        (b'{"model_type": "gpt2", "model_type": "llama"}', "twice"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "LFS"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b'["gpt2"]', "config.json"),
        (
            b'\xef\xbb\xbf{"model_type": "gpt2"}',
            "got a byte order mark before the text; save the file as UTF-8",
        ),
        ('{"model_type": "gpt2"}'.encode("utf-16"), "got text in UTF-16 with a byte order mark"),
    ],
)
def test_what_is_no_config_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_model_folder(tmp_path)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a model folder with config\.json, got nothing; Mila"):
        read_model_folder(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"got a folder without$"):
        read_model_folder(tmp_path)
    checkpoint = tmp_path / "run" / "step-00000001"
    checkpoint.parent.mkdir()
    ModelArchive.create(checkpoint, ArchiveMode.CHECKPOINT, 1).close()
    for path in (checkpoint, checkpoint.parent):
        with pytest.raises(CheckpointError, match="got a folder without; what `mila train` wrote is for `mila sample`"):
            read_model_folder(path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for path, got in ((tmp_path / "model.gguf", "a file"), (tmp_path, "a folder without")):
        with pytest.raises(CheckpointError, match=f"got {got}; convert it with: mila import FILE NEW_FOLDER"):
            read_model_folder(path)


def test_a_folder_that_may_not_be_entered_is_named_with_the_reason() -> None:
    with as_ordinary_user() as folder:
        (folder / "model").mkdir()
        (folder / "model").chmod(0)
        with pytest.raises(CheckpointError, match="model: could not be read: Permission denied"):
            read_model_folder(folder / "model")


@pytest.mark.parity
def test_every_field_that_transformers_writes_is_known(tmp_path: Path) -> None:
    """Of every architecture, and whatever all configs share: with the defaults, nothing is unknown."""
    transformers = pytest.importorskip("transformers")
    shared = transformers.PreTrainedConfig().to_dict().keys()
    generation = transformers.GenerationConfig._get_default_generation_params().keys()
    assert (shared | generation) - HARMLESS_FIELDS <= {"model_type", "is_encoder_decoder", "architectures", "dtype"}
    for model_type in ARCHITECTURES:
        config = transformers.AutoConfig.for_model(model_type)
        for fields in (config.to_dict(), config.to_diff_dict()):
            assert read(tmp_path, {"dtype": None} | fields | {"model_type": model_type}).model_type == model_type
