"""One preset, planned and then really built in a process of its own: what ``benchmarks.plan_presets`` looks at.

    python -m benchmarks.plan_presets_worker PRESET LAYERS MODE DTYPE BATCH CONTEXT

It prints one line of JSON. Parameters are allocated and not drawn.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import replace
from typing import Any

from benchmarks.machine import memory_line
from mila import BuildContext, ExecutionContext
from mila.memory import MemoryStats
from mila.planning import Mode, PlanRequest, Target, plan, read_target
from mila.planning.building import build_context, construct


def with_layers(target: Target, layers: int) -> Target:
    """The same model, deeper or shallower."""
    return replace(target, config=target.config.model_copy(update={"num_layers": layers}))


def build(target: Target, request: PlanRequest) -> dict[str, Any]:
    """Plan and build: planned and held bytes by category, and the growth of the resident memory beside the plan."""
    report = plan(target, request, search=False)
    planned = MemoryStats(report.parameter_bytes, report.state_bytes, report.gradient_bytes)
    root = construct(target, report.choices, ExecutionContext("cpu"))
    asked = build_context(report.choices)
    context = BuildContext(
        asked.input_shape, asked.runtime_mode, prefill_size=asked.prefill_size, initialize_parameters=False
    )
    root.plan(context)  # whatever planning keeps is there before the build
    gc.collect()
    before = memory_line("VmRSS")
    root.build(context)
    gc.collect()
    grown = memory_line("VmRSS") - before
    return {
        "planned": fields_of(planned),
        "held": fields_of(root.get_memory_stats()),
        "reserved_bytes": report.reserved_bytes,
        "grown_bytes": grown,
    }


def fields_of(stats: MemoryStats) -> dict[str, int]:
    """By name."""
    return {name: getattr(stats, name) for name in stats.__dataclass_fields__}


def main() -> None:
    """Measure and print."""
    name, layers, mode, dtype, batch, context = sys.argv[1:]
    target = with_layers(read_target(name), int(layers))
    request = PlanRequest(mode=Mode(mode), dtype=dtype, batch=int(batch), context=int(context))
    print(json.dumps(build(target, request)), flush=True)


if __name__ == "__main__":
    main()
