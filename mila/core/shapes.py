"""Small rules that many shape checks share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mila.errors import ShapeError
from mila.memory.storage import Shape

if TYPE_CHECKING:
    from mila.core.component import Component


def row_count(shape: Shape) -> int:
    """Number of rows: all axes but the last, flattened."""
    return math.prod(shape[:-1])


def require_rank(component: Component[Any], shape: Shape, letters: str) -> Shape:
    """``shape``, if it has as many axes as ``letters`` names (such as ``"B, T, C"``)."""
    if len(shape) != len(letters.split(",")):
        raise ShapeError(f"{component.path}: expected an input of shape ({letters}), got {shape}")
    return shape


def require_width(component: Component[Any], shape: Shape, width: int, *, minimum_rank: int = 1) -> Shape:
    """``shape``, if its last axis is ``width`` and it has at least ``minimum_rank`` axes."""
    if len(shape) < minimum_rank or shape[-1] != width:
        raise ShapeError(f"{component.path}: expected {minimum_rank} or more axes, the last of {width}, got {shape}")
    return shape


def require_equal(component: Component[Any], first: Shape, second: Shape) -> Shape:
    """``first``, if ``second`` is the same."""
    if first != second:
        raise ShapeError(f"{component.path}: expected two inputs of one shape, got {first} and {second}")
    return first


def require_axis(component: Component[Any], shape: Shape, axis: int) -> int:
    """``axis``, counted from 0, if ``shape`` has it."""
    if axis >= len(shape):
        raise ShapeError(f"{component.path}: expected an input with an axis {axis}, got {shape}")
    return axis
