"""Memory plans: every buffer, where it will be, and what all of it takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mila.memory.declarations import Category, Lifetime
from mila.memory.format import format_bytes, format_table
from mila.memory.placement import Interval
from mila.memory.stats import MemoryStats
from mila.memory.storage import DType, Shape

PARAMETERS = "parameters"
GRADIENTS = "gradients"
PERSISTENT = "persistent"
TRANSIENT = "transient"


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """One buffer: who declared it, what it holds, when it lives and where it will be.

    ``offset`` counts bytes from the aligned base of ``arena``; ``intervals`` are steps of the schedule, both ends
    included. ``is_table``: it was declared as a constant table, which several components may share.
    """

    path: str
    name: str
    shape: Shape
    dtype: DType
    category: Category
    lifetime: Lifetime
    arena: str
    offset: int
    nbytes: int
    intervals: tuple[Interval, ...]
    is_table: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields."""
        return {
            "path": self.path,
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "category": self.category.value,
            "lifetime": self.lifetime.value,
            "arena": self.arena,
            "offset": self.offset,
            "bytes": self.nbytes,
            "intervals": [list(interval) for interval in self.intervals],
        }


@dataclass(frozen=True)
class PlanRow:
    """Declared bytes of one component, its children included; siblings may share transient bytes."""

    path: str
    depth: int
    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    transient_bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """What a build takes, before it takes it.

    Attributes:
        root: path of the planned component.
        buffers: every buffer.
        arena_bytes: size of each arena, alignment gaps between its buffers included.
        alignment: bytes to which the base of an arena and every offset are aligned.
        step_names: what happens at each step that the intervals speak of.
        transient_lower_bound: bytes alive at the fullest step: no placement can do with less.
    """

    root: str
    buffers: tuple[PlannedBuffer, ...]
    arena_bytes: Mapping[str, int]
    alignment: int
    step_names: tuple[str, ...]
    transient_lower_bound: int
    _fullest: int = field(default=0)

    @property
    def reserved_bytes(self) -> int:
        """What a build takes from the allocator: all arenas, with room to align the base of each."""
        return sum(size + self.alignment for size in self.arena_bytes.values() if size)

    @property
    def stats(self) -> MemoryStats:
        """Bytes that the buffers occupy, each byte once."""
        starts = self._arena_starts()
        return MemoryStats.of_device_ranges(
            (starts[b.arena] + b.offset, starts[b.arena] + b.offset + b.nbytes, b.category) for b in self.buffers
        )

    @property
    def transient_bytes(self) -> int:
        """Size of the region that values, gradients of values and workspaces share."""
        return self.arena_bytes.get(TRANSIENT, 0)

    @property
    def transient_sum(self) -> int:
        """What those buffers would take if none shared bytes."""
        return sum(b.nbytes for b in self.buffers if b.arena == TRANSIENT)

    def fullest_step(self) -> tuple[str, list[PlannedBuffer]]:
        """The step at which most transient bytes are alive, and the buffers alive then, largest first."""
        alive = [
            b
            for b in self.buffers
            if b.arena == TRANSIENT and any(start <= self._fullest <= end for start, end in b.intervals)
        ]
        name = self.step_names[self._fullest] if self.step_names else ""
        return name, sorted(alive, key=lambda b: (-b.nbytes, b.path, b.name))

    def largest(self, count: int = 5) -> list[PlannedBuffer]:
        """The largest buffers."""
        return sorted(self.buffers, key=lambda b: (-b.nbytes, b.path, b.name))[:count]

    def rows(self, depth: int | None = None) -> list[PlanRow]:
        """One row per component down to ``depth``, in the order of the graph."""
        totals: dict[str, list[int]] = {}
        for buffer in self.buffers:
            for path in _ancestors(buffer.path):
                total = totals.setdefault(path, [0, 0, 0, 0])
                total[_column(buffer)] += buffer.nbytes
        rows = [PlanRow(path, path.count("."), *numbers) for path, numbers in totals.items()]
        return [row for row in _in_tree_order(rows) if depth is None or row.depth <= depth]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form: totals, arenas and every buffer."""
        stats = self.stats
        return {
            "root": self.root,
            "reserved_bytes": self.reserved_bytes,
            "alignment": self.alignment,
            "parameter_bytes": stats.device_parameter_bytes,
            "state_bytes": stats.device_state_bytes,
            "gradient_bytes": stats.device_gradient_bytes,
            "arenas": dict(self.arena_bytes),
            "transient_sum_bytes": self.transient_sum,
            "transient_lower_bound_bytes": self.transient_lower_bound,
            "fullest_step": self.fullest_step()[0],
            "buffers": [buffer.to_dict() for buffer in self.buffers],
        }

    def to_json(self, indent: int | None = None) -> str:
        """The plan as JSON, the same bytes for the same plan."""
        return json.dumps(self.to_dict(), indent=indent)

    def summary_rows(self) -> list[tuple[str, int]]:
        """Arenas by name with their bytes, the alignment of their bases, and the total reserved."""
        rows = [(name, size) for name, size in self.arena_bytes.items() if size]
        return [*rows, ("alignment of bases", self.alignment * len(rows)), ("reserved", self.reserved_bytes)]

    def __str__(self) -> str:
        rows = [(name, f"{size:,}", format_bytes(size)) for name, size in self.summary_rows()]
        return format_table((self.root, "bytes", ""), rows, right=(1, 2))

    def _arena_starts(self) -> dict[str, int]:
        starts, position = {}, 0
        for name, size in self.arena_bytes.items():
            starts[name] = position
            position += size
        return starts


def _column(buffer: PlannedBuffer) -> int:
    if buffer.arena == TRANSIENT:
        return 3
    return {Category.PARAMETER: 0, Category.GRADIENT: 1, Category.STATE: 2}[buffer.category]


def _ancestors(path: str) -> Iterator[str]:
    parts = path.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def _in_tree_order(rows: Iterable[PlanRow]) -> list[PlanRow]:
    """Parents before children, siblings in the order in which they first appear."""
    children: dict[str, list[PlanRow]] = {}
    for row in rows:
        children.setdefault(row.path.rpartition(".")[0], []).append(row)
    ordered: list[PlanRow] = []
    pending = list(reversed(children.get("", [])))
    while pending:
        row = pending.pop()
        ordered.append(row)
        pending.extend(reversed(children.get(row.path, [])))
    return ordered
