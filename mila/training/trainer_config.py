"""What a training run is, apart from its network and its data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from mila.training.adamw import AdamWConfig
from mila.training.schedules import Schedule

#: Fields that may differ between a checkpoint and the run that goes on from it: they change no number of a step.
CHANGEABLE_FIELDS = frozenset({"steps", "validate_every", "validation_batches", "checkpoint_every", "keep_last"})


class TrainerConfig(BaseModel):
    """Config of :class:`mila.training.Trainer`.

    Attributes:
        steps: updates of the parameters in the whole run, those before a resumption included.
        batch_size: B, sequences in one forward pass.
        sequence_length: T, tokens in a sequence.
        accumulation_steps: forward and backward passes before each update; their gradients are averaged.
        schedule: the learning rate of every step.
        optimizer: of AdamW; clipping is its ``maximum_norm``.
        validate_every: steps between two validations; never where ``None``.
        validation_batches: batches of a validation; all that there are where ``None``.
        checkpoint_every: steps between two checkpoints; where ``None``, the last step has the only one.
        keep_last: how many of the newest checkpoints stay; the one with the best validation loss stays besides.
        seed: of the order of the data.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    sequence_length: int = Field(gt=0)
    accumulation_steps: int = Field(default=1, gt=0)
    schedule: Schedule
    optimizer: AdamWConfig = AdamWConfig()
    validate_every: int | None = Field(default=None, gt=0)
    validation_batches: int | None = Field(default=None, gt=0)
    checkpoint_every: int | None = Field(default=None, gt=0)
    keep_last: int = Field(default=2, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**64)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one update has seen."""
        return self.batch_size * self.sequence_length * self.accumulation_steps
