"""How rotary frequencies are stretched for sequences longer than those of pretraining."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from mila.core import ComponentConfig

Frequencies = NDArray[np.float64]


class LinearScaling(ComponentConfig):
    """All frequencies divided by one factor, which is the same as positions divided by it (Chen et al. 2023).

    Attributes:
        kind: tells the scalings apart in JSON.
        factor: what frequencies are divided by.
    """

    kind: Literal["linear"] = "linear"
    factor: float = Field(gt=0)

    def scaled(self, frequencies: Frequencies) -> Frequencies:
        """The stretched frequencies, in radians per position."""
        return frequencies / self.factor


class Llama3Scaling(ComponentConfig):
    """Low frequencies divided by a factor, high ones kept, those between interpolated (Llama 3.1, Meta 2024).

    Attributes:
        kind: tells the scalings apart in JSON.
        factor: what low frequencies are divided by.
        low_frequency_factor: frequencies that turn at most this often within the pretraining length are low.
        high_frequency_factor: frequencies that turn at least this often within the pretraining length are high.
        original_max_seq_len: the pretraining length, in positions.
    """

    kind: Literal["llama3"] = "llama3"
    factor: float = Field(gt=0)
    low_frequency_factor: float = Field(gt=0)
    high_frequency_factor: float = Field(gt=0)
    original_max_seq_len: int = Field(gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"high_frequency_factor must be greater than low_frequency_factor {self.low_frequency_factor}, "
                f"got {self.high_frequency_factor}"
            )
        return self

    def scaled(self, frequencies: Frequencies) -> Frequencies:
        """The stretched frequencies, in radians per position."""
        low, high = self.low_frequency_factor, self.high_frequency_factor
        turns = frequencies * (self.original_max_seq_len / (2 * math.pi))
        kept: Frequencies = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / self.factor)


#: Either scaling, told apart by ``kind``.
RopeScaling = Annotated[LinearScaling | Llama3Scaling, Field(discriminator="kind")]
