"""Where the rows of a batch stand, as kernels take it: a structure passed by value (``row_positions.cuh``).

A copy of a few integers to the device for every call would make the host wait, layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

#: Rows of a launch.
MOST_ROWS: Final = 64

_ROW_POSITIONS: Final = np.dtype([("start", np.int64, MOST_ROWS), ("length", np.int64, MOST_ROWS)], align=True)


def row_positions(starts: Sequence[int], lengths: Sequence[int]) -> np.void:
    """``RowPositions`` of at most ``MOST_ROWS`` rows."""
    rows = np.zeros(1, _ROW_POSITIONS)
    rows["start"][0, : len(starts)] = starts
    rows["length"][0, : len(lengths)] = lengths
    structure: np.void = rows[0]
    return structure


#: Of a launch that does not look.
NO_POSITIONS: Final = row_positions((), ())


def row_blocks(count: int, step: int = MOST_ROWS) -> Iterator[slice]:
    """``count`` rows in blocks of at most ``step``."""
    for start in range(0, count, step):
        yield slice(start, min(count, start + step))
