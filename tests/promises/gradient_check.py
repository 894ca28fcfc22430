"""Central differences in float64, against what backward says.

With a step of 1e-6 the truncation error of a smooth function of size 1 is about 1e-12 and the rounding error about
2⁻⁵³ · |f| / 1e-6 ≈ 1e-10 · |f|, so that a relative tolerance of 1e-6 leaves room for both, and 1e-8 times the size
of the sum is the floor under which a gradient counts as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mila.core import TrainingStep
from mila.core.lifecycle import execution_of
from mila.devices import ExecutionContext
from tests.promises.case import TRAINING, Array, Case

STEP = 1e-6
RELATIVE_TOLERANCE = 1e-6
#: Floor, relative to the sum of the magnitudes that the function adds up.
FLOOR = 1e-8
#: Elements of each array of a leaf that are checked one by one, besides directions through all of them.
LEAF_ELEMENTS, LEAF_DIRECTIONS = 6, 2
#: The same for composites, whose leaves are checked by themselves.
COMPOSITE_ELEMENTS, COMPOSITE_DIRECTIONS = 1, 1


def as_tuple(value: Any) -> tuple[Array, ...]:
    """Return the arrays of a call; an output that a config does not have is ``None``."""
    return tuple(each for each in value if each is not None) if isinstance(value, tuple) else (value,)


def output_weights(outputs: Sequence[Array], seed: int = 5) -> list[Array]:
    """Return random gradients, one per output."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(array.shape).astype(array.dtype) for array in outputs]


@dataclass
class Gradients:
    """What backward says: of every input, and of every parameter (``None`` where frozen)."""

    inputs: list[Array]
    parameters: list[Array | None]


class Function:
    """A component as one scalar function of its inputs and parameters.

    A component that draws random numbers makes its first draw at each evaluation.
    """

    def __init__(self, case: Case, device: ExecutionContext) -> None:
        component = case.build(device, TRAINING, "float64")
        component.zero_gradients()
        self.inputs = case.inputs(component)
        self.component = component
        outputs = self._forward()
        self.weights = [] if isinstance(component, TrainingStep) else output_weights(outputs)
        self.size = sum(float(np.abs(w * y).sum()) for w, y in zip(self.weights, outputs, strict=False)) or 1.0
        self.parameters = component.get_parameters()

    def _forward(self) -> tuple[Array, ...]:
        execution_of(self.component, "forward").training_runs = 0  # what is random depends on it
        return as_tuple(self.component.forward(*self.inputs))

    def gradients(self) -> Gradients:
        """Run forward and backward once; returns copies."""
        self._forward()
        found = as_tuple(self.component.backward(*self.inputs, *self.weights))
        parameters = self.component.get_gradients()
        return Gradients([a.copy() for a in found], [None if a is None else a.copy() for a in parameters])

    def value(self) -> float:
        """Evaluate at the present inputs and parameters."""
        outputs = self._forward()
        if not self.weights:
            return float(outputs[0][0])
        return sum(float((w * y).sum()) for w, y in zip(self.weights, outputs, strict=True))

    def slope(self, array: Array, direction: Array) -> float:
        """Return the central difference along ``direction`` in one input or parameter."""
        original = array.copy()
        array += STEP * direction
        above = self.value()
        array[...] = original
        array -= STEP * direction
        below = self.value()
        array[...] = original
        return (above - below) / (2 * STEP)


def directions(array: Array, elements: int, count: int, seed: int) -> list[Array]:
    """Return single elements, and random directions through all elements at once."""
    generator = np.random.default_rng(seed)
    chosen = generator.choice(array.size, min(elements, array.size), replace=False)
    units = []
    for index in chosen:
        unit = np.zeros(array.size)
        unit[index] = 1
        units.append(unit.reshape(array.shape))
    return units + [generator.standard_normal(array.shape) for _ in range(count)]


def disagreements(function: Function, name: str, array: Array, gradient: Array) -> list[str]:
    """Return a line for every direction in which the gradient is not the slope."""
    found = []
    is_leaf = not function.component.is_composite
    counts = (LEAF_ELEMENTS, LEAF_DIRECTIONS) if is_leaf else (COMPOSITE_ELEMENTS, COMPOSITE_DIRECTIONS)
    for index, direction in enumerate(directions(array, *counts, seed=len(name))):
        expected, got = function.slope(array, direction), float((gradient * direction).sum())
        allowed = RELATIVE_TOLERANCE * max(abs(expected), abs(got)) + FLOOR * function.size
        if not abs(expected - got) <= allowed:
            found.append(f"{name}, direction {index}: slope {expected}, gradient {got}")
    return found
