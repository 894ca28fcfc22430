"""Ways to break a promise, so that its test can show that it would notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mila.components import Activation
from mila.core import BuildContext, Component, LeafContext, Run
from mila.memory.declarations import Declaration, Lifetime, workspace
from tests.promises.case import Array


class AllocatesAtConstruction(Activation):
    """Has 64 bytes from the start."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.extra = np.empty(64, np.uint8)


class GrowsAfterAsking(Activation):
    """Declares 64 bytes more each time that it is asked."""

    asked = 0

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        yield from super().declare(context)
        self.asked += 1
        yield workspace("extra", (16 * self.asked,), np.dtype(np.float32), during=Lifetime.FORWARD)


class AllocatesAtBuild(Activation):
    """Allocates ``extra_bytes`` beside its declaration when it is built."""

    extra_bytes = 64
    extra: Array | None = None

    def on_building(self, context: BuildContext) -> None:
        super().on_building(context)
        self.extra = np.empty(self.extra_bytes, np.uint8)


class AllocatesInForward(Activation):
    """Computes with one temporary as large as its input."""

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        np.multiply(inputs[0], 2.0)
        return super().forward_step(run, *inputs)


class AllocatesInBackward(Activation):
    """Needs one temporary as large as its gradient."""

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        np.multiply(gradients[0], 2.0)
        return super().backward_step(run, inputs, gradients)


def enlarge_one_live_buffer(monkeypatch: Any, extra_bytes: int) -> None:
    """Make every build bind its first buffer ``extra_bytes`` larger than declared."""
    from mila.core import execution

    original: Callable[..., Array] = execution.Execution._array

    def enlarged(self: Any, storage: Any) -> Array:
        array = original(self, storage)
        if storage is not self.planned.storages[0]:
            return array
        larger = np.empty(array.nbytes + extra_bytes, np.uint8).view(array.dtype)
        larger[: array.size] = array
        return larger

    monkeypatch.setattr(execution.Execution, "_array", enlarged)


def leaves(component: Component[Any]) -> list[Component[Any]]:
    """Return the components without children."""
    return [part for part in component.walk() if not part.components]
