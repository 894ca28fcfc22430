"""Questions to the graph: plans of one target under different choices, each network constructed once."""

from __future__ import annotations

from collections.abc import Callable
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
        plan = made.root.plan(build_context(choices))
        made.fixed_bytes = fixed_bytes(plan)
        self._answers[choices] = plan.reserved_bytes
        return made.root, plan

    def reserved_bytes(self, choices: Choices) -> int | None:
        """What a build takes; ``None`` where there is none of these sizes."""
        if choices not in self._answers:
            try:
                self.plan(choices)
            except ShapeError:
                self._answers[choices] = None
        return self._answers[choices]

    def least_bytes(self, choices: Choices) -> int:
        """What no batch, context and prefill can do without: parameters, gradients and moments.

        Known from any plan with the other choices, and asked of the smallest build where there is none yet.
        """
        made = self._constructed(choices)
        if made.fixed_bytes is None:
            prefill = None if choices.prefill is None else 1
            self.plan(choices.model_copy(update={"context": 1, "batch": 1, "prefill": prefill}))
        return made.fixed_bytes or 0

    def _constructed(self, choices: Choices) -> _Construction:
        key = (choices.mode, choices.dtype, choices.quantize, choices.optimizer, choices.device)
        if key not in self._constructions:
            self._constructions[key] = _Construction(construct(self.target, choices))
        return self._constructions[key]
