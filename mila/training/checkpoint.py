"""Checkpoints of training runs, as archives.

==========================  ==========  ============  ============
file                        checkpoint  weights only  architecture
==========================  ==========  ============  ============
``model/config.json``       yes         yes           yes
``model/parameters``        yes         yes           no
``tokenizer.json``          if any      if any        no
``optimizer/moments``       yes         no            no
``training.json``           yes         no            no
``manifest.json``           yes         yes           yes
==========================  ==========  ============  ============

Everything is read and compared before anything is changed, the bytes of every file with the manifest included: a
checkpoint that is damaged, or belongs to another run, is one :class:`CheckpointError`, and nothing has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mila.core import TrainingStep
from mila.core.state import StoredRows, convert_into, write_array
from mila.errors import CheckpointError
from mila.kernels.signatures import Array
from mila.serialization import ArchiveMode, ArchiveReader, ModelArchive, SafetensorsFile, SafetensorsWriter
from mila.training.corpus import TokenSplit
from mila.training.data import DataPosition, Tokens
from mila.training.saved_model import MODEL_SCOPE, malformed, write_model
from mila.training.tokenization import PIECE, Tokenizer
from mila.training.trainer_config import CHANGEABLE_FIELDS, TrainerConfig

OPTIMIZER_SCOPE = "optimizer"
MOMENTS_FILE = "moments"
TRAINING_FILE = "training"


class DataIdentity(BaseModel):
    """Which tokens a run sees: how many, and the SHA-256 of their values as little-endian int32."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    training_tokens: int = Field(ge=0)
    training_sha256: str
    validation_tokens: int = Field(ge=0)
    validation_sha256: str

    @classmethod
    def of(cls, split: TokenSplit) -> Self:
        """Read all tokens once."""
        return cls(
            training_tokens=split.training.size,
            training_sha256=_sha256(split.training),
            validation_tokens=split.validation.size,
            validation_sha256=_sha256(split.validation),
        )


class TrainingState(BaseModel):
    """What a checkpoint keeps beside its arrays.

    Attributes:
        config: of the trainer: schedule, optimizer, sizes, seed of the data.
        network_seed: of dropout masks.
        update_count: updates so far.
        training_run_count: forward passes in training so far, which key dropout masks.
        data: which tokens.
        position: what the next batch starts with.
        best_validation_loss, best_step: of the best validation so far, and the updates before it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    config: TrainerConfig
    network_seed: int
    update_count: int = Field(default=0, ge=0)
    training_run_count: int = Field(default=0, ge=0)
    data: DataIdentity
    position: DataPosition = DataPosition()
    best_validation_loss: float | None = None
    best_step: int | None = None


def save_checkpoint(path: Path | str, step: TrainingStep, state: TrainingState, tokenizer: Tokenizer | None) -> None:
    """Write all that a run needs to go on; the folder appears whole, or not at all.

    Raises:
        CheckpointError: the operating system refuses, or the name is taken by something else.
    """
    moments = step.optimizer_moments()

    def write(writer: SafetensorsWriter) -> None:
        for name, array in moments.items():
            write_array(step.device, writer, name, array)

    with ModelArchive.create(path, ArchiveMode.CHECKPOINT, sequence=state.update_count) as archive:
        write_model(archive, step.network, tokenizer)
        with archive.scope(OPTIMIZER_SCOPE):
            declarations = [(name, array.dtype, array.shape) for name, array in moments.items()]
            archive.write_tensors(MOMENTS_FILE, declarations, write)
        archive.write_json(TRAINING_FILE, state.model_dump(mode="json"))


def load_checkpoint(path: Path | str, step: TrainingStep, expected: TrainingState) -> TrainingState:
    """Load parameters, moments and counts into a built training step, and return the state of the run.

    Args:
        path: the checkpoint.
        step: built, with the network of the checkpoint.
        expected: the state of the run that wants to go on: its config, seed and data must be those of the checkpoint.

    Raises:
        CheckpointError: damaged, incomplete, or of another network, config, seed or data; nothing has changed.
    """
    with _open_checkpoint(path) as archive:
        archive.verify()
        state = _state_of(archive)
        _require_same_run(archive.path, state, expected)
        with archive.scope(OPTIMIZER_SCOPE):
            source = archive.open_tensors(MOMENTS_FILE)
        with source:
            moments = step.optimizer_moments()
            _require_same_tensors(source, moments)
            with archive.scope(MODEL_SCOPE):
                step.network.load_(archive, ArchiveMode.CHECKPOINT)
            for name, array in moments.items():
                if step.device.is_host:
                    source.copy_into(name, array)
                else:
                    convert_into(step.device, array, StoredRows.of(source, name))
    step.restore_counts(state.update_count, state.training_run_count)
    return state


def read_training_state(path: Path | str) -> TrainingState:
    """Read what a checkpoint keeps beside its arrays.

    Raises:
        CheckpointError: no such checkpoint, incomplete, or malformed.
    """
    with _open_checkpoint(path) as archive:
        return _state_of(archive)


def _open_checkpoint(path: Path | str) -> ArchiveReader:
    archive = ModelArchive.open(path)
    if archive.mode is not ArchiveMode.CHECKPOINT:
        archive.close()
        raise CheckpointError(f"{path}: expected a checkpoint, got an archive of the mode {archive.mode.value}")
    return archive


def _state_of(archive: ArchiveReader) -> TrainingState:
    try:
        return TrainingState.model_validate_json(json.dumps(archive.read_json(TRAINING_FILE)))
    except ValidationError as error:
        raise malformed(archive.path, TRAINING_FILE, error) from error


def _require_same_run(path: Path, state: TrainingState, expected: TrainingState) -> None:
    """Compare all that decides the numbers of the next step."""
    pairs = [("network_seed", state.network_seed, expected.network_seed)]
    pairs += [(f"data.{name}", getattr(state.data, name), value) for name, value in expected.data]
    pairs += [
        (f"config.{name}", getattr(state.config, name), value)
        for name, value in expected.config
        if name not in CHANGEABLE_FIELDS
    ]
    problems = [f"{name} is {found} there and {wanted} here" for name, found, wanted in pairs if found != wanted]
    if problems:
        other_data = any(problem.startswith("data.") for problem in problems)
        hint = " (a run goes on with the same texts, and the same share held out)" if other_data else ""
        raise CheckpointError(f"{path}: belongs to another run: {'; '.join(problems)}{hint}")
    windows = (state.data.training_tokens - 1) // state.config.sequence_length
    if state.position.index >= windows:
        raise CheckpointError(f"{path}: expected a position among {windows} windows, got {state.position.index}")


def _require_same_tensors(source: SafetensorsFile, arrays: Mapping[str, Array]) -> None:
    problems = [f"unexpected {name}" for name in source.tensors if name not in arrays]
    for name, array in arrays.items():
        if name not in source.tensors:
            problems.append(f"missing {name}")
            continue
        found = source.read(name)
        if (found.dtype, found.shape) != (array.dtype, array.shape):
            problems.append(f"{name}: expected {array.dtype} {array.shape}, got {found.dtype} {found.shape}")
    if problems:
        raise CheckpointError(f"{source.path}: does not fit the optimizer: " + "; ".join(problems))


def _sha256(tokens: Tokens) -> str:
    digest = hashlib.sha256()
    for start in range(0, tokens.size, PIECE):
        digest.update(np.ascontiguousarray(tokens[start : start + PIECE], "<i4").data)
    return digest.hexdigest()
