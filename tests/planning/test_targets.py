"""What can be planned, by whatever name it has: and one line for everything else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mila import from_pretrained
from mila.errors import CheckpointError, ConfigurationError, MilaError
from mila.models import read_model_folder
from mila.planning.report import TargetKind
from mila.planning.target import Target
from mila.planning.targets import read_target
from mila.serialization.failures import with_hint
from tests.gguf.gguf_bytes import gguf_bytes
from tests.gguf.tiny_models import rotary_model
from tests.models.folder_cases import FOLDER_CASES, GOLDEN, GOLDEN_CASES, FolderCase
from tests.models.running import edited
from tests.planning.reading import has_tied_head, parameter_bytes, refused

# ---------------------------------------------------------------------- model folders


@pytest.mark.parametrize("case", GOLDEN_CASES, ids=lambda case: case.name)
def test_a_folder_its_config_and_its_weights_are_one_model(case: FolderCase) -> None:
    folder = GOLDEN / case.name
    expected = read_model_folder(folder)
    whole, config = read_target(str(folder)), read_target(str(folder / "config.json"))
    (weights,) = (each for each in ("model.safetensors", "model.safetensors.index.json") if (folder / each).exists())
    alone = read_target(str(folder / weights))
    assert whole.config == config.config == alone.config == expected.config
    assert {each.name for each in (whole, config, alone)} == {case.name}
    assert whole.model_type == case.model_type
    assert [whole.kind, config.kind] == [TargetKind.FOLDER, TargetKind.CONFIG]
    assert alone.kind is (TargetKind.INDEX if weights.endswith("index.json") else TargetKind.SAFETENSORS)
    assert whole.stored == alone.stored
    assert config.stored is None
    assert config.notes[-1] == "planned from the config alone: no weights were looked at"
    assert whole.stored is not None
    dtype = np.dtype(getattr(ml_dtypes, case.dtype, case.dtype))
    assert whole.stored.dtypes == {case.dtype: parameter_bytes(whole, dtype)}
    assert whole.stored.nbytes == parameter_bytes(whole, dtype)


@pytest.mark.parity
@pytest.mark.parametrize("case", FOLDER_CASES, ids=lambda case: case.name)
def test_folders_of_transformers(case: FolderCase, tmp_path: Path) -> None:
    from tests.models.torch_folders import new_model, save_folder

    save_folder(case, new_model(case), tmp_path)
    target = read_target(str(tmp_path))
    assert target.stored is not None
    assert target.stored.nbytes == parameter_bytes(target, np.dtype(getattr(ml_dtypes, case.dtype, case.dtype)))


def test_a_link_and_a_path_object_lead_there_too(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(GOLDEN / "gpt2_tied")
    assert read_target(tmp_path / "link").config == read_target(str(GOLDEN / "gpt2_tied")).config


def test_old_names_and_buffers_are_those_that_loading_takes(tmp_path: Path) -> None:
    def with_buffers(tensors: dict[str, Any]) -> None:
        tensors["transformer.h.0.attn.bias"] = np.ones((1, 1, 16, 16), np.float32)

    target = read_target(str(edited(tmp_path / "model", "gpt2_tied", with_buffers)))
    assert target.stored is not None
    assert target.stored.nbytes == parameter_bytes(target) + 4 * 16 * 16
    assert "ignored 1 buffers such as transformer.h.0.attn.bias" in target.notes


def test_what_a_user_should_know_is_told(tmp_path: Path) -> None:
    target = read_target(str(GOLDEN / "gpt2_tied"))
    (note,) = target.notes
    assert note.startswith("planned without the dropout of the config (embd_pdrop = 0.1")
    config = json.loads((GOLDEN / "llama_grouped" / "config.json").read_text())
    del config["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "no rope_theta" in read_target(str(tmp_path)).notes[0]


@pytest.mark.parametrize(
    ("names", "note"),
    [
        ([], "no weights"),
        (["pytorch_model.bin"], "['pytorch_model.bin'] not read"),
        (["tuned.safetensors", "model.gguf"], "['model.gguf', 'tuned.safetensors'] not read"),
    ],
)
def test_without_weights_the_config_is_enough(tmp_path: Path, names: list[str], note: str) -> None:
    shutil.copy(GOLDEN / "llama_grouped" / "config.json", tmp_path)
    for name in names:
        (tmp_path / name).write_bytes(b"")
    target = read_target(str(tmp_path))
    assert target.stored is None
    assert target.notes == (f"neither model.safetensors nor its index, {note}: planned from the config alone",)


def test_the_head_is_as_the_config_says(tmp_path: Path) -> None:
    def with_head(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2

    def with_other_head(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = np.ones((38, 12), np.float32)

    def without_head(tensors: dict[str, Any]) -> None:
        del tensors["lm_head.weight"]

    both = str(edited(tmp_path / "both", "qwen2_tied", with_head))
    assert read_target(both).notes == (
        "the config says that the head is model.embed_tokens.weight, and lm_head.weight is stored too: loading "
        "compares them",
    )
    assert read_target(both, tie_word_embeddings=True).notes == (
        "lm_head.weight is not used, as tie_word_embeddings=True says",
    )
    assert not has_tied_head(read_target(both, tie_word_embeddings=False))
    other = edited(tmp_path / "other", "qwen2_tied", with_other_head)
    refused(
        other, CheckpointError, "says that the head is model.embed_tokens.weight, and the weights have another lm_head"
    )
    none = edited(tmp_path / "none", "llama_grouped", without_head)
    refused(none, CheckpointError, "says that the head is not the token table, and the weights have no lm_head.weight")
    assert has_tied_head(read_target(str(none), tie_word_embeddings=True))


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "missing": lambda tensors: tensors.pop("model.norm.weight"),
    "more": lambda tensors: tensors.update({"model.extra": np.ones(3, np.float32)}),
    "misshapen": lambda tensors: tensors.update({"model.norm.weight": np.ones(13, np.float32)}),
    "integers": lambda tensors: tensors.update({"model.norm.weight": np.ones(12, np.int8)}),
    "mixed": lambda tensors: tensors.update({"norm.weight": tensors["model.norm.weight"]}),
    "fp8": lambda tensors: tensors.update({"model.norm.weight": np.ones(12, ml_dtypes.float8_e4m3fn)}),
    "few": lambda tensors: [tensors.pop(name) for name in sorted(tensors)[1:]],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_weights_that_do_not_fit_are_refused_as_loading_refuses_them(tmp_path: Path, damage: str) -> None:
    folder = edited(tmp_path / "model", "llama_grouped", DAMAGES[damage])
    with pytest.raises(CheckpointError) as caught:
        from_pretrained(folder, context_length=4)
    assert refused(folder, CheckpointError) == str(caught.value)


@pytest.mark.parametrize("number", range(4))
def test_damaged_files_are_refused_as_loading_refuses_them_and_the_config_can_be_named(
    tmp_path: Path, number: int
) -> None:
    folder = edited(tmp_path / "model", "llama_tied_llama3")
    shards = sorted(folder.glob("model-*"))
    if number == 0:
        shards[1].unlink()
    elif number == 1:
        shutil.copy(shards[0], folder / "model-00004-of-00004.safetensors")
    elif number == 2:
        shards[0].write_bytes(shards[0].read_bytes()[:900])
    else:
        shards[2].write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234\n")
    with pytest.raises(CheckpointError) as caught:
        from_pretrained(folder, context_length=4)
    hint = f"to plan without the weights name {folder / 'config.json'}"
    assert refused(folder, CheckpointError) == with_hint(str(caught.value), hint)
    assert read_target(str(folder / "config.json")).stored is None


# ---------------------------------------------------------------------- names


def test_a_path_that_exists_goes_before_a_preset_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_target("gpt2").kind is TargetKind.PRESET
    shutil.copytree(GOLDEN / "llama_grouped", "gpt2")
    target = read_target("gpt2")
    assert (target.kind, target.model_type) == (TargetKind.FOLDER, "llama")
    assert target.notes == ("gpt2 is both here and a preset: the one here was taken; preset:gpt2 is the other",)
    assert read_target("./gpt2").config == target.config
    assert read_target("preset:gpt2").model_type == "gpt2"


WRONG_NAMES: list[tuple[str, type[MilaError], str]] = [
    ("", ConfigurationError, "target: expected the name of a model, got ''"),
    ("gpt3", ConfigurationError, "'gpt3': expected a file, a folder, a preset or hf://owner/name, .*did you mean gpt2"),
    ("llama-3.1-80b", ConfigurationError, "did you mean .*llama-3.1-8b"),
    ("Qwen25-7B", ConfigurationError, "did you mean qwen2.5-7b"),
    ("zzzzzzzz", ConfigurationError, "presets are gpt2, gpt2-medium, .*smollm2-1.7b"),
    ("preset:gpt-2", ConfigurationError, "expected a preset, got nothing of that name; did you mean gpt2"),
    ("preset:", ConfigurationError, "presets are gpt2"),
    ("owner/name", ConfigurationError, "expected a file or a folder, .*; a model of the hub is hf://owner/name"),
    ("https://huggingface.co/owner/name/", ConfigurationError, "; a model of the hub is hf://owner/name$"),
    ("./gpt2", ConfigurationError, "./gpt2: expected a file or a folder, got nothing of that name$"),
    ("models/gpt2/config.json", ConfigurationError, "expected a file or a folder, got nothing of that name$"),
    ("config.json", ConfigurationError, "config.json: expected a file or a folder, got nothing of that name$"),
    ("x" * 5000, CheckpointError, "File name too long"),
    ("a\0b", CheckpointError, "a NUL character"),
    ("/dev/null", ConfigurationError, "got a pipe or a device"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "kind", "message"), WRONG_NAMES, ids=[spec[:20] for spec, *_ in WRONG_NAMES])
def test_a_name_of_nothing_is_refused_with_what_may_have_been_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, kind: type[MilaError], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(spec, kind, message)


def test_arguments_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected the name of a model, got 3"):
        read_target(3)  # type: ignore[arg-type]
    refused("gpt2", ConfigurationError, "tie_word_embeddings", tie_word_embeddings="yes")
    refused("gpt2", ConfigurationError, "ignore_fields", ignore_fields="a")


def config_with(**changes: Any) -> str:
    return json.dumps(json.loads((GOLDEN / "llama_grouped" / "config.json").read_text()) | changes)


WRONG_FILES: list[tuple[str, str, type[MilaError], str]] = [
    ("config.json", "", CheckpointError, "config.json: expected a model config that starts with '{', got nothing"),
    ("config.json", "[]", CheckpointError, "expected a model config that starts with '{'"),
    ("config.json", "{}", CheckpointError, "config.json: missing model_type: expected one of the model types .*clip$"),
    ("config.json", config_with(model_type="bert"), CheckpointError, "expected one of the model types .*got 'bert'"),
    ("config.json", config_with(model_type=["gpt2"]), CheckpointError, r"got \['gpt2'\]"),
    ("my.json", config_with(model_type="clip"), CheckpointError, "my.json: architectures: expected one of CLIPModel"),
    ("config.json", config_with(num_hidden_layers=10**6), CheckpointError, "at most 1024 layers, .*got 1000000"),
    ("config.json", config_with(quantization_config={"quant_method": "gptq"}), CheckpointError,
     "quantization_config: expected None, got {'quant_method': 'gptq'}, which Mila does not compute"),
    ("config.json", config_with(hidden_act="relu2"), CheckpointError, "config.json: hidden_act: expected one of"),
    ("my.json", config_with(hidden_size=0), CheckpointError, "my.json: hidden_size: expected greater than 0, got 0"),
    ("my.json", '{"weight_map": {}}', CheckpointError, "got an index, whose name ends in .index.json"),
    ("model.safetensors.index.json", "{}", CheckpointError, "expected a weight_map"),
    ("model.safetensors", "PK\3\4", CheckpointError, "model.safetensors"),
    ("model-00001-of-00002.safetensors", "", ConfigurationError, "got shard 1 of 2; name the index, .*, or the folder"),
    ("model.bin", "PK\3\4", ConfigurationError, "expected a model folder, a config.json, .*got a file of another kind"),
    ("notes.txt", "text", ConfigurationError, "got a file of another kind"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    WRONG_FILES,
    ids=[f"{name}: {message[:30]}" for name, *_, message in WRONG_FILES],
)
def test_files_that_are_no_model_are_refused(
    tmp_path: Path, name: str, content: str, kind: type[MilaError], message: str
) -> None:
    (tmp_path / name).write_text(content)
    assert refused(tmp_path / name, kind, message).startswith(str(tmp_path / name))


def test_fields_that_the_caller_knows_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(config_with(own_field=1))
    refused(path, CheckpointError, "own_field = 1 is not known and may change the result")
    assert read_target(str(path), ignore_fields=["own_field"]).model_type == "llama"


def test_weights_without_a_config_say_what_is_missing(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "gpt2_tied" / "model.safetensors", tmp_path)
    refused(
        tmp_path / "model.safetensors",
        ConfigurationError,
        "expected a config.json beside it, got none; the number of heads and the longest sequence are in no header",
    )
    refused(tmp_path, ConfigurationError, "expected a model folder with config.json, got a folder without")


def test_a_pipe_is_called_one(tmp_path: Path) -> None:
    """It is not opened: that would wait for its other end."""
    for name, kind, message in (
        ("pipe", ConfigurationError, "got a pipe or a device"),
        ("a.safetensors", CheckpointError, "got a folder, a pipe or a device"),
    ):
        os.mkfifo(tmp_path / name)
        refused(tmp_path / name, kind, message)


# ---------------------------------------------------------------------- all of them


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say what a process takes")
def test_reading_is_quick_and_light() -> None:
    """A config of 405 billion parameters, in a fresh process: well under the second and the megabytes of a plan."""
    program = """
        import sys, time
        from pathlib import Path
        from mila.planning.targets import read_target
        started = time.process_time()
        target = read_target("llama-3.1-405b")
        print(time.process_time() - started)
        print(*(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
        print(*{"torch", "huggingface_hub", "gguf", "transformers", "tokenizers"} & set(sys.modules))
    """
    command = [sys.executable, "-P", "-c", re.sub("^ {8}", "", program, flags=re.MULTILINE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, kibibytes, loaded = done.stdout.split("\n")[:3]
    assert float(seconds) < 1
    assert int(kibibytes) < 90_000
    assert loaded == ""


def test_a_mutated_target_is_a_target_or_one_line(tmp_path: Path) -> None:
    """Bytes changed at random, or the end cut off, of each kind of file: whatever that means, no other exception."""
    folder, path = edited(tmp_path / "model", "llama_tied_llama3"), tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(*rotary_model()))
    shard = sorted(folder.glob("model-*"))[0]
    files = [
        (folder / "config.json", folder),
        (folder / "model.safetensors.index.json", folder),
        (shard, folder),
        (path, path),
    ]
    limits = [1000, 2000, 8 + int.from_bytes(shard.read_bytes()[:8], "little"), 7000]
    random = np.random.default_rng(0)
    outcomes = []
    for (file, target), limit in zip(files, limits, strict=True):
        original = file.read_bytes()
        for number in range(500):
            content = bytearray(original)
            for _ in range(random.integers(1, 3)):
                content[random.integers(min(limit, len(content)))] = random.choice([0, 1, 34, 44, 48, 57, 91, 125, 255])
            if number % 10 == 0:
                del content[random.integers(len(content)) :]
            file.write_bytes(content)
            try:
                outcomes.append(isinstance(read_target(str(target)), Target))
            except MilaError as error:
                assert "\n" not in str(error)
                outcomes.append(False)
        file.write_bytes(original)
    assert 100 < sum(outcomes) < 1900
