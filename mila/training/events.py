"""What a training run reports while it runs; whoever listens decides how it looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StepReport:
    """One update of the parameters.

    Attributes:
        step: updates so far, this one included.
        loss: mean over the batch, before the update; nats per token.
        learning_rate: what the schedule gave.
        gradient_norm: before clipping.
        tokens_per_second: tokens of the step over its time, checkpoints and validation aside.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float


@dataclass(frozen=True)
class ValidationReport:
    """One validation.

    Attributes:
        step: updates so far.
        loss: mean over the validation batches, dropout off; nats per token.
        best_loss: the lowest of the run so far, this one included.
        is_best: whether this one is the lowest.
    """

    step: int
    loss: float
    best_loss: float
    is_best: bool


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint that is complete.

    Attributes:
        step: updates so far.
        path: its folder.
        removed: older checkpoints that were removed afterwards.
    """

    step: int
    path: Path
    removed: tuple[Path, ...]


TrainingEvent = StepReport | ValidationReport | CheckpointReport
Report = Callable[[TrainingEvent], None]


@dataclass(frozen=True)
class TrainingOutcome:
    """How a call of ``Trainer.run`` ended.

    Attributes:
        step: updates so far.
        interrupted: whether somebody asked it to stop before its last step.
        last_checkpoint: the newest complete checkpoint, ``None`` where there is none.
        best_validation_loss: the lowest so far, ``None`` where nothing was validated.
    """

    step: int
    interrupted: bool
    last_checkpoint: Path | None
    best_validation_loss: float | None
