"""The training loop: batches, accumulation, validation, checkpoints, and nothing printed."""

from __future__ import annotations

import math
import time
from functools import cached_property
from pathlib import Path
from typing import Any

from mila.components import SoftmaxCrossEntropy
from mila.core import BuildContext, Component, RuntimeMode, TrainingMode
from mila.errors import CheckpointError, DataError, LifecycleError, NonFiniteError
from mila.kernels.signatures import Array
from mila.memory import MemoryPlan
from mila.models import LanguageModel
from mila.training.adamw import AdamW
from mila.training.batch_step import BatchStep
from mila.training.checkpoint import DataIdentity, TrainingState, load_checkpoint, save_checkpoint
from mila.training.corpus import TokenSplit
from mila.training.data import TokenBatches, validation_batches
from mila.training.events import (
    CheckpointReport,
    Report,
    StepReport,
    TrainingEvent,
    TrainingOutcome,
    ValidationReport,
)
from mila.training.interrupts import first_interrupt_calls
from mila.training.measurement import BuildReport, measure_build
from mila.training.run_folder import RunFolder
from mila.training.tokenization import Tokenizer
from mila.training.trainer_config import TrainerConfig


class Trainer:
    """Trains a network on tokens, and goes on from its checkpoints as if it had never stopped.

    ``plan`` (nothing is allocated), ``build``, ``resume`` where there is a checkpoint, ``run``.

    Args:
        network: unbuilt; ids (B, T) to logits (B, T, V).
        split: training and validation tokens.
        config: everything else.
        run_folder: where checkpoints go.
        tokenizer: kept in checkpoints, for those who use the model.
        device: for a network without one.

    Raises:
        DataError: an id outside the network's vocabulary; or too few tokens for a batch, or for one validation window
            where validation is asked for.
        LifecycleError: the network is built already.
    """

    def __init__(
        self,
        network: Component[Any],
        split: TokenSplit,
        config: TrainerConfig,
        run_folder: Path | str,
        *,
        tokenizer: Tokenizer | None = None,
        device: str | None = None,
    ) -> None:
        self.config = config
        self.split = split
        self.tokenizer = tokenizer
        self.run_folder = RunFolder(run_folder)
        shape = (config.batch_size, config.sequence_length)
        self._batches = TokenBatches(split.training, *shape, config.seed)
        if config.validate_every is not None:
            validation_batches(split.validation, *shape, config.validation_batches)
        _require_known_ids(network, split)
        self._context = BuildContext(shape, RuntimeMode.TRAINING)
        self._best: tuple[float, int] | None = None
        self._last_checkpoint: Path | None = None
        self._stop_requested = False
        self._is_step_open = False
        loss, optimizer = SoftmaxCrossEntropy("loss"), AdamW(config.optimizer)
        self.step = BatchStep(network, loss, optimizer, shape, device=device)

    # ------------------------------------------------------------------ before the first step

    def require_free_folder(self) -> None:
        """Make the run folder, or refuse one that cannot be written to or, unless resumed, has checkpoints.

        Raises:
            CheckpointError: as it says.
        """
        self._require_no_other_run()
        self.run_folder.create()

    def plan(self) -> MemoryPlan:
        """All that training will take; allocates nothing."""
        return self.step.plan(self._context)

    def build(self, *, trace_allocations: bool = False) -> BuildReport:
        """Allocate everything, once; returns what was predicted and what was measured.

        Raises:
            OutOfMemoryError: it does not fit; nothing was allocated.
        """
        return measure_build(self.step, self._context, trace_allocations=trace_allocations)

    def resume(self, checkpoint: Path | str | None = None) -> Path:
        """Go on from a checkpoint, the newest of the run folder by default; returns its path.

        Raises:
            CheckpointError: none, damaged, or of another network, config, seed or data; nothing has changed.
            LifecycleError: not built.
        """
        self.step.require_built("resume")
        newest = self.run_folder.newest()
        path = self.run_folder.require_newest() if checkpoint is None else Path(checkpoint)
        if newest is not None and path.resolve() != newest.resolve():
            raise CheckpointError(f"{path}: {newest} is newer; go on from this one in a run folder of its own")
        state = load_checkpoint(path, self.step, self._state())
        self._batches.restore(state.position)
        if state.best_validation_loss is not None and state.best_step is not None:
            self._best = (state.best_validation_loss, state.best_step)
        self._last_checkpoint = path
        self._is_step_open = False
        return path

    # ------------------------------------------------------------------ training

    def run(self, report: Report | None = None, *, until: int | None = None) -> TrainingOutcome:
        """Train to the last step of the config, or to ``until``, and leave a checkpoint there.

        Ctrl-C, like ``request_stop``, ends the run after the step at hand, with a checkpoint; a second Ctrl-C is a
        ``KeyboardInterrupt`` at once, with the last checkpoint kept.

        Args:
            report: is called after every step, validation and checkpoint.
            until: updates after which to stop.

        Raises:
            NonFiniteError: a loss or a gradient is not finite; names the step. The last checkpoint is kept.
            CheckpointError: the run folder belongs to a run that was not resumed, or cannot be written.
            LifecycleError: not built, or a step was cut short before.
        """
        self._require_ready()
        notify = report if report is not None else _ignore
        last = self.config.steps if until is None else min(until, self.config.steps)
        self._stop_requested = False
        with self.run_folder.locked(), first_interrupt_calls(self.request_stop):
            self._require_no_other_run()
            while self.step.update_count < last and not self._stop_requested:
                notify(self._take_step())
                self._look_back(notify)
            if self._last_checkpoint != self._checkpoint_path():
                notify(self._checkpoint())
        best = None if self._best is None else self._best[0]
        return TrainingOutcome(self.step.update_count, self.step.update_count < last, self._last_checkpoint, best)

    def request_stop(self) -> None:
        """End ``run`` after the step at hand; for callbacks and other threads."""
        self._stop_requested = True

    def validate(self) -> float:
        """The mean loss over the validation batches, dropout off; nats per token. Training is as before afterwards.

        Raises:
            LifecycleError: not built.
            DataError: no validation window.
        """
        config, total, rows = self.config, 0.0, 0
        batches = validation_batches(
            self.split.validation, config.batch_size, config.sequence_length, config.validation_batches
        )
        mode = TrainingMode.EVAL if self.step.is_eval_mode else TrainingMode.NORMAL
        self.step.set_training_mode(TrainingMode.EVAL)
        try:
            for inputs, targets in batches:
                total += self._loss_of(*self.step.hold(inputs, targets)) * len(inputs)
                rows += len(inputs)
        finally:
            self.step.set_training_mode(mode)
        return total / rows

    def _require_ready(self) -> None:
        self.step.require_built("run")
        if self._is_step_open:
            raise LifecycleError(f"{self.step.network.path}: a step was cut short; resume from the last checkpoint")
        self.require_free_folder()

    def _require_no_other_run(self) -> None:
        if self._last_checkpoint is None and self.run_folder.newest() is not None:
            raise CheckpointError(f"{self.run_folder.path}: has checkpoints; resume from them, or use another folder")

    def _take_step(self) -> StepReport:
        """Accumulate, clip, update; until it has come to its end, arrays and counts may contradict each other."""
        self._is_step_open = True
        started = time.perf_counter()
        number = self.step.update_count + 1
        learning_rate = self.config.schedule.learning_rate(self.step.update_count)
        loss = self._accumulate()
        if not math.isfinite(loss):
            raise NonFiniteError(f"step {number}: the loss is {loss}; {self._kept()}")
        try:
            norm = self.step.update(learning_rate)
        except NonFiniteError as error:
            raise NonFiniteError(f"step {number}: {error}; {self._kept()}") from error
        self._is_step_open = False
        speed = self.config.tokens_per_step / (time.perf_counter() - started)
        return StepReport(number, loss, learning_rate, norm, speed)

    def _accumulate(self) -> float:
        """The gradients of the mean loss over all parts of a batch, and that loss."""
        parts = self.config.accumulation_steps
        loss = 0.0
        self.step.zero_gradients()
        for _ in range(parts):
            batch = self.step.take(self._batches)
            loss += self._loss_of(*batch) / parts
            self.step.backward(*batch, loss_scale=1.0 / parts)
        return loss

    def _loss_of(self, inputs: Array, targets: Array) -> float:
        """The loss of arrays of the step's device."""
        return float(self.step.device.download(self.step.forward(inputs, targets))[0])

    def _look_back(self, notify: Report) -> None:
        """Validate and save where it is time to."""
        count, config = self.step.update_count, self.config
        improved = False
        if _is_due(count, config.validate_every) or (count == config.steps and config.validate_every is not None):
            validation = self._validation_report()
            improved = validation.is_best
            notify(validation)
        if improved or _is_due(count, config.checkpoint_every):
            notify(self._checkpoint())

    def _validation_report(self) -> ValidationReport:
        loss, count = self.validate(), self.step.update_count
        if not math.isfinite(loss):
            raise NonFiniteError(f"step {count}: the validation loss is {loss}; {self._kept()}")
        is_best = self._best is None or loss < self._best[0]
        if self._best is None or is_best:
            self._best = (loss, count)
        return ValidationReport(count, loss, self._best[0], is_best)

    # ------------------------------------------------------------------ checkpoints

    def _checkpoint(self) -> CheckpointReport:
        """Write, and only then remove what is no longer kept."""
        path, state = self._checkpoint_path(), self._state()
        save_checkpoint(path, self.step, state, self.tokenizer)
        self._last_checkpoint = path
        removed = self.run_folder.prune(self.config.keep_last, state.best_step)
        return CheckpointReport(state.update_count, path, removed)

    def _checkpoint_path(self) -> Path:
        return self.run_folder.checkpoint_path(self.step.update_count)

    def _state(self) -> TrainingState:
        best_loss, best_step = (None, None) if self._best is None else self._best
        return TrainingState(
            config=self.config,
            network_seed=self.step.seed,
            update_count=self.step.update_count,
            training_run_count=self.step.training_run_count,
            data=self._data,
            position=self._batches.position,
            best_validation_loss=best_loss,
            best_step=best_step,
        )

    @cached_property
    def _data(self) -> DataIdentity:
        return DataIdentity.of(self.split)

    def _kept(self) -> str:
        if self._last_checkpoint is None:
            return "there is no checkpoint"
        return f"the last checkpoint is {self._last_checkpoint}"


def _require_known_ids(network: Component[Any], split: TokenSplit) -> None:
    """Refuse ids that a language model has no row for, now and not in the middle of a run."""
    if not isinstance(network, LanguageModel):
        return
    limit = network.config.vocab_size
    for what, tokens in (("training", split.training), ("validation", split.validation)):
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < limit:
            raise DataError(
                f"{what} tokens: expected ids from 0 to {limit - 1}, the vocabulary of {network.path}, "
                f"got {tokens.min()} to {tokens.max()}"
            )


def _is_due(count: int, every: int | None) -> bool:
    return every is not None and count % every == 0


def _ignore(event: TrainingEvent) -> None:
    """Nobody listens."""
