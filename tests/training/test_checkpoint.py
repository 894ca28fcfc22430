"""Checkpoints: what they hold, what goes on from them, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mila.errors
from mila.errors import CheckpointError, ShapeError
from mila.kernels.signatures import Array
from mila.serialization import ArchiveMode, ModelArchive
from mila.training import (
    ConstantSchedule,
    Trainer,
    TrainingState,
    load_architecture,
    load_checkpoint,
    load_model,
    load_tokenizer,
    read_training_state,
    save_model,
)
from tests.training.tiny_run import (
    STEPS,
    TEXT,
    TOKENIZER,
    make_config,
    make_network,
    make_split,
    make_trainer,
    numbers_of,
    run_until,
)

HERE = Path(__file__).parent
OPTIONS: dict[str, Any] = {"validate_every": 3, "validation_batches": 2, "checkpoint_every": 5}


def run_program(program: str, *arguments: str) -> str:
    """Run a program of this folder in a fresh process, with the mila that is tested; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(Path(mila.errors.__file__).parents[1])}
    command = [sys.executable, "-W", "error", str(HERE / program), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def everything(trainer: Trainer) -> dict[str, Any]:
    """All that decides the next step, bit for bit."""
    arrays = {**dict(zip(trainer.step.get_parameter_names(), trainer.step.get_parameters(), strict=True))}
    arrays |= trainer.step.optimizer_moments()
    return {name: array.tobytes() for name, array in arrays.items()} | {
        "updates": trainer.step.update_count,
        "runs": trainer.step.training_run_count,
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, list[tuple[int, float, float]], Path]:
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    trainer, events = run_until(folder, STEPS, **OPTIONS)
    return trainer, numbers_of(events), folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after four steps; tests that damage it do so to a copy."""
    folder = tmp_path_factory.mktemp("runs") / "four"
    run_until(folder, 4)
    return folder / "step-00000004"


@pytest.fixture
def a_copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize("stops", [(1,), (4,), (5,), (11,), (2, 3, 7)])
def test_interrupted_and_resumed_is_uninterrupted_bit_for_bit(
    tmp_path: Path, uninterrupted: tuple[Trainer, list[tuple[int, float, float]], Path], stops: tuple[int, ...]
) -> None:
    whole, expected, _ = uninterrupted
    numbers = []
    for stop in (*stops, STEPS):
        trainer, events = run_until(tmp_path, stop, **OPTIONS)
        numbers += numbers_of(events)
    assert numbers == expected
    assert everything(trainer) == everything(whole)


def test_a_fresh_process_goes_on_bit_for_bit(
    tmp_path: Path, uninterrupted: tuple[Trainer, list[tuple[int, float, float]], Path]
) -> None:
    _, expected, _ = uninterrupted
    parts = [json.loads(run_program("tiny_run.py", str(tmp_path), str(stop))) for stop in (5, STEPS)]
    assert [tuple(numbers) for part in parts for numbers in part] == expected


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_other_networks_and_dtypes_go_on_as_well(tmp_path: Path, kind: str) -> None:
    def network() -> Any:
        return make_network(kind, seed=2, dtype="float64")

    whole, expected = run_until(tmp_path / "whole", 5, network=network())
    _, first = run_until(tmp_path / "parts", 2, network=network())
    trainer, second = run_until(tmp_path / "parts", 5, network=network())
    assert numbers_of(first + second) == numbers_of(expected)
    assert everything(trainer) == everything(whole)


def forget_moments(trainer: Trainer, before: TrainingState) -> None:
    for array in trainer.step.optimizer_moments().values():
        array.fill(0)


def forget_updates(trainer: Trainer, before: TrainingState) -> None:
    trainer.step.restore_counts(0, before.training_run_count)


def forget_dropout(trainer: Trainer, before: TrainingState) -> None:
    trainer.step.restore_counts(before.update_count, 0)


def forget_position(trainer: Trainer, before: TrainingState) -> None:
    trainer._batches.restore(type(before.position)())


@pytest.mark.parametrize("forget", [forget_moments, forget_updates, forget_dropout, forget_position])
def test_each_part_of_a_checkpoint_matters(
    tmp_path: Path, checkpoint: Path, forget: Callable[[Trainer, TrainingState], None]
) -> None:
    def next_norms(change: Callable[[Trainer, TrainingState], None] | None) -> list[tuple[float, ...]]:
        trainer = make_trainer(tmp_path / str(change))
        trainer.resume(checkpoint)
        if change is not None:
            change(trainer, read_training_state(checkpoint))
        events: list[Any] = []
        trainer.run(events.append, until=trainer.step.update_count + 3)
        return [numbers[1:] for numbers in numbers_of(events)]

    assert next_norms(forget) != next_norms(None)


def test_a_longer_run_goes_on_from_the_last_step(
    tmp_path: Path, uninterrupted: tuple[Trainer, list[tuple[int, float, float]], Path]
) -> None:
    whole, _, folder = uninterrupted
    trainer = make_trainer(tmp_path, steps=STEPS + 2, keep_last=1)
    trainer.resume(folder / f"step-{STEPS:08d}")
    assert everything(trainer) == everything(whole)
    assert trainer.run().step == STEPS + 2


def test_a_process_killed_while_it_saves_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    killed_at = run_program("killed_trainer.py", str(tmp_path)).split()
    assert len(killed_at) > 20
    whole, _ = run_until(tmp_path / "whole", 4)
    found = set()
    for folder in sorted(path for path in tmp_path.iterdir() if path.name.lstrip("-").isdigit()):
        trainer = make_trainer(folder)
        trainer.resume()
        found.add(trainer.step.update_count)
        trainer.run(until=4)
        assert everything(trainer) == everything(whole), folder
    assert found == {2, 3}


# ---------------------------------------------------------------------- modes


def test_the_three_modes_hold_different_things(tmp_path: Path, checkpoint: Path) -> None:
    trainer = make_trainer(tmp_path / "run")
    for mode in (ArchiveMode.WEIGHTS_ONLY, ArchiveMode.ARCHITECTURE):
        save_model(tmp_path / mode.value, trainer.step.network, TOKENIZER, mode)
    shutil.copytree(checkpoint, tmp_path / "checkpoint")

    def files(mode: ArchiveMode) -> set[str]:
        folder = tmp_path / mode.value
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}

    architecture = {"manifest.json", "model/config.json"}
    weights = architecture | {"model/parameters.safetensors", "tokenizer.json"}
    assert files(ArchiveMode.ARCHITECTURE) == architecture
    assert files(ArchiveMode.WEIGHTS_ONLY) == weights
    assert files(ArchiveMode.CHECKPOINT) == weights | {"optimizer/moments.safetensors", "training.json"}


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_saved_model_infers_what_the_trained_one_does(tmp_path: Path, kind: str, dtype: str) -> None:
    trainer = make_trainer(tmp_path / "run", network=make_network(kind, dtype=dtype))
    trainer.run(until=2)
    save_model(tmp_path / "weights", trainer.step.network, TOKENIZER)
    ids = trainer.split.validation[None, :8].copy()
    expected = trainer.step.logits(ids).copy()
    for path in (tmp_path / "weights", tmp_path / "run", tmp_path / "run" / "step-00000002"):
        model = load_model(path)
        assert type(model) is type(trainer.step.network)
        assert model.config == trainer.step.network.config
        assert model.dtype == np.dtype(dtype)
        np.testing.assert_allclose(model.forward(ids), expected, rtol=1e-4, atol=1e-6)
        assert load_tokenizer(path) == TOKENIZER


def test_a_model_can_be_built_for_fewer_positions(checkpoint: Path) -> None:
    short, long = load_model(checkpoint, max_seq_len=4), load_model(checkpoint)
    assert short.get_memory_stats().total_bytes < long.get_memory_stats().total_bytes
    with pytest.raises(ShapeError, match="at most 16 positions"):
        load_model(checkpoint, max_seq_len=17)


def test_an_architecture_constructs_and_holds_no_weights(tmp_path: Path) -> None:
    network = make_network("llama")
    save_model(tmp_path / "architecture", network, mode=ArchiveMode.ARCHITECTURE)
    constructed = load_architecture(tmp_path / "architecture")
    assert (type(constructed), constructed.config) == (type(network), network.config)
    assert not constructed.is_built
    with pytest.raises(CheckpointError, match="got an architecture alone"):
        load_model(tmp_path / "architecture")
    assert load_tokenizer(tmp_path / "architecture") is None


def test_weights_are_no_checkpoint(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "run")
    save_model(tmp_path / "weights", trainer.step.network, TOKENIZER)
    with pytest.raises(CheckpointError, match="expected a checkpoint, got an archive of the mode weights_only"):
        trainer.resume(tmp_path / "weights")
    with pytest.raises(CheckpointError, match="save_checkpoint writes checkpoints"):
        save_model(tmp_path / "more", trainer.step.network, mode=ArchiveMode.CHECKPOINT)


def test_a_run_folder_means_its_newest_complete_checkpoint(tmp_path: Path) -> None:
    run_until(tmp_path, 4, checkpoint_every=1, keep_last=4)
    (tmp_path / "step-00000004" / "training.json").unlink()
    trainer = make_trainer(tmp_path)
    assert trainer.resume().name == "step-00000003"
    assert trainer.step.update_count == 3


# ---------------------------------------------------------------------- refusals


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
