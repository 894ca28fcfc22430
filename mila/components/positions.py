"""Rows of a batch against tables of positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mila.core import Run
from mila.core.component import Component
from mila.errors import ShapeError
from mila.memory.storage import Shape


def require_positions(component: Component[Any], shape: Shape, max_seq_len: int, limit: int) -> Shape:
    """``shape (B, T, C)``, if neither T nor ``max_seq_len`` is beyond ``limit``."""
    longest = max(shape[1], max_seq_len)
    if longest > limit:
        raise ShapeError(f"{component.path}: expected at most {limit} positions, got {longest}")
    return shape


def blocks_within(run: Run, length: int, limit: int) -> Iterator[tuple[slice, int, tuple[int, ...]]]:
    """(rows, positions, starts) to look up in a table of ``limit`` positions.

    All rows at once where they fit; row by row where the padding of one reaches beyond the table.
    """
    if max(run.starts, default=0) + length <= limit:
        yield slice(0, len(run.starts)), length, run.starts
        return
    for row, start in enumerate(run.starts):
        yield slice(row, row + 1), min(length, limit - start), (start,)
