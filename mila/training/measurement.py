"""What a build took in fact, beside what its plan said."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mila.core import BuildContext, Component
from mila.memory import MemoryPlan, MemoryStats

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class BuildReport:
    """One build, predicted and measured.

    Attributes:
        plan: made before the build.
        allocated_bytes: by how much what the device's pool has given grew; on the CPU what NumPy has allocated,
            ``None`` where that was not traced.
        resident_bytes: by how much the resident memory of the process grew, ``None`` where the system does not say.
        stats: bytes of the live buffers, read from their addresses.
    """

    plan: MemoryPlan
    allocated_bytes: int | None
    resident_bytes: int | None
    stats: MemoryStats

    @property
    def predicted_bytes(self) -> int:
        """What the plan said would be taken from the allocator."""
        return self.plan.reserved_bytes


def measure_build(component: Component[Any], context: BuildContext, *, trace_allocations: bool = False) -> BuildReport:
    """Build a root and measure what that took.

    Args:
        component: an unbuilt root.
        context: what to build for.
        trace_allocations: on the CPU, count NumPy's allocations, to the byte; they are traced during the build only.

    Raises:
        LifecycleError, ShapeError, OutOfMemoryError: as ``build``.
    """
    plan = component.plan(context)
    resident = resident_bytes()
    used = component.device.used_bytes()
    allocated = None
    if used is None and trace_allocations:
        allocated = _traced(lambda: component.build(context))
    else:
        component.build(context)
        allocated = _growth(used, component.device.used_bytes())
    after = resident_bytes()
    return BuildReport(plan, allocated, _growth(resident, after), component.get_memory_stats())


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def resident_bytes() -> int | None:
    """The resident memory of this process, ``None`` where the system does not say."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _traced(build: Callable[[], None]) -> int | None:
    """Bytes that NumPy allocates in ``build`` and keeps; ``None`` where somebody else is tracing."""
    if tracemalloc.is_tracing():
        build()
        return None
    tracemalloc.start()
    try:
        build()
        arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
        snapshot = tracemalloc.take_snapshot().filter_traces([arrays])
    finally:
        tracemalloc.stop()
    return sum(trace.size for trace in snapshot.traces)
