"""What ``mila inspect --check`` says of models: what loading would refuse, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from mila import from_pretrained
from mila.errors import CheckpointError
from mila.models import GptConfig, GptTransformer, read_clip_text_folder
from mila.planning import inspect
from mila.planning.inspection_report import FindingKind
from mila.planning.targets import read_target
from mila.serialization import ArchiveMode, ModelArchive, read_json_object
from mila.training import save_model
from tests.gguf.gguf_bytes import gguf_bytes
from tests.gguf.tiny_models import rotary_model
from tests.models.clip_cases import CLIP_GOLDEN
from tests.models.folder_cases import GOLDEN
from tests.planning.stored_files import change_config, checked, golden_folder, kinds, messages, only, write


def without(folder: Path, name: str, **others: Any) -> None:
    """Write the weights of a folder again, without one tensor and with others."""
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    write(folder / "model.safetensors", {**tensors, **others})


@pytest.mark.parametrize(
    ("name", "others", "words"),
    [
        ("model.norm.weight", {}, "missing"),
        ("", {"stray": np.ones(3, np.float32)}, "unexpected"),
        ("", {"model.norm.weight": np.ones(5, np.float32)}, "shape"),
        ("", {"model.norm.weight": np.ones(12, np.int32)}, "int32"),
    ],
)
def test_what_loading_refuses_is_a_problem(tmp_path: Path, name: str, others: dict[str, Any], words: str) -> None:
    folder = golden_folder("llama_grouped", tmp_path)
    without(folder, name, **others)
    assert inspect(folder).problems == []
    problem = only(checked(folder).problems, FindingKind.NOT_LOADABLE)
    assert words in problem.message.lower()


def test_a_head_that_is_not_the_table_it_is_tied_to_is_a_problem(tmp_path: Path) -> None:
    folder = golden_folder("qwen2_tied", tmp_path)
    table = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    without(folder, "", **{"lm_head.weight": table})
    report = checked(folder)
    assert report.problems == []
    assert only(report.notes, FindingKind.STORED_TWICE).bytes == table.nbytes
    assert "lm_head.weight equals model.embed_tokens.weight: loading keeps it once" in messages(report.notes)
    without(folder, "", **{"lm_head.weight": table + 1})
    assert "differs from model.embed_tokens.weight" in only(checked(folder).problems, FindingKind.NOT_LOADABLE).message


def test_a_config_that_is_refused_is_a_problem_and_an_unknown_model_is_not(tmp_path: Path) -> None:
    folder = golden_folder("llama_grouped", tmp_path)
    change_config(folder, hidden_act="swish2")
    assert "hidden_act" in only(checked(folder).problems, FindingKind.NOT_LOADABLE).message
    change_config(folder, model_type="bert")
    report = checked(folder)
    assert report.problems == []
    assert "held against no model" in (said := only(report.notes, FindingKind.MODEL).message)
    assert "got 'bert'" in said


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "layers"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": ...}, "expected one of the model types"),
        ({"model_type": 7}, "expected one of the model types"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
    ],
)
def test_a_config_is_held_against_the_same_rules_as_its_folder_and_a_plan(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    folder = golden_folder("llama_grouped", tmp_path)
    change_config(folder, **fields)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_bytes((folder / "config.json").read_bytes())
    for target in (folder, folder / "config.json", empty):
        assert inspect(target).problems == []
        assert words in only(checked(target).problems, FindingKind.NOT_LOADABLE).message
        with pytest.raises(CheckpointError, match=words):
            read_target(target)


@pytest.mark.parametrize("text", ["{}", '{"model_type": "clip_text_model", "hidden_size": 0}', '{"weight_map": {}}'])
def test_an_object_that_is_no_config_is_a_problem(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    message = only(checked(file).problems, FindingKind.NOT_LOADABLE).message
    assert message.startswith(f"{file}: ")


def test_a_config_that_is_understood_is_no_problem_and_an_unknown_one_is_a_note(tmp_path: Path) -> None:
    for folder in [*GOLDEN.iterdir(), *CLIP_GOLDEN.iterdir()]:
        if folder.is_dir():
            assert checked(folder / "config.json").problems == []
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "bert"}')
    report = checked(file)
    assert (report.problems, kinds(report.notes)) == ([], [FindingKind.MODEL])


def test_a_folder_that_lacks_its_config_or_its_weights_is_a_problem(tmp_path: Path) -> None:
    """``from_pretrained`` refuses it; a file by itself is no folder."""
    folder = golden_folder("llama_grouped", tmp_path)
    weights, config = folder / "model.safetensors", folder / "config.json"
    content = config.read_bytes()
    config.unlink()
    for lacking in ("config.json", "weights"):
        with pytest.raises(CheckpointError):
            from_pretrained(folder, context_length=4)
        assert inspect(folder).problems == []
        message = only(checked(folder).problems, FindingKind.NOT_LOADABLE).message
        assert message.startswith(f"{folder}: expected ")
        assert lacking in message
        if lacking == "config.json":
            report = checked(weights)
            assert (report.problems, kinds(report.notes)) == ([], [FindingKind.MODEL])
            assert "held against no model" in report.notes[0].message
            config.write_bytes(content)
            weights.unlink()
    index = checked(GOLDEN / "llama_tied_llama3" / "model.safetensors.index.json")
    assert "held against no model" in only(index.notes, FindingKind.MODEL).message


def test_a_gguf_file_is_held_against_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    metadata, tensors = rotary_model()
    path.write_bytes(gguf_bytes(metadata, tensors))
    assert checked(path).problems == []
    lacking = {name: array for name, array in tensors.items() if name != "blk.1.ffn_up.weight"}
    path.write_bytes(gguf_bytes(metadata, lacking))
    assert "blk.1.ffn_up.weight" in only(checked(path).problems, FindingKind.NOT_LOADABLE).message
    for other in ({"general.architecture": "mamba"}, {"general.type": "adapter"}, {"general.architecture": "llama"}):
        path.write_bytes(gguf_bytes(other, tensors))
        found = checked(path)
        assert kinds([*found.problems, *found.notes]) == [
            FindingKind.NOT_LOADABLE if other == {"general.architecture": "llama"} else FindingKind.MODEL
        ]


@pytest.mark.parametrize(
    "folder", sorted(path for path in CLIP_GOLDEN.iterdir() if path.is_dir()), ids=lambda f: f.name
)
def test_text_encoders_are_held_against_their_config(folder: Path, tmp_path: Path) -> None:
    assert checked(folder).problems == []
    tensors = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    name = next(name for name in tensors if name.endswith("token_embedding.weight"))
    write(tmp_path / "model.safetensors", {each: array for each, array in tensors.items() if each != name})
    assert name in only(checked(tmp_path).problems, FindingKind.NOT_LOADABLE).message
    wide = {each: array.astype(np.float64) / 3 for each, array in tensors.items() if array.dtype == np.float32}
    write(tmp_path / "model.safetensors", tensors | wide)
    assert read_clip_text_folder(tmp_path).load().pretrained is not None
    assert checked(tmp_path).problems == []


def test_an_archive_is_held_against_its_architecture(tmp_path: Path) -> None:
    network = GptTransformer("gpt", GptConfig(vocab_size=5, max_seq_len=4, embedding_dim=4, num_heads=1, num_layers=1))
    save_model(tmp_path / "empty", network, mode=ArchiveMode.ARCHITECTURE)
    report = checked(tmp_path / "empty")
    assert (report.tensors, report.problems) == ([], [])
    config = read_json_object(tmp_path / "empty" / "model" / "config.json")
    for name, kind in (("GptTransformer", FindingKind.NOT_LOADABLE), ("Other", FindingKind.MODEL)):
        path = tmp_path / name
        with ModelArchive.create(path, ArchiveMode.WEIGHTS_ONLY) as archive, archive.scope("model"):
            archive.write_json("config", {**config, "class": name})
            archive.write_tensors("parameters", [("x", "F32", [1])], lambda w: w.write("x", np.ones(1, np.float32)))
        report = checked(path)
        assert kinds([*report.problems, *report.notes]) == [kind]
