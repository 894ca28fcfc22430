"""Questions to the graph: plans of one target under different choices, each network constructed once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mila.core import Component
from mila.errors import ShapeError
from mila.memory import MemoryPlan
from mila.planning.breakdown import fixed_bytes
from mila.planning.building import build_context, construct
from mila.planning.report import Choices
from mila.planning.target import Target

#: Is told what is asked next.
Listener = Callable[[Choices], None]


@dataclass
class _Construction:
    """An unbuilt root, and what every one of its builds takes, once that is known."""

    root: Component[Any]
    fixed_bytes: int | None = None


class Questions:
    """Asks a target what builds of it would take.

    Args:
        target: the model.
        listener: is called before a plan is made.
    """

    def __init__(self, target: Target, listener: Listener | None = None) -> None:
        self.target = target
        self._listener = listener
        self._constructions: dict[tuple[object, ...], _Construction] = {}
        self._answers: dict[Choices, int | None] = {}

    def plan(self, choices: Choices) -> tuple[Component[Any], MemoryPlan]:
        """The root and the plan of a build.

        Raises:
            MilaError: what the build would refuse.
        """
        if self._listener is not None:
            self._listener(choices)
        made = self._constructed(choices)
        with _no_garbage_collection():
            plan = made.root.plan(build_context(choices))
        made.fixed_bytes = fixed_bytes(plan)
        self._answers[_built(choices)] = plan.reserved_bytes
        return made.root, plan

    def reserved_bytes(self, choices: Choices) -> int | None:
        """What a build takes; ``None`` where there is none of these sizes."""
        built = _built(choices)
        if built not in self._answers:
            try:
                self.plan(choices)
            except ShapeError:
                self._answers[built] = None
        return self._answers[built]

    def least_bytes(self, choices: Choices) -> int:
        """What no batch, context and prefill can do without: parameters, gradients and moments.

        Known from any plan with the other choices: where there is none yet, from this one, which is most likely asked
        for next, or from that of the smallest build.
        """
        made = self._constructed(choices)
        if made.fixed_bytes is None and self.reserved_bytes(choices) is None:
            prefill = None if choices.prefill is None else 1
            self.plan(choices.model_copy(update={"context": 1, "batch": 1, "prefill": prefill}))
        return made.fixed_bytes or 0

    def _constructed(self, choices: Choices) -> _Construction:
        key = (choices.mode, choices.dtype, choices.quantize, choices.optimizer, choices.device)
        if key not in self._constructions:
            self._constructions[key] = _Construction(construct(self.target, choices))
        return self._constructions[key]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Planning makes many objects and no cycles: looking through all of them again and again would find nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _built(choices: Choices) -> Choices:
    """What a build depends on: passes that are accumulated take no byte more."""
    return choices if choices.accumulate is None else choices.model_copy(update={"accumulate": None})
