"""Learning rate schedules: frozen configs with one pure function of the step.

Steps are counted from 0. With ``warmup_steps = W`` all schedules start alike::

    learning_rate(step) = initial * (step + 1) / W          for step < W

so step 0 takes ``initial / W``, never zero, and step ``W - 1`` takes ``initial``. From step ``W`` on a decaying
schedule goes from ``initial`` to ``final`` with ``t = (step - W) / (total_steps - W)``; ``total_steps`` counts the
warm-up, and from ``step == total_steps`` on the rate is exactly ``final``. A schedule has no state: a resumed run asks
for the step that it has reached. All values are Python floats (double precision).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from mila.errors import ConfigurationError


class BaseSchedule(BaseModel, ABC):
    """What all schedules have: the rate after the warm-up, and the length of the warm-up.

    Raises:
        pydantic.ValidationError: a field is missing, unknown or out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    initial: float = Field(gt=0)
    warmup_steps: int = Field(default=0, ge=0)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of ``step``, counted from 0.

        Raises:
            ConfigurationError: ``step`` is negative.
        """
        if step < 0:
            raise ConfigurationError(f"{type(self).__name__}: expected a step of 0 or more, got {step}")
        if step < self.warmup_steps:
            return self.initial * ((step + 1) / self.warmup_steps)
        return self.after_warmup(step)

    @abstractmethod
    def after_warmup(self, step: int) -> float:
        """Return the learning rate of a ``step`` that is not part of the warm-up."""


class ConstantSchedule(BaseSchedule):
    """``initial`` for ever."""

    kind: Literal["constant"] = "constant"

    def after_warmup(self, step: int) -> float:
        """Return ``initial``."""
        return self.initial


class DecayingSchedule(BaseSchedule):
    """From ``initial`` to ``final`` (zero is allowed) over ``total_steps``, the warm-up among them."""

    final: float = Field(default=0.0, ge=0)
    total_steps: int = Field(gt=0)

    @model_validator(mode="after")
    def leave_steps_after_the_warmup(self) -> Self:
        """Refuse a warm-up that takes all steps: nothing would be left to decay in."""
        if self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"warmup_steps: expected fewer than total_steps ({self.total_steps}), got {self.warmup_steps}"
            )
        return self

    def after_warmup(self, step: int) -> float:
        """Return ``final`` from ``total_steps`` on, before that what the progress gives."""
        if step >= self.total_steps:
            return self.final
        return self.at_progress((step - self.warmup_steps) / (self.total_steps - self.warmup_steps))

    @abstractmethod
    def at_progress(self, t: float) -> float:
        """Return the learning rate at the share ``t`` of the decay, 0 <= t < 1."""


class LinearSchedule(DecayingSchedule):
    """``initial + (final - initial) * t``."""

    kind: Literal["linear"] = "linear"

    def at_progress(self, t: float) -> float:
        """Return the point at ``t`` on the line from ``initial`` to ``final``."""
        return self.initial + (self.final - self.initial) * t


class CosineSchedule(DecayingSchedule):
    """``final + 0.5 * (initial - final) * (1 + cos(pi * t))`` (Loshchilov and Hutter, 2017, without restarts)."""

    kind: Literal["cosine"] = "cosine"

    def at_progress(self, t: float) -> float:
        """Return the point at ``t`` on half a cosine wave from ``initial`` to ``final``."""
        return self.final + 0.5 * (self.initial - self.final) * (1.0 + math.cos(math.pi * t))


Schedule = Annotated[ConstantSchedule | LinearSchedule | CosineSchedule, Field(discriminator="kind")]


def schedule_from_json(text: str | bytes) -> Schedule:
    """Read what ``schedule.model_dump_json()`` wrote; the field ``kind`` says which schedule it is.

    Raises:
        pydantic.ValidationError: not JSON, an unknown kind, or fields that the schedule refuses.
    """
    schedule: Schedule = TypeAdapter[Schedule](Schedule).validate_json(text)
    return schedule
