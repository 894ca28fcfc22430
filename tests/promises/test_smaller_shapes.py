"""A run smaller than the build gives what a build of exactly that size gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mila.devices import ExecutionContext
from mila.errors import ShapeError
from tests.promises.case import INFERENCE, TRAINING, Array, Case, everything_fits
from tests.promises.cases import CASES, TRAINED
from tests.promises.gradient_check import as_tuple
from tests.promises.running import built_shapes, smaller_shapes, train_once

#: How far tile sizes, which follow the built shape, may move a sum of float64 numbers.
TOLERANCE = 1e-13


def close(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_training_at_a_smaller_shape(case: Case, device: ExecutionContext) -> None:
    large = case.build(device, TRAINING, "float64")
    is_random = any(part.is_random for part in large.walk())
    for shapes in filter(case.takes, smaller_shapes(large)):
        exact = case.build(device, TRAINING, "float64", shapes=shapes)
        if is_random:  # both make their first draw
            large = case.build(device, TRAINING, "float64")
        large.zero_gradients()
        inputs = case.inputs(exact)
        for (label, a), (_, b) in zip(train_once(exact, inputs), train_once(large, inputs), strict=True):
            assert close(a, b), f"{label} at {shapes}"


@pytest.mark.parametrize("case", [case for case in CASES if INFERENCE in case.modes], ids=str)
def test_inference_at_a_smaller_shape(case: Case, device: ExecutionContext) -> None:
    large = case.build(device, INFERENCE, "float64")
    for shapes in filter(case.takes, smaller_shapes(large)):
        exact = case.build(device, INFERENCE, "float64", shapes=shapes, **exactly(case, shapes))
        assert built_shapes(exact) == shapes
        inputs = case.inputs(exact)
        for a, b in zip(as_tuple(exact.forward(*inputs)), as_tuple(large.forward(*inputs)), strict=True):
            assert close(a, b), f"output at {shapes}"


@pytest.mark.parametrize("case", [case for case in CASES if case.takes is not everything_fits], ids=str)
def test_what_cannot_be_smaller_is_refused(case: Case, device: ExecutionContext) -> None:
    component = case.build(device, case.modes[-1], "float64")
    for shapes in itertools.filterfalse(case.takes, smaller_shapes(component)):
        with pytest.raises(ShapeError, match=r"expected .* got ") as caught:
            component.forward(*case.inputs_of(component, shapes))
        assert str(caught.value).startswith(component.path)
    component.forward(*case.inputs(component))


def exactly(case: Case, shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the build option under which a chunk is the whole sequence, where a component works on chunks."""
    given = case.options.get(INFERENCE, {})
    return {"prefill_size": next(iter(shapes.values()))[1]} if "prefill_size" in given else {}


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_training_equals_inference_where_nothing_is_random(case: Case, device: ExecutionContext) -> None:
    """The last position, where that is all that an inference build gives."""
    component = case.build(device, TRAINING, "float64")
    if INFERENCE not in case.modes or any(getattr(part.config, "probability", 0) for part in component.walk()):
        return
    alone = case.build(device, INFERENCE, "float64")
    inputs = case.inputs(alone)
    for a, b in zip(as_tuple(component.forward(*inputs)), as_tuple(alone.forward(*inputs)), strict=True):
        assert close(a[:, -1:] if a.shape != b.shape else a, b)
