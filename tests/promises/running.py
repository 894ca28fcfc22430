"""Everything that a built component can be asked to do, with copies of all that it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mila.components import Attention
from mila.core import Component, Position, RuntimeMode, TrainingMode, TrainingStep
from tests.promises.case import TRAINING, Array, Case
from tests.promises.gradient_check import as_tuple, output_weights

Shape = tuple[int, ...]


def built_shapes(component: Component[Any]) -> Mapping[str, Shape]:
    assert component.build_context is not None
    return component.build_context.input_shapes


def has_sequence_axis(is_ids: bool, shape: Shape) -> bool:
    return len(shape) >= (2 if is_ids else 3)


def shrunk(component: Component[Any], batch: int | None, length: int | None) -> dict[str, Shape]:
    """Return the built shapes with another batch, and another length where there is a sequence axis."""
    shapes = {}
    for port in component.ports:
        shape = list(built_shapes(component)[port.name])
        if batch is not None:
            shape[0] = min(batch, shape[0])
        if length is not None and has_sequence_axis(port.is_ids, tuple(shape)):
            shape[1] = min(length, shape[1])
        shapes[port.name] = tuple(shape)
    return shapes


def smaller_shapes(component: Component[Any]) -> list[dict[str, Shape]]:
    """Return every way to shrink the batch, the length and both by one, and to one; nothing for a rank of 1."""
    shapes = built_shapes(component)
    if any(len(shape) == 1 and not port.is_ids for port, shape in zip(component.ports, shapes.values(), strict=True)):
        return []
    batch = next(iter(shapes.values()))[0]
    lengths = [
        shape[1]
        for port, shape in zip(component.ports, shapes.values(), strict=True)
        if has_sequence_axis(port.is_ids, shape)
    ]
    length = max(lengths, default=1)
    found = []
    for smaller_batch, smaller_length in ((batch - 1, None), (None, length - 1), (batch - 1, length - 1), (1, 1)):
        if min(smaller_batch or batch, smaller_length or length) >= 1:
            changed = shrunk(component, smaller_batch, smaller_length)
            if changed != shapes and changed not in found and 0 not in (smaller_batch, smaller_length):
                found.append(changed)
    return found


def gradients_of(component: Component[Any], inputs: list[Array], outputs: tuple[Array, ...]) -> Iterator[Array]:
    """Run backward; yield what it returns."""
    weights = [] if isinstance(component, TrainingStep) else output_weights(outputs)
    yield from as_tuple(component.backward(*inputs, *weights))


def parameter_gradients(component: Component[Any]) -> list[Array]:
    return [array for array in component.get_gradients() if array is not None]


def train_once(component: Component[Any], inputs: list[Array]) -> Iterator[tuple[str, Array]]:
    """Yield outputs, gradients of inputs and gradients of parameters of one forward and backward, copied in time."""
    outputs = tuple(array.copy() for array in as_tuple(component.forward(*inputs)))
    yield from (("output", array) for array in outputs)
    yield from (("input gradient", array.copy()) for array in gradients_of(component, inputs, outputs))
    yield from (("parameter gradient", array.copy()) for array in parameter_gradients(component))


def train(case: Case, component: Component[Any]) -> Iterator[tuple[str, Array]]:
    """Yield what a training build answers: twice at full size, smaller, with evaluations in between, and updated."""
    inputs = case.inputs(component)
    yield from train_once(component, inputs)
    yield from train_once(component, case.inputs(component, seed=1))
    component.zero_gradients()
    for index, shapes in enumerate(filter(case.takes, smaller_shapes(component))):
        yield from train_once(component, case.inputs_of(component, shapes, seed=index))
    component.set_training_mode(TrainingMode.EVAL)
    yield from (("evaluated", array.copy()) for array in as_tuple(component.forward(*inputs)))
    component.set_training_mode(TrainingMode.NORMAL)
    yield from train_once(component, inputs)
    if isinstance(component, TrainingStep):
        yield from update(component, inputs)


def update(component: TrainingStep, inputs: list[Array]) -> Iterator[tuple[str, Array]]:
    """Yield what optimizer steps leave, and logits between them."""
    for _ in range(2):
        for _ in train_once(component, inputs):
            pass
        yield "norm", np.array([component.update(0.01)])
        yield "logits", component.logits(inputs[0]).copy()
        yield from (("updated parameter", array.copy()) for array in component.get_parameters())


def infer(case: Case, component: Component[Any]) -> Iterator[tuple[str, Array]]:
    """Yield what an inference build answers: at full size, smaller, and token after token at later positions."""
    shapes = built_shapes(component)
    yield from (("output", array.copy()) for array in as_tuple(component.forward(*case.inputs(component))))
    for index, changed in enumerate(filter(case.takes, smaller_shapes(component))):
        inputs = case.inputs_of(component, changed, seed=index)
        yield from (("output", array.copy()) for array in as_tuple(component.forward(*inputs)))
    if all(has_sequence_axis(port.is_ids, shape) for port, shape in zip(component.ports, shapes.values(), strict=True)):
        yield from decode(case, component)


def decode(case: Case, component: Component[Any]) -> Iterator[tuple[str, Array]]:
    """Yield the outputs of a ragged first chunk, and of one token per row after it."""
    assert component.build_context is not None
    batch, length = next(iter(built_shapes(component).values()))[:2]
    sees_padding = any(isinstance(c, Attention) and not c.config.causal for c in component.walk())
    lengths = [length if sees_padding else max(1, length - row) for row in range(batch)]
    first = as_tuple(component.forward(*case.inputs(component), position=Position(0, lengths)))
    yield from (("ragged", array.copy()) for array in first)
    capacity = component.build_context.max_seq_len or length
    one = shrunk(component, None, 1)
    if capacity > length and case.takes(one):
        token = case.inputs_of(component, one, seed=9)
        yield from (("decoded", a.copy()) for a in as_tuple(component.forward(*token, position=Position(lengths))))


def everything(case: Case, component: Component[Any], mode: RuntimeMode) -> list[tuple[str, Array]]:
    """Return all answers of a built component, in order."""
    return list(train(case, component) if mode is TRAINING else infer(case, component))


def differences(expected: list[tuple[str, Array]], got: list[tuple[str, Array]]) -> list[str]:
    """Return a line for every answer that is not the same bits, or not a number."""
    found = []
    for index, ((label, a), (other, b)) in enumerate(zip(expected, got, strict=True)):
        if label != other or a.shape != b.shape or a.dtype != b.dtype:
            found.append(f"{index} {label} {a.shape} {a.dtype}: {other} {b.shape} {b.dtype}")
        elif not np.isfinite(b).all():
            found.append(f"{index} {label}: not finite")
        elif a.tobytes() != b.tobytes():
            found.append(f"{index} {label}: differs by {np.abs(a - b).max()}")
    return found
