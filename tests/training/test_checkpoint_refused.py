"""Checkpoints that are damaged, contradict themselves or belong to another run: one error, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.errors import CheckpointError
from mila.kernels.signatures import Array
from mila.serialization import ModelArchive
from mila.training import (
    ConstantSchedule,
    Trainer,
    load_architecture,
    load_checkpoint,
    load_model,
    load_tokenizer,
    read_training_state,
)
from tests.training.tiny_run import TEXT, everything, make_config, make_network, make_split, make_trainer


def refused(trainer: Trainer, path: Path, match: str) -> None:
    """A checkpoint is refused in one line, and nothing of the trainer changes."""
    before, position = everything(trainer), trainer._batches.position
    with pytest.raises(CheckpointError, match=match) as caught:
        trainer.resume(path)
    assert "\n" not in str(caught.value)
    assert everything(trainer) == before
    assert trainer._batches.position == position


FILES = [
    "manifest.json",
    "training.json",
    "tokenizer.json",
    "model/config.json",
    "model/parameters.safetensors",
    "optimizer/moments.safetensors",
]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["removed", "truncated", "emptied", "flipped"])
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, a_copy: Path, file: str, damage: str) -> None:
    path = a_copy / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    replacements: dict[str, bytes | bytearray] = {
        "truncated": content[: len(content) // 2],
        "emptied": b"",
        "flipped": content,
    }
    path.unlink()
    if damage != "removed":
        path.write_bytes(replacements[damage])
    refused(make_trainer(tmp_path / "run"), a_copy, "manifest|expected|missing")
    if not file.startswith(("training", "optimizer")):
        with pytest.raises(CheckpointError):
            load_model(a_copy)


def rewritten(source: Path, target: Path, **changes: Callable[[Any], Any]) -> Path:
    """A checkpoint with a valid manifest, some of whose parts are not what they were."""

    def changed(name: str, value: Any) -> Any:
        return changes.get(name, lambda same: same)(value)

    def tensors(archive: Any, writer: Any, name: str) -> None:
        with archive.open_tensors(name) as file:
            arrays: dict[str, Array] = changed(name, {key: file.read(key) for key in file.tensors})
            declarations = [(key, array.dtype, array.shape) for key, array in arrays.items()]
            writer.write_tensors(
                name, declarations, lambda out: [out.write(key, array) for key, array in arrays.items()]
            )

    with ModelArchive.open(source) as old, ModelArchive.create(target, old.mode, old.sequence) as new:
        with old.scope("model"), new.scope("model"):
            new.write_json("config", changed("config", old.read_json("config")))
            tensors(old, new, "parameters")
        with old.scope("optimizer"), new.scope("optimizer"):
            tensors(old, new, "moments")
        new.write_json("training", changed("training", old.read_json("training")))
        new.write_json("tokenizer", changed("tokenizer", old.read_json("tokenizer")))
    return target


def without_first(tensors: dict[str, Array]) -> dict[str, Array]:
    return dict(list(tensors.items())[1:])


def first_transposed(tensors: dict[str, Array]) -> dict[str, Array]:
    return {name: array.T if index == 0 else array for index, (name, array) in enumerate(tensors.items())}


def first_as_float64(tensors: dict[str, Array]) -> dict[str, Array]:
    return {name: array.astype("f8") if index == 0 else array for index, (name, array) in enumerate(tensors.items())}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"moments": without_first}, "missing first_moment.embedding.wte"),
        ({"moments": lambda tensors: tensors | {"more": np.ones(1)}}, "unexpected more"),
        ({"moments": first_transposed}, "first_moment.embedding.wte: expected float32"),
        ({"moments": first_as_float64}, "expected float32 .* got float64"),
        ({"parameters": without_first}, "missing embedding.wte"),
        ({"parameters": first_transposed}, "embedding.wte: expected shape"),
        ({"training": lambda state: state | {"update_count": -1}}, "training.json: update_count: "),
        ({"training": lambda state: state | {"more": 1}}, "training.json: more: "),
        ({"training": lambda state: state | {"position": {"epoch": 0}, "config": {}}}, "training.json: config"),
        ({"training": lambda state: state | {"position": {"epoch": 0, "index": 10**9}}}, "a position among"),
    ],
)
def test_a_checkpoint_that_contradicts_itself_changes_nothing(
    tmp_path: Path, checkpoint: Path, changes: dict[str, Any], match: str
) -> None:
    refused(make_trainer(tmp_path / "run"), rewritten(checkpoint, tmp_path / "step-00000004", **changes), match)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"class": "Transformer"}, "expected GptTransformer or LlamaTransformer, got 'Transformer'"),
        ({"dtype": "float8"}, "expected one of float32"),
        ({"dtype": None}, "expected the name of a dtype, got None"),
        ({"config": {"vocab_size": 0}}, r"model/config\.json: vocab_size: "),
        ({"config": None}, r"model/config\.json: "),
    ],
)
def test_a_model_that_is_none_of_ours_is_refused(
    tmp_path: Path, checkpoint: Path, config: dict[str, Any], match: str
) -> None:
    path = rewritten(checkpoint, tmp_path / "step-00000004", config=lambda old: old | config)
    with pytest.raises(CheckpointError, match=match):
        load_model(path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"split": make_split(TEXT.replace("fox", "dog"))}, "data.training_sha256 is .* there and .* here"),
        ({"split": make_split(TEXT[:-1])}, r"data\.training_tokens is \d+ there and \d+ here"),
        ({"batch_size": 2}, "config.batch_size is 3 there and 2 here"),
        ({"sequence_length": 4}, "config.sequence_length is 8 there and 4 here"),
        ({"accumulation_steps": 1}, "config.accumulation_steps is 2 there and 1 here"),
        ({"seed": 4}, "config.seed is 3 there and 4 here"),
        ({"schedule": ConstantSchedule(initial=1e-3)}, "config.schedule is "),
        ({"optimizer": make_config().optimizer.model_copy(update={"beta1": 0.8})}, "config.optimizer is "),
        ({"network": make_network(seed=6)}, "network_seed is 5 there and 6 here"),
        ({"network": make_network(width=4, seed=5)}, "expected|holds"),
        ({"network": make_network(dropout=0.1, seed=5)}, "holds"),
        ({"network": make_network("llama", seed=5)}, "unexpected|missing|holds"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_by_name(
    tmp_path: Path, checkpoint: Path, changes: dict[str, Any], match: str
) -> None:
    refused(make_trainer(tmp_path, **changes), checkpoint, match)


@pytest.mark.parametrize("place", ["nowhere", "empty", "file"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("text")
    trainer = make_trainer(tmp_path / "run")
    refused(trainer, tmp_path / place, place)
    for call in (load_model, load_architecture, load_tokenizer, read_training_state):
        with pytest.raises(CheckpointError, match=place):
            call(tmp_path / place)


def test_a_trainer_without_a_checkpoint_has_nothing_to_resume(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "run")
    with pytest.raises(CheckpointError, match="expected a folder with a complete checkpoint, got none"):
        trainer.resume()


def test_a_training_step_loads_without_a_trainer(tmp_path: Path, checkpoint: Path) -> None:
    trainer = make_trainer(tmp_path)
    state = load_checkpoint(checkpoint, trainer.step, trainer._state())
    assert (state.update_count, trainer.step.update_count, trainer.step.training_run_count) == (4, 4, 8)
