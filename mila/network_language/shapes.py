"""Shapes with a free batch: axis 0 is an int, ``"B"``, or a multiple such as ``"2*B"``."""

from __future__ import annotations

from collections.abc import Sequence

Entry = int | str
NetworkShape = tuple[Entry, ...]


def shape_text(shape: Sequence[Entry]) -> str:
    """Return a shape as tables print it: ``[2*B, 4]``."""
    return f"[{', '.join(map(str, shape))}]"


def rows_of(batch: Entry) -> tuple[int, bool]:
    """Return how many rows, or how many times the free batch, and whether the batch is free."""
    if isinstance(batch, int):
        return batch, False
    return (1 if batch == "B" else int(batch.removesuffix("*B"))), True


def batch_entry(rows: int, free: bool) -> Entry:
    """Return the entry of axis 0 for so many rows, or for so many times the free batch."""
    if not free:
        return rows
    return "B" if rows == 1 else f"{rows}*B"


def row_elements(shape: Sequence[Entry]) -> int:
    """Return the elements of a tensor; of a free batch those of one row of the network's input."""
    elements = rows_of(shape[0])[0]
    for size in shape[1:]:
        elements *= int(size)
    return elements
