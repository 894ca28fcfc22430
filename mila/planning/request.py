"""What somebody wants to know about a model."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class Mode(StrEnum):
    """What the model is built for."""

    INFERENCE = "inference"
    TRAINING = "training"


class OptimizerKind(StrEnum):
    """Whose moments a training step holds."""

    ADAMW = "adamw"
    NONE = "none"


class PlanRequest(BaseModel):
    """How a model is to be built; ``None`` leaves the choice to the model, and the report says what was chosen.

    Attributes:
        mode: inference, or training.
        context: positions T: those of the cache in inference, of a sequence in training; by default all that the
            model allows.
        batch: sequences B.
        prefill: positions that one call takes at most, in inference.
        dtype: stored dtype: ``float32``, ``bfloat16``, ``float16`` or ``float64``; by default float32, as
            ``from_pretrained`` builds.
        quantize: a quantization policy by its name.
        optimizer: of a training step; with ``none`` the network alone, gradients but no moments.
        accumulate: passes per update.
        device: ``cpu`` or ``cuda:<index>``; it need not be here.
        budget: bytes there are; by default those that are free now on a device that is here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Mode = Mode.INFERENCE
    context: PositiveInt | None = None
    batch: PositiveInt = 1
    prefill: PositiveInt | None = None
    dtype: str | None = None
    quantize: str | None = None
    optimizer: OptimizerKind = OptimizerKind.ADAMW
    accumulate: PositiveInt = 1
    device: str = "cpu"
    budget: int | None = Field(default=None, ge=0)
