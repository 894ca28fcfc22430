"""A memory plan for people, and as JSON."""

from __future__ import annotations

from typing import Any

from mila.memory import MemoryPlan, PlannedBuffer, format_bytes
from mila.memory.format import format_table

_SHOWN = 5


def plan_text(plan: MemoryPlan, available: int | None) -> str:
    """Arenas, the largest buffers, the fullest step, and whether all of it fits."""
    step, alive = plan.fullest_step()
    shared = f"{format_bytes(plan.transient_sum)} of transient buffers share {format_bytes(plan.transient_bytes)};"
    return "\n".join(
        [
            str(plan),
            "",
            "Largest buffers:",
            _buffers(plan.largest(_SHOWN)),
            "",
            f"Alive at the fullest step, {step}:",
            _buffers(alive[:_SHOWN]),
            "",
            shared,
            f"at the fullest step {format_bytes(plan.transient_lower_bound)} are alive.",
            verdict(plan, available),
        ]
    )


def verdict(plan: MemoryPlan, available: int | None) -> str:
    """Whether the plan fits, in exact bytes."""
    needed = f"needs {plan.reserved_bytes:,} bytes ({format_bytes(plan.reserved_bytes)})"
    if available is None:
        return f"{needed}; this system does not say how much memory is available"
    return f"{'fits' if fits(plan, available) else 'does not fit'}: {needed}, {format_bytes(available)} are available"


def fits(plan: MemoryPlan, available: int | None) -> bool | None:
    """Whether there is room for the plan; ``None`` where the system does not say how much there is."""
    return None if available is None else plan.reserved_bytes <= available


def plan_document(plan: MemoryPlan, available: int | None, parameters: int) -> dict[str, Any]:
    """What ``plan_text`` says, for machines."""
    return {
        "event": "plan",
        "parameters": parameters,
        "reserved_bytes": plan.reserved_bytes,
        "available_bytes": available,
        "fits": fits(plan, available),
        "arenas": dict(plan.arena_bytes),
        "transient_sum_bytes": plan.transient_sum,
        "transient_lower_bound_bytes": plan.transient_lower_bound,
        "fullest_step": plan.fullest_step()[0],
        "largest_buffers": [buffer.to_dict() for buffer in plan.largest(_SHOWN)],
    }


def _buffers(buffers: list[PlannedBuffer]) -> str:
    rows = [(f"{b.path}.{b.name}", "x".join(map(str, b.shape)), b.dtype.name, f"{b.nbytes:,}") for b in buffers]
    return format_table(("buffer", "shape", "dtype", "bytes"), rows, right=(3,))
