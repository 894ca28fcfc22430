"""Checkpoints: what they hold, and what goes on from them."""

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
from mila.serialization import ArchiveMode
from mila.training import (
    Trainer,
    TrainingState,
    load_architecture,
    load_model,
    load_tokenizer,
    read_training_state,
    save_model,
)
from tests.training.tiny_run import (
    STEPS,
    TOKENIZER,
    everything,
    make_network,
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


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, list[tuple[int, float, float]], Path]:
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    trainer, events = run_until(folder, STEPS, **OPTIONS)
    return trainer, numbers_of(events), folder


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
