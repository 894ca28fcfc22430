"""Forward for one position of one row: the steps of a schedule, bound to their arrays.

A token costs a pass over the weights, and what Python does between the matrix products. The buffers of a built root
never move, so that shapes, views and kernels need to be looked up once only; afterwards a step is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mila.core.checking import located
from mila.core.schedule import Step
from mila.errors import DeviceError
from mila.kernels.signatures import Array, Kernels

if TYPE_CHECKING:
    from mila.core.run import Run


class Cursor:
    """Where bound steps find the call of ``forward`` that they belong to."""

    __slots__ = ("run",)

    run: Run

    @property
    def position(self) -> int:
        """Position of the token."""
        return self.run.starts[0]


class BoundSteps:
    """The steps of a schedule for a single position of a single row.

    Args:
        steps: all steps of the schedule.
        values: the arrays of a forward that has just run; those of the root's inputs change from call to call.
        input_count: how many of the values are the root's inputs.
        kernels: of the root.
    """

    def __init__(
        self, steps: Sequence[Step], values: Sequence[Array | None], input_count: int, kernels: Kernels
    ) -> None:
        self._cursor = Cursor()
        self._values = list(values)
        self._input_count = input_count
        self._kernels = kernels
        self._steps = steps
        self._calls = [self._bind(step) for step in steps]

    def forward(self, run: Run, inputs: Sequence[Array], end_step: Callable[[int], None] | None) -> list[Array | None]:
        """Run all steps; ``end_step`` is called with the number of each. Returns the arrays of all values."""
        self._cursor.run = run
        self._values[: self._input_count] = inputs
        index = 0
        try:
            with self._kernels.region():
                for index, call in enumerate(self._calls):
                    call()
                    if end_step is not None:
                        end_step(index)
        except DeviceError as error:
            raise located(self._steps[index].leaf.path, error) from error
        return self._values

    def _bind(self, step: Step) -> Callable[[], object]:
        if step.may_bind and all(value >= self._input_count for value in step.inputs):
            inputs = tuple(self._values[v] for v in step.inputs)
            bound = step.leaf.bind_step(inputs, self._cursor)  # type: ignore[arg-type]
            if bound is not None:
                return bound
        return self._unbound(step)

    def _unbound(self, step: Step) -> Callable[[], object]:
        values, cursor = self._values, self._cursor
        return lambda: step.forward(cursor.run, values)
