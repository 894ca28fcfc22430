"""CLIP folders: what their config says, what is wrong with them, and what an export takes along."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mila
from mila import BuildContext, RuntimeMode
from mila.errors import CheckpointError, ConfigurationError, LifecycleError, ShapeError
from mila.models import (
    ClipTextConfig,
    ClipTextEncoder,
    ClipTextFolder,
    export_pretrained,
    read_clip_text_folder,
    read_model_folder,
)
from mila.models.hugging_face.clip_config import clip_fields
from tests.models.clip_cases import CLIP_GOLDEN, SHAPE, T
from tests.models.clip_running import Tensors, clip_contents, clip_notes, edited_clip, load_clip
from tests.models.folder_cases import GOLDEN

Fields = dict[str, Any]
REMOVED = object()

#: The text encoder of Stable Diffusion 1, written by an early version.
STABLE_DIFFUSION: Fields = {
    "_name_or_path": "openai/clip-vit-large-patch14",
    "architectures": ["CLIPTextModel"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "dropout": 0.0,
    "eos_token_id": 2,
    "hidden_act": "quick_gelu",
    "hidden_size": 768,
    "initializer_factor": 1.0,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 77,
    "model_type": "clip_text_model",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "projection_dim": 768,
    "torch_dtype": "float32",
    "transformers_version": "4.22.0.dev0",
    "vocab_size": 49408,
}
#: The second text encoder of Stable Diffusion XL.
STABLE_DIFFUSION_XL: Fields = STABLE_DIFFUSION | {
    "architectures": ["CLIPTextModelWithProjection"],
    "hidden_act": "gelu",
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_attention_heads": 20,
    "num_hidden_layers": 32,
    "projection_dim": 1280,
    "torch_dtype": "float16",
}
#: A whole model whose parts say what differs from the defaults, and all that any model says.
WHOLE: Fields = {
    "architectures": ["CLIPModel"],
    "initializer_factor": 1.0,
    "logit_scale_init_value": 2.6592,
    "model_type": "clip",
    "projection_dim": 512,
    "text_config": {
        "add_cross_attention": False,
        "architectures": None,
        "bos_token_id": 0,
        "chunk_size_feed_forward": 0,
        "dropout": 0.0,
        "eos_token_id": 2,
        "id2label": {"0": "LABEL_0"},
        "is_decoder": False,
        "is_encoder_decoder": False,
        "model_type": "clip_text_model",
        "pruned_heads": {},
        "return_dict": True,
        "tie_word_embeddings": True,
        "top_k": 50,
        "torch_dtype": None,
        "torchscript": False,
    },
    "text_config_dict": None,
    "torch_dtype": "float32",
    "transformers_version": None,
    "vision_config": {"model_type": "clip_vision_model", "patch_size": 32},
    "vision_config_dict": None,
}
PUBLISHED = {
    "text": (STABLE_DIFFUSION, 123_060_480),
    "projected": (STABLE_DIFFUSION_XL, 694_659_840),
    "whole": (WHOLE, 63_428_096),
}


def read(folder: Path, fields: Fields, changes: Fields | None = None, **options: Any) -> ClipTextFolder:
    """Read a folder whose config has these fields, and nothing else."""
    merged = {key: value for key, value in (fields | (changes or {})).items() if value is not REMOVED}
    (folder / "config.json").write_text(json.dumps(merged))
    return read_clip_text_folder(folder, **options)


# ---------------------------------------------------------------------- config.json


@pytest.mark.parametrize(("fields", "count"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_configs_are_read(fields: Fields, count: int, tmp_path: Path) -> None:
    found = read(tmp_path, fields)
    network = found.network()
    assert (network.parameter_count(), found.config.end_of_text_id, found.notes) == (count, None, ())
    assert network.plan(BuildContext((2, 77), RuntimeMode.INFERENCE)).reserved_bytes > 4 * count
    again = read(tmp_path, clip_fields(found.config, found.raw))
    assert (again.config, again.notes) == (found.config, ())


def test_a_whole_model_has_defaults_and_a_projection_of_its_own(tmp_path: Path) -> None:
    text = {"hidden_size": 64, "num_attention_heads": 4, "projection_dim": 5}
    config = read(tmp_path, WHOLE, {"text_config": text, "projection_dim": 24}).config
    assert config == ClipTextConfig(embedding_dim=64, num_heads=4, projection_dim=24)
    assert read(tmp_path, WHOLE, {"text_config": REMOVED, "projection_dim": REMOVED}).config == ClipTextConfig()


def test_text_config_dict_goes_before_text_config(tmp_path: Path) -> None:
    changes = {"text_config": {"hidden_size": 64, "num_hidden_layers": 3}, "text_config_dict": {"hidden_size": 128}}
    assert read(tmp_path, WHOLE, changes).config == ClipTextConfig(embedding_dim=128)


def test_the_rule_of_pooling(tmp_path: Path) -> None:
    for said, meant in ((2, None), (49407, 49407), (0, 0), (REMOVED, 49407)):
        assert read(tmp_path, STABLE_DIFFUSION, {"eos_token_id": said}).config.end_of_text_id == meant
    (note,) = read(tmp_path, STABLE_DIFFUSION, {"eos_token_id": 50000}).notes
    assert note == "eos_token_id 50000 is not among the 49408 tokens: every text is pooled at its first token"


@pytest.mark.parametrize(
    ("fields", "changes", "message"),
    [
        (
            STABLE_DIFFUSION,
            {"hidden_act": "gelu_new"},
            "hidden_act: expected one of quick_gelu, gelu, gelu_python, got",
        ),
        (STABLE_DIFFUSION, {"hidden_size": REMOVED}, "missing hidden_size: expected an integer"),
        (STABLE_DIFFUSION, {"num_attention_heads": 7}, "hidden_size must be a multiple of num_attention_heads, got"),
        (
            STABLE_DIFFUSION,
            {"num_hidden_layers": 129},
            "num_hidden_layers: expected less than or equal to 128, got 129",
        ),
        (STABLE_DIFFUSION, {"layer_norm_eps": 0}, "layer_norm_eps: expected greater than 0, got 0.0"),
        (STABLE_DIFFUSION, {"eos_token_id": [1, 2]}, "eos_token_id: expected an integer, got [1, 2]"),
        (STABLE_DIFFUSION, {"eos_token_id": None}, "eos_token_id: expected an integer, got None"),
        (STABLE_DIFFUSION, {"eos_token_id": -1}, "eos_token_id: expected greater than or equal to 0, got -1"),
        (STABLE_DIFFUSION, {"attention_dropout": 1.5}, "attention_dropout: expected a probability, got 1.5"),
        (STABLE_DIFFUSION, {"rope_theta": 1e4}, "rope_theta = 10000.0 is not known and may change the result"),
        (STABLE_DIFFUSION, {"dtype": "bfloat16"}, "two values: dtype = bfloat16, torch_dtype = float32"),
        (STABLE_DIFFUSION, {"quantization_config": {}}, "quantization_config: expected None, got {}"),
        (STABLE_DIFFUSION, {"architectures": ["CLIPModel"]}, "architectures: expected one of CLIPTextModel, CLIPTextM"),
        (STABLE_DIFFUSION, {"model_type": "bert"}, "expected the model type clip_text_model or clip, got 'bert'"),
        (STABLE_DIFFUSION_XL, {"projection_dim": 0}, "projection_dim: expected greater than 0, got 0"),
        (WHOLE, {"architectures": ["CLIPForImageClassification"]}, "architectures: expected one of CLIPModel, got"),
        (WHOLE, {"text_config": {"hidden_act": "relu"}}, "text_config: hidden_act: expected one of quick_gelu"),
        (WHOLE, {"text_config": {"strange": 1}}, "text_config: strange = 1 is not known"),
        (WHOLE, {"text_config": [1]}, "text_config: expected an object, got [1]"),
        (WHOLE, {"vision_config": {"num_hidden_layers": "x"}}, "vision_config: num_hidden_layers: expected an integer"),
        (WHOLE, {"strange": 1}, "config.json: strange = 1 is not known"),
    ],
)
def test_what_is_wrong_is_told_by_name(fields: Fields, changes: Fields, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, fields, changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_everything_wrong_is_told_at_once_and_fields_can_be_ignored(tmp_path: Path) -> None:
    changes = {"strange": 1, "text_config": {"odd": 2, "vocab_size": "many"}}
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, WHOLE, changes)
    assert all(part in str(caught.value) for part in ("strange = 1", "text_config: odd = 2", "vocab_size: expected an"))
    changes["text_config"] = {"odd": 2}
    assert read(tmp_path, WHOLE, changes, ignore_fields=["strange", "odd"]).config.vocab_size == 49408


def test_sizes_beyond_the_language_are_refused_with_the_file(tmp_path: Path) -> None:
    found = read(tmp_path, STABLE_DIFFUSION, {"max_position_embeddings": 10**9})
    with pytest.raises(
        CheckpointError, match=r"config\.json: max_position_embeddings: expected at most 1,048,576, got 1,0"
    ):
        found.network()


# ---------------------------------------------------------------------- arguments


def test_each_kind_of_model_is_read_by_its_own_functions() -> None:
    with pytest.raises(CheckpointError, match=r"got 'clip_text_model'; .* read_clip_text_folder, .* `mila embed`"):
        read_model_folder(CLIP_GOLDEN / "projected")
    with pytest.raises(CheckpointError, match="expected the model type clip_text_model or clip, got 'gpt2'"):
        read_clip_text_folder(GOLDEN / "gpt2_tied")
    with pytest.raises(ConfigurationError, match="gpt2_tied: a language model needs context_length"):
        mila.from_pretrained(GOLDEN / "gpt2_tied")


@pytest.mark.parametrize(("said", "got"), [({"model_type": "bert"}, ", got 'bert'"), ({}, "")])
def test_another_kind_of_model_is_named_before_what_a_call_lacks(said: Fields, got: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(CheckpointError, match=rf"config\.json: .*expected one of the model types gpt2, .*qwen3{got}$"):
        mila.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dropout": 0.1}, ConfigurationError, "a text encoder has no dropout here, got dropout=0.1"),
        ({"dropout": 1}, ConfigurationError, "dropout: expected a number from 0 to below 1 or None, got 1"),
        ({"length": 12}, ConfigurationError, "expected a length from 1 to 11 tokens, got 12"),
        ({"length": 0}, ShapeError, "load: length must be at least 1, got 0"),
        ({"batch_size": 0}, ShapeError, "load: batch_size must be at least 1, got 0"),
        ({"prefill_size": 3}, ConfigurationError, "does not work on chunks of a sequence"),
        ({"batch": 3}, ConfigurationError, "load: has no argument batch"),
        ({"on_progress": 3}, ConfigurationError, "on_progress: expected a function or None, got 3"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: Fields, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_clip(CLIP_GOLDEN / "projected", **options)


def test_from_pretrained_gives_the_encoder_of_a_folder_and_names_what_it_does_not_take() -> None:
    encoder = mila.from_pretrained(CLIP_GOLDEN / "projected", batch_size=2, dtype="bfloat16")
    assert clip_contents(encoder) == clip_contents(load_clip(CLIP_GOLDEN / "projected", dtype="bfloat16"))
    assert (encoder.length, encoder.text_config.projection_dim) == (T, 9)
    with pytest.raises(ConfigurationError, match="a text encoder has no head, got tie_word_embeddings=True"):
        mila.from_pretrained(CLIP_GOLDEN / "projected", context_length=3, tie_word_embeddings=True)
    with pytest.raises(ConfigurationError, match=r"no context_length, got 3; .* read_clip_text_folder\(folder\)\.load"):
        mila.from_pretrained(CLIP_GOLDEN / "projected", context_length=3)


def test_training_asks_what_to_do_about_dropout(tmp_path: Path) -> None:
    folder = edited_clip(tmp_path / "model", "projected", attention_dropout=0.1)
    load_clip(folder)
    with pytest.raises(
        ConfigurationError, match=r"attention_dropout = 0\.1; .* pass dropout=0\.0 to from_pretrained, load"
    ):
        load_clip(folder, runtime_mode=RuntimeMode.TRAINING)
    encoder = load_clip(folder, runtime_mode=RuntimeMode.TRAINING, dropout=0.0)
    encoder.save_pretrained(tmp_path / "export")
    assert json.loads((tmp_path / "export" / "config.json").read_text())["attention_dropout"] == 0.1


# ---------------------------------------------------------------------- weights


def add(name: str, array: Any) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: np.asarray(array, np.float32)})


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("projected", lambda t: t.pop("text_projection.weight"), "missing text_projection.weight: expected float32 (9"),
        ("projected", add("text_model.extra.weight", [1]), "unexpected text_model.extra.weight"),
        ("projected", add("logit_scale", 1), "unexpected logit_scale"),
        ("projected", add("text_projection.weight", np.ones((15, 9))), "expected shape (9, 15), got (15, 9)"),
        ("projected", add("final_layer_norm.bias", np.ones(15)), "mixed names: text_model.embeddings."),
        ("text_old", add("text_projection.weight", np.ones((9, 12))), "unexpected text_projection.weight: by archi"),
        ("text_old", lambda t: t.pop("encoder.layers.1.mlp.fc1.bias"), "missing encoder.layers.1.mlp.fc1.bias"),
        ("text_old", add("encoder.layers.2.mlp.fc1.bias", np.ones(37)), "unexpected encoder.layers.2.mlp.fc1.bias"),
        ("whole_old", add("vision_model.encoder.layers.2.mlp.fc1.bias", 1), "unexpected vision_model.encoder.layer"),
        ("whole_old", add("vision_model.encoder.layers.00.mlp.fc1.bias", 1), "unexpected vision_model.encoder.layer"),
        ("whole_old", add("vision_model.head.weight", [1]), "unexpected vision_model.head.weight"),
        ("whole_old", add("final_layer_norm.bias", np.ones(12)), "unexpected final_layer_norm.bias"),
    ],
)  # fmt: skip
def test_names_and_shapes_that_do_not_fit_are_told(
    name: str, edit: Callable[[Tensors], Any], message: str, tmp_path: Path
) -> None:
    folder = edited_clip(tmp_path / "model", name, edit)
    with pytest.raises(CheckpointError) as caught:
        load_clip(folder)
    assert message in str(caught.value)


def test_a_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    folder = edited_clip(tmp_path / "model", "projected")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_clip(folder)


def test_a_whole_model_says_what_was_not_read() -> None:
    notes = clip_notes(load_clip(CLIP_GOLDEN / "whole_old"))
    assert notes == "ignored 41 tensors of the image encoder and of the comparison, such as logit_scale"


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = edited_clip(tmp_path / "model", "projected")
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 30}}, "added_tokens": []}')
    with pytest.raises(CheckpointError, match="expected at most 23 tokens"):
        load_clip(folder)


def test_a_built_encoder_is_filled(tmp_path: Path) -> None:
    encoder = read_clip_text_folder(CLIP_GOLDEN / "projected").network(device="cpu")
    with pytest.raises(LifecycleError, match="load_weights needs a built component"):
        mila.load_weights(encoder, CLIP_GOLDEN / "projected")
    encoder.build(BuildContext(SHAPE, RuntimeMode.INFERENCE))
    assert mila.load_weights(encoder, CLIP_GOLDEN / "projected").loaded == 37
    assert clip_contents(encoder) == clip_contents(load_clip(CLIP_GOLDEN / "projected"))
    with pytest.raises(CheckpointError, match="is another model than model: num_layers 2 here, 1 there"):
        mila.load_weights(encoder, edited_clip(tmp_path / "model", "projected", num_hidden_layers=1))


# ---------------------------------------------------------------------- exports


def test_files_and_fields_come_along(tmp_path: Path) -> None:
    folder = edited_clip(tmp_path / "model", "whole_old")
    (folder / "tokenizer_config.json").write_text("{}")
    load_clip(folder).save_pretrained(tmp_path / "export", dtype="bfloat16")
    names = {file.name for file in (tmp_path / "export").iterdir()}
    assert names == {"config.json", "model.safetensors", "mila_export.json", "tokenizer_config.json"}
    written = json.loads((tmp_path / "export" / "config.json").read_text())
    kept = {"bos_token_id": 21, "pad_token_id": 1, "eos_token_id": 2, "projection_dim": 7, "torch_dtype": "bfloat16"}
    assert {key: written[key] for key in kept} == kept
    assert not {"text_config", "vision_config", "dtype", "logit_scale_init_value"} & set(written)


def test_an_end_of_text_that_means_something_else_is_not_exported(tmp_path: Path) -> None:
    config = ClipTextConfig(vocab_size=9, embedding_dim=4, num_layers=0, num_heads=1, max_seq_len=T, end_of_text_id=2)
    encoder = ClipTextEncoder("mine", config, device="cpu")
    with pytest.raises(LifecycleError, match="save_pretrained needs a built component"):
        encoder.save_pretrained(tmp_path / "export")
    encoder.build(BuildContext(SHAPE, RuntimeMode.INFERENCE, initialize_parameters=True))
    with pytest.raises(ConfigurationError, match="end_of_text_id: expected any other id than 2"):
        export_pretrained(encoder, tmp_path / "export")
    assert not list(tmp_path.iterdir())
