"""A bad argument is refused with the path, what was expected and what came; nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mila.components import Constant, GatherToken
from mila.core import Component, RuntimeMode, TrainingStep
from mila.devices import ExecutionContext
from mila.errors import DTypeError, ShapeError, TokenIdError
from tests.promises.case import TRAINING, Array, Case
from tests.promises.cases import CASES, TRAINED
from tests.promises.gradient_check import as_tuple, output_weights
from tests.promises.running import parameter_gradients

Bad = tuple[str, list[Any], type[Exception]]


def bad_inputs(case: Case, component: Component[Any], good: list[Array]) -> Iterator[Bad]:
    """Yield arguments that do not fit: what is wrong, the arguments, the error."""
    yield "too many", [*good, good[0]], ShapeError
    yield "too few", good[:-1], ShapeError
    for index, (port, array) in enumerate(zip(component.ports, good, strict=True)):

        def replaced(bad: Any, index: int = index) -> list[Any]:
            return [*good[:index], bad, *good[index + 1 :]]

        yield "a larger batch", replaced(np.concatenate([array, array])), ShapeError
        yield "an empty batch", replaced(array[:0]), ShapeError
        yield "an axis more", replaced(array[..., None]), ShapeError
        yield "an axis less", replaced(array[0] if array.ndim > 1 else array[0].reshape(())), ShapeError
        wrong = np.float32 if port.is_ids else np.float16
        yield "another dtype", replaced(array.astype(wrong)), DTypeError
        yield "another byte order", replaced(array.astype(array.dtype.newbyteorder())), DTypeError
        yield "not an array", replaced(array.tolist()), DTypeError
        if array.size > 1:
            spread = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2]
            yield "not contiguous", replaced(spread), ShapeError
        if array.ndim > 1 and not (port.is_ids and array.ndim == 1):
            yield "a larger axis 1", replaced(np.concatenate([array, array], axis=1)), ShapeError


def state(component: Component[Any]) -> list[bytes]:
    gradients = parameter_gradients(component) if component.is_training_mode else []
    return [array.tobytes() for array in [*component.get_parameters(), *gradients]]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("mode", RuntimeMode)
def test_forward_refuses_what_does_not_fit(case: Case, mode: RuntimeMode, device: ExecutionContext) -> None:
    if mode not in case.modes:
        return
    component = case.build(device, mode)
    good = case.inputs(component)
    expected = [array.copy() for array in as_tuple(component.forward(*good))]
    before = state(component)
    for what, arguments, error in bad_inputs(case, component, good):
        with pytest.raises(error) as caught:
            component.forward(*arguments)
        message = str(caught.value)
        assert type(caught.value) is error, what
        assert message.startswith(component.path), message
        assert "expected" in message, message
        assert "got" in message, message
        assert "\n" not in message
    assert state(component) == before
    if not case_is_random(component):
        for a, b in zip(expected, as_tuple(component.forward(*good)), strict=True):
            assert a.tobytes() == b.tobytes()


def case_is_random(component: Component[Any]) -> bool:
    return any(getattr(part.config, "probability", 0) > 0 for part in component.walk()) and component.is_training_mode


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_a_refused_call_does_not_come_between_forward_and_backward(case: Case, device: ExecutionContext) -> None:
    component = case.build(device, TRAINING)
    inputs = case.inputs(component)
    outputs = [array.copy() for array in as_tuple(component.forward(*inputs))]
    weights = [] if isinstance(component, TrainingStep) else output_weights(outputs)
    before = state(component)
    for _, arguments, error in bad_inputs(case, component, inputs):
        with pytest.raises(error):
            component.forward(*arguments)
        with pytest.raises((error, ShapeError)):
            component.backward(*arguments, *weights)
    for bad in bad_gradients(weights):
        with pytest.raises((ShapeError, DTypeError)) as caught:
            component.backward(*inputs, *bad)
        assert str(caught.value).startswith(component.path)
    assert state(component) == before
    component.backward(*inputs, *weights)


def bad_gradients(weights: list[Array]) -> Iterator[list[Any]]:
    for index, array in enumerate(weights):
        for bad in (array[:0], array[..., None], array.astype(np.float16), array.astype(np.int32), None):
            yield [*weights[:index], bad, *weights[index + 1 :]]


IDS = [case for case in CASES if any(port.is_ids for port in case.make(None).ports)]
#: What compares ids, or only counts their rows, takes them all.
LOOKED_UP = [case for case in IDS if not any(isinstance(p, Constant | GatherToken) for p in case.make(None).walk())]


@pytest.mark.parametrize("case", LOOKED_UP, ids=str)
@pytest.mark.parametrize("bad", [-1, 2**31 - 1, 2**40])
def test_an_id_outside_the_vocabulary_is_named(case: Case, bad: int, device: ExecutionContext) -> None:
    component = case.build(device, case.modes[-1])
    inputs = case.inputs(component)
    index = [port.is_ids for port in component.ports].index(True)
    ids = inputs[index].astype(np.int64)
    ids.reshape(-1)[-1] = bad
    before = state(component)
    with pytest.raises(TokenIdError, match=rf"{bad} at position \(") as caught:
        component.forward(*inputs[:index], ids, *inputs[index + 1 :])
    assert isinstance(caught.value, IndexError)
    assert state(component) == before
    component.forward(*inputs)


@pytest.mark.parametrize("case", IDS, ids=str)
def test_int64_ids_give_the_same_as_int32(case: Case, device: ExecutionContext) -> None:
    component, wide = (case.build(device, case.modes[-1]) for _ in range(2))
    inputs = case.inputs(component)
    widened = [array.astype(np.int64) if array.dtype == np.int32 else array for array in inputs]
    for a, b in zip(as_tuple(component.forward(*inputs)), as_tuple(wide.forward(*widened)), strict=True):
        assert a.tobytes() == b.tobytes()
