"""What planning hands to building: storages, who names them, and the plan."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mila.core.context import BuildContext
from mila.core.schedule import ByComponent, Schedule, alive
from mila.kernels.signatures import Array, Kernels
from mila.memory.declarations import Declaration
from mila.memory.plan import MemoryPlan
from mila.memory.storage import DType

if TYPE_CHECKING:
    from mila.core.component import Component
    from mila.core.widening import WideBuffers


class Optimizer(Protocol):
    """What core knows of an optimizer: moments laid out like the parameters, a workspace, one pass over flat arenas."""

    @property
    def moment_names(self) -> tuple[str, ...]:
        """One arena per name, laid out like the trainable parameters."""

    def workspace_elements(self, kernels: Kernels, elements: int, dtype: DType) -> int:
        """Elements of workspace for ``elements`` trainable parameters that are stored in ``dtype``."""

    def decay_of(self, component: Component[Any], declaration: Declaration) -> float:
        """Weight decay of one parameter."""

    def apply(
        self,
        kernels: Kernels,
        segments: list[tuple[int, int, float]],
        parameters: Array,
        gradients: Array,
        moments: dict[str, Array],
        workspace: Array,
        learning_rate: float,
        step: int,
    ) -> float:
        """Clip and step over flat arrays; ``segments`` are (start, stop, weight decay).

        Returns the norm before clipping; where that is not finite, nothing was changed.
        """


class Storage:
    """Bytes with one owner, which they do not keep alive; several declarations may name them."""

    __slots__ = ("_owner", "arena", "declaration", "intervals", "nbytes", "offset")

    def __init__(
        self, owner: Component[Any], declaration: Declaration, arena: str, intervals: list[tuple[int, int]]
    ) -> None:
        self._owner = weakref.ref(owner)
        self.declaration = declaration
        self.nbytes = declaration.nbytes
        self.arena = arena
        self.intervals = intervals
        self.offset = -1

    @property
    def owner(self) -> Component[Any]:
        """The component that declared them."""
        return alive(self._owner)

    def extend_to(self, step: int) -> None:
        """Live at least until ``step``."""
        start, end = self.intervals[-1]
        self.intervals[-1] = (start, max(end, step))

    def live_again(self, step: int) -> None:
        """Live during ``step`` too, not before it."""
        if not any(start <= step <= end for start, end in self.intervals):
            self.intervals.append((step, step))


@dataclass(slots=True)
class PlannedBuild:
    """A plan with all that a build needs to bind arrays to components.

    Attributes:
        names: for each component, its buffers by name.
        zero_gradients: values whose gradient is zero because nobody uses them, with the storage of the zeros.
        output_gradients: root outputs that are also read inside: their gradient is copied before others are added to
        it.
        input_ids: the zero gradients of the root's integer inputs, by value.
        captured: values of captured children, by path.
        trainable_elements: elements of the flat trainable parameters, alignment gaps included.
        backward_is_free: whether backward depends on nothing but its arguments.
        update_workspace: the optimizer's.
        wide: the scratch of each step, where the network is stored in less than it is computed in.
    """

    plan: MemoryPlan
    schedule: Schedule
    context: BuildContext
    storages: list[Storage]
    names: ByComponent[dict[str, Storage]]
    zero_gradients: dict[int, Storage]
    output_gradients: dict[int, Storage]
    input_ids: dict[int, Storage]
    captured: dict[str, tuple[int, ...]]
    trainable_elements: int
    backward_is_free: bool
    update_workspace: Storage | None = None
    wide: Mapping[int, WideBuffers] = field(default_factory=dict)
