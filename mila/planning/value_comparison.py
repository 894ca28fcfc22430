"""Comparing the values of two stored tensors, by tiles, whatever their dtypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mila.planning.stored_content import Array, StoredContent, StoredTensor

#: Elements that are compared at once; as float64 they are 1 MiB on each side.
_TILE_ELEMENTS = 1 << 17
_TILE_BYTES = 1 << 20


@dataclass
class ValueComparison:
    """How two tensors of one shape differ.

    Attributes:
        unit: what is counted: ``elements``, or ``blocks`` and ``bytes`` where their numbers are not looked at.
        same_bytes: every byte is the same, in one dtype.
        differing: how many values differ; NaN equals NaN, and zero its negative.
        beyond_tolerance: how many of them by more than was allowed.
        nan_in_one: how many are NaN on one side alone.
        infinite: how many of those that differ are NaN on no side, and infinite on one or, with another sign, on both.
        largest_absolute: the largest difference of two finite values.
        largest_relative: the largest such difference divided by the larger magnitude of the two.
    """

    unit: Literal["elements", "blocks", "bytes"] = "elements"
    same_bytes: bool = True
    differing: int = 0
    beyond_tolerance: int = 0
    nan_in_one: int = 0
    infinite: int = 0
    largest_absolute: float | None = None
    largest_relative: float | None = None


@dataclass(frozen=True)
class Side:
    """A tensor and the open content that has it."""

    content: StoredContent
    tensor: StoredTensor


def incomparable(a: StoredTensor, b: StoredTensor) -> str | None:
    """Why no values can be compared; ``None`` where they can."""
    if a.shape != b.shape:
        return "other shapes"
    if a.dtype == b.dtype:
        return None
    kinds = {_kind(a), _kind(b)}
    if None in kinds:
        return f"numbers of {a.dtype} and {b.dtype} are compared with their own kind alone, by their bytes"
    if len(kinds) > 1:
        return f"{a.dtype} and {b.dtype} are different kinds of numbers"
    return None


def compare_values(
    a: Side, b: Side, *, tolerance: float, on_read: Callable[[int], None] | None = None
) -> ValueComparison:
    """Compare all values of two tensors that are not :func:`incomparable`.

    Floats become float64, which holds every one of them exactly; integers stay integers. What has no NumPy dtype is
    compared by its bytes.

    Args:
        a: one tensor.
        b: the other, of the same shape.
        tolerance: absolute differences up to this one are allowed.
        on_read: called with the bytes of every read, on both sides together.

    Raises:
        CheckpointError: a file changed, or cannot be read.
    """
    found = ValueComparison(same_bytes=a.tensor.dtype == b.tensor.dtype)
    by_bytes = a.tensor.numpy_dtype is None
    if by_bytes:
        found.unit = "bytes" if a.tensor.block is None else "blocks"
    units = [a.tensor.unit_bytes, b.tensor.unit_bytes]
    step = max(1, _TILE_BYTES // units[0]) if by_bytes else _TILE_ELEMENTS
    count = a.tensor.nbytes // units[0]
    buffers = [np.empty(min(step, count) * unit, np.uint8) for unit in units]
    for side in (a, b):
        side.content.files[side.tensor.file].require_unchanged()
    for first in range(0, count, step):
        pieces = [buffer[: (count - first) * unit] for buffer, unit in zip(buffers, units, strict=True)]
        for side, piece, unit in zip((a, b), pieces, units, strict=True):
            side.content.read_into(side.tensor, first * unit, piece)
            if on_read is not None:
                on_read(piece.size)
        if a.tensor.dtype == b.tensor.dtype:
            if np.array_equal(pieces[0], pieces[1]):
                continue
            found.same_bytes = False
        if by_bytes:
            _count_units(found, pieces, units[0])
        else:
            _count_values(found, _values(a.tensor, pieces[0]), _values(b.tensor, pieces[1]), tolerance)
    for side in (a, b):
        side.content.files[side.tensor.file].require_unchanged()
    return found


def _kind(tensor: StoredTensor) -> str | None:
    """Numbers that one type holds exactly: ``float``, ``integer``, ``complex``."""
    if tensor.numpy_dtype is None:
        return None
    kind = tensor.numpy_dtype.kind
    return "integer" if kind in "biu" else "complex" if kind == "c" else "float"


def _values(tensor: StoredTensor, piece: Array) -> Array:
    dtype, kind = tensor.numpy_dtype, _kind(tensor)
    if dtype is None or dtype.kind == "b":
        return piece  # truth values as their bytes: NumPy's own are right for 0 and 1 only
    values: Array = piece.view(dtype)
    with np.errstate(invalid="ignore"):  # of a NaN of another kind
        if kind == "complex":
            return values.astype(np.complex128)
        return values.astype(np.float64) if kind == "float" else values


def _count_units(found: ValueComparison, pieces: list[Array], unit: int) -> None:
    a, b = (piece.reshape(-1, unit) for piece in pieces)
    differing = int(np.count_nonzero((a != b).any(axis=1)))
    found.differing += differing
    found.beyond_tolerance += differing


def _count_values(found: ValueComparison, a: Array, b: Array, tolerance: float) -> None:
    differs = a != b
    is_nan = [np.isnan(values) for values in (a, b)] if a.dtype.kind in "fc" else None
    if is_nan is not None:
        differs &= ~(is_nan[0] & is_nan[1])
        found.nan_in_one += int(np.count_nonzero(is_nan[0] ^ is_nan[1]))
    count = int(np.count_nonzero(differs))
    if not count:
        return
    found.differing += count
    a, b = a[differs], b[differs]
    if is_nan is not None:
        both_finite = np.isfinite(a) & np.isfinite(b)
        found.infinite += int(np.count_nonzero(~(both_finite | np.isnan(a) | np.isnan(b))))
        a, b = a[both_finite], b[both_finite]
    if not a.size:
        found.beyond_tolerance += count
        return
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        absolute = _distances(a, b)
        relative = absolute / np.maximum(np.abs(a.astype(_wide(a))), np.abs(b.astype(_wide(b))))
    found.beyond_tolerance += count - int(np.count_nonzero(absolute <= tolerance))
    largest = [float(np.nan_to_num(each).max()) for each in (absolute, relative)]
    found.largest_absolute = max(found.largest_absolute or 0.0, largest[0])
    found.largest_relative = max(found.largest_relative or 0.0, largest[1])


def _wide(values: Array) -> type[np.float64] | type[np.complex128]:
    return np.complex128 if values.dtype.kind == "c" else np.float64


def _distances(a: Array, b: Array) -> Array:
    """How far values are apart, as float64; of integers the difference is exact before it becomes one."""
    if a.dtype.kind in "fc":
        apart: Array = np.abs(a - b)
        return apart
    is_larger = a > b
    # Unsigned arithmetic wraps: the smaller from the larger is right whatever the signs.
    high, low = (np.where(is_larger, x.astype(np.uint64), y.astype(np.uint64)) for x, y in ((a, b), (b, a)))
    distances: Array = (high - low).astype(np.float64)
    return distances
