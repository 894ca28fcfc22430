"""FP8 rows with one scale each."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from mila.memory.storage import FLOAT8_E4M3

#: The largest finite float8_e4m3fn.
LARGEST_E4M3 = 448.0


class PerChannelFp8(BaseModel):
    """Every row as float8_e4m3fn with a float32 scale: ``absmax / 448``, 1 for a row of zeros; ``w ≈ q * scale``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["per_channel_fp8_e4m3"] = "per_channel_fp8_e4m3"


def quantize_rows(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """The rows of ``values (N, C)``, quantized: (N, C) float8_e4m3fn and their scales (N,)."""
    rows = values.astype(np.float32)
    largest = np.abs(rows).max(axis=1, initial=0)
    scales = np.where(largest > 0, largest / np.float32(LARGEST_E4M3), np.float32(1))
    return np.clip(rows / scales[:, None], -LARGEST_E4M3, LARGEST_E4M3).astype(FLOAT8_E4M3), scales


def rows_are_finite(values: NDArray[Any]) -> bool:
    """Whether every value is finite as a float32."""
    with np.errstate(over="ignore"):  # what overflows is infinite, and refused
        return bool(np.isfinite(values.astype(np.float32)).all())


def scales_are_usable(scales: NDArray[Any]) -> bool:
    """Whether every scale is finite and positive as a float32."""
    stored = scales.astype(np.float32)
    return bool((np.isfinite(stored) & (stored > 0)).all())
