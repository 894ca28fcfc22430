"""FP8 rows with one scale each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from mila.memory.storage import FLOAT8_E4M3

#: The largest finite float8_e4m3fn.
LARGEST_E4M3 = 448.0
#: Elements widened at a time.
_CHUNK = 1 << 18


class PerChannelFp8(BaseModel):
    """Every row as float8_e4m3fn with a float32 scale: ``absmax / 448``, 1 for a row of zeros; ``w ≈ q * scale``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["per_channel_fp8_e4m3"] = "per_channel_fp8_e4m3"


def quantize_rows(table: NDArray[Any], scales: NDArray[np.float32], values: NDArray[Any]) -> None:
    """Quantize ``values (V, C)`` into ``table (V, C)`` float8_e4m3fn and ``scales (V,)``, some rows at a time."""
    for start, block in _row_blocks(values):
        rows = len(block)
        largest = np.abs(block).max(axis=1, initial=0)
        scale = np.where(largest > 0, largest / np.float32(LARGEST_E4M3), np.float32(1))
        scales[start : start + rows] = scale
        table[start : start + rows] = np.clip(block / scale[:, None], -LARGEST_E4M3, LARGEST_E4M3).astype(FLOAT8_E4M3)


def rows_are_finite(values: NDArray[Any]) -> bool:
    """Whether every value of ``values (V, C)`` is a finite float32."""
    return all(bool(np.isfinite(block).all()) for _, block in _row_blocks(values))


def _row_blocks(values: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Some rows at a time, as float32, with the index of the first."""
    rows = max(1, _CHUNK // max(1, values.shape[1]))
    for start in range(0, values.shape[0], rows):
        with np.errstate(over="ignore"):  # what overflows is infinite, and refused
            yield start, values[start : start + rows].astype(np.float32)
