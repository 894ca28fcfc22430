"""One call of ``forward``: where its rows stand, and what its steps see."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mila.errors import ShapeError

if TYPE_CHECKING:
    from mila.core.component import Component


@dataclass(frozen=True)
class Position:
    """Where the rows of a batch stand: the position of their first token, and how many tokens of each are valid.

    Rows are aligned to the left. One number serves all rows.
    """

    start: int | Sequence[int] = 0
    length: int | Sequence[int] | None = None


@dataclass(slots=True)
class Run:
    """One call of ``forward``, as its steps see it.

    Attributes:
        starts, lengths: position of the first token and number of valid tokens, per row.
        is_training: whether this run may be followed by ``backward``, and dropout is on.
        step: how many training runs came before: part of the key of random draws.
        seed: the root's seed.
        last_only: only the logits of the last position are asked for.
    """

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    is_training: bool
    step: int
    seed: int
    last_only: bool = False


def rows_of(
    root: Component[Any], position: Position, rows: int, length: int, limit: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Start and length of every row.

    Raises:
        ShapeError: not one for each row, or positions below 0 or beyond ``limit``.
    """
    starts = _per_row(root, position.start, rows, "start")
    lengths = _per_row(root, length if position.length is None else position.length, rows, "length")
    for row, (start, valid) in enumerate(zip(starts, lengths, strict=True)):
        if start < 0 or not 1 <= valid <= length or start + valid > limit:
            raise ShapeError(
                f"{root.path}: row {row} of position has start {start} and length {valid}; expected a "
                f"start from 0, a length from 1 to {length}, and at most {limit} positions in all"
            )
    return starts, lengths


def _per_row(root: Component[Any], values: int | Sequence[int], rows: int, what: str) -> tuple[int, ...]:
    try:
        result = (operator.index(values),) * rows if np.ndim(values) == 0 else tuple(map(operator.index, values))  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError(f"{root.path}: position.{what} expected integers, got {values!r}") from None
    if len(result) != rows:
        raise ShapeError(f"{root.path}: position.{what} expected {rows} rows, got {len(result)}")
    return result
