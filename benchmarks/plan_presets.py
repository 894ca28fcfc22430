"""Every preset planned and really built, as far as memory allows: how many bytes the plans are off.

    python -m benchmarks.plan_presets [--memory SIZE] [--preset NAME ...] [--markdown | --json]

A preset that takes more than ``--memory`` is built with two and with three layers at full width instead; where even
these take more, they are planned only. Either way what all layers take must lie on the line through two and three.
``off`` is the sum of the differences between the plan's bytes of parameters, state and gradients and those of the live
arrays; ``resident`` compares ``reserved_bytes`` with the growth of the resident memory over the build. Exits with 1
where a byte is off.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.machine import markdown_table, processor
from benchmarks.plan_presets_worker import with_layers
from mila import ExecutionContext, format_bytes
from mila.memory.format import format_table
from mila.planning import Mode, PlanRequest, Target, plan, read_target
from mila.planning.presets import preset_names
from mila.planning.sizes import parse_bytes

REQUESTS = {
    Mode.INFERENCE: PlanRequest(mode=Mode.INFERENCE, context=1024, dtype="bfloat16"),
    Mode.TRAINING: PlanRequest(mode=Mode.TRAINING, context=64, dtype="float32"),
}
#: The two points that a line goes through.
FEW = (2, 3)
HEADER = ("preset", "mode", "parameters", "reserved", "off the line", "layers", "built", "off", "resident")


def measure(name: str, request: PlanRequest, most: int) -> dict[str, Any]:
    """One preset in one mode."""
    print(f"{name}, {request.mode.value}", file=sys.stderr, flush=True)
    target = read_target(name)
    layers = target.config.num_layers
    plans = {count: plan(with_layers(target, count), request, search=False) for count in (*FEW, layers)}
    counts = [layers] if plans[layers].reserved_bytes <= most else list(FEW)
    builds = {count: run_build(target, count, request) for count in counts if plans[count].reserved_bytes <= most}
    return {
        "preset": name,
        "mode": request.mode.value,
        "dtype": request.dtype,
        "layers": layers,
        "parameters": plans[layers].target.parameters,
        "reserved_bytes": plans[layers].reserved_bytes,
        "off_the_line_bytes": {
            "reserved_bytes": off_the_line({count: each.reserved_bytes for count, each in plans.items()}),
            "parameter_bytes": off_the_line({count: each.parameter_bytes for count, each in plans.items()}),
        },
        "builds": builds,
    }


def run_build(target: Target, layers: int, request: PlanRequest) -> dict[str, Any]:
    """One build in a new process, with how far it is from its plan."""
    words = (target.name, layers, request.mode.value, request.dtype, request.batch, request.context)
    command = [sys.executable, "-m", "benchmarks.plan_presets_worker", *map(str, words)]
    built: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    off = sum(abs(built["held"][key] - size) for key, size in built["planned"].items())
    return {**built, "off_bytes": off}


def off_the_line(sizes: dict[int, int]) -> int:
    """Bytes between the size of the most layers and the line through two and three."""
    first, second = FEW
    layers = max(sizes)
    return sizes[layers] - sizes[first] - (layers - first) * (sizes[second] - sizes[first])


# ---------------------------------------------------------------------- report


def rows_of(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each build, or one for a preset that was planned only."""
    off_line = sum(map(abs, result["off_the_line_bytes"].values()))
    head = (
        *(result["preset"], f"{result['mode']}, {result['dtype']}"),
        *(f"{result['parameters']:,}", format_bytes(result["reserved_bytes"]), f"{off_line:,} B"),
    )
    rows: list[tuple[str, ...]] = [
        (
            *head,
            "all" if int(layers) == result["layers"] else f"{layers} of {result['layers']}",
            *(format_bytes(built["reserved_bytes"]), f"{built['off_bytes']:,} B"),
            f"{100 * (built['grown_bytes'] - built['reserved_bytes']) / built['reserved_bytes']:+.2f} %",
        )
        for layers, built in result["builds"].items()
    ]
    return rows or [(*head, "planned only", "", "", "")]


def is_exact(result: dict[str, Any]) -> bool:
    """No byte is off."""
    return not any(result["off_the_line_bytes"].values()) and not any(
        built["off_bytes"] for built in result["builds"].values()
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--memory", default="6GiB", help="most that a build may take (default 6GiB)")
    parser.add_argument("--preset", action="append", choices=preset_names(), help="only this one; may be repeated")
    parser.add_argument("--mode", action="append", choices=[*Mode], type=Mode, help="only this one")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="the table in Markdown")
    form.add_argument("--json", action="store_true", help="print everything as JSON instead of a table")
    arguments = parser.parse_args()
    most = min(parse_bytes("--memory", arguments.memory), ExecutionContext("cpu").available_bytes() or sys.maxsize)
    names, modes = arguments.preset or preset_names(), arguments.mode or list(Mode)
    results = [measure(name, REQUESTS[mode], most) for mode in modes for name in names]
    rows = [row for result in results for row in rows_of(result)]
    if arguments.json:
        print(json.dumps({"processor": processor(), "results": results}, indent=2))
    else:
        right = tuple(range(2, len(HEADER)))
        table = markdown_table(HEADER, rows) if arguments.markdown else format_table(HEADER, rows, right=right)
        print(f"{processor()}\n\n{table}")
    sys.exit(0 if all(map(is_exact, results)) else 1)


if __name__ == "__main__":
    main()
