"""Estimates beside what they estimate: Mila's plan and Mila, ``accelerate estimate-memory`` and transformers.

    python -m benchmarks.plan_accuracy [--rounds N] [--memory SIZE] [--case NAME ...] [--markdown | --json]

Needs torch, transformers and accelerate; nothing is downloaded, all weights are random. Every measurement has a process
of its own, and every tool is held against its own engine running the same model, prompt or batch:

- Mila's plan, with the constants that it names as elsewhere, against the peak of the whole process (``VmHWM``); its
  exact part, ``reserved_bytes``, against the growth of the resident memory over the build.
- What ``accelerate estimate-memory`` computes (bytes of the weights; for training with Adam four times that) against
  the peak of a process of PyTorch and transformers, once without what imports take, once all of it. Constructing the
  model, which takes more for a moment than its weights, is left out.

Cases that are planned to take more than ``--memory``, or than is free, are left out and named. The largest peak of
all rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.machine import markdown_table, processor
from benchmarks.plan_accuracy_cases import CASES, NEW_TOKENS, STEPS, THREADS, AccuracyCase
from benchmarks.worker_process import mila_environment
from mila import ExecutionContext, format_bytes
from mila.memory.format import format_table
from mila.planning import plan
from mila.planning.sizes import parse_bytes

MEBIBYTE = 2**20
#: What Mila's command line sets.
TIMEOUT = "4"
HEADER = (
    "MiB",
    *("Mila's plan", "process peak", "error"),
    *("exact part", "build took", "error"),
    *("accelerate", "PyTorch, net", "error", "process peak", "error"),
)


def run_side(side: str, case: AccuracyCase) -> dict[str, Any]:
    """One measurement in a new process."""
    print(f"{case.title}: {side}", file=sys.stderr, flush=True)
    environment = mila_environment(TIMEOUT) if side == "mila" else dict(os.environ)
    command = [sys.executable, "-m", "benchmarks.plan_accuracy_workers", side, case.name]
    completed = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=True)
    measured: dict[str, Any] = json.loads(completed.stdout)
    return measured


def measure(case: AccuracyCase, rounds: int) -> dict[str, Any]:
    """Everything about one case."""
    estimate = run_side("accelerate", case)
    sides: dict[str, list[dict[str, Any]]] = {"mila": [], "torch": []}
    for _ in range(rounds):
        for side, measured in sides.items():
            measured.append(run_side(side, case))
    mila, torch = (max(measured, key=lambda each: each["peak_bytes"]) for measured in sides.values())
    peaks = [[each["peak_bytes"] for each in measured] for measured in sides.values()]
    return {
        "case": case.name,
        "title": case.title,
        "mila": mila,
        "torch": torch,
        "accelerate": estimate,
        "errors": {
            "mila_process": error_of(mila["needed_bytes"], mila["peak_bytes"]),
            "mila_build": error_of(mila["reserved_bytes"], mila["build_growth_bytes"]),
            "accelerate_net": error_of(estimate["estimate_bytes"], torch["net_peak_bytes"]),
            "accelerate_process": error_of(estimate["estimate_bytes"], torch["peak_bytes"]),
        },
        "peaks_differ_by_bytes": max(max(side) - min(side) for side in peaks),
        "rounds": sides,
    }


def error_of(estimate: int, used: int) -> float:
    """By how many percent an estimate is off; negative where more was used than estimated."""
    return 100 * (estimate - used) / used


# ---------------------------------------------------------------------- report


def rows_of(results: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each case."""
    rows: list[tuple[str, ...]] = []
    for result in results:
        mila, torch, errors = result["mila"], result["torch"], result["errors"]
        rows.append(
            (
                result["title"],
                *(mebibytes(mila["needed_bytes"]), mebibytes(mila["peak_bytes"]), percent(errors["mila_process"])),
                mebibytes(mila["reserved_bytes"]),
                mebibytes(mila["build_growth_bytes"]),
                percent(errors["mila_build"]),
                mebibytes(result["accelerate"]["estimate_bytes"]),
                *(mebibytes(torch["net_peak_bytes"]), percent(errors["accelerate_net"])),
                *(mebibytes(torch["peak_bytes"]), percent(errors["accelerate_process"])),
            )
        )
    return rows


def mebibytes(size: int) -> str:
    """A cell."""
    return f"{size / MEBIBYTE:,.0f}"


def percent(error: float) -> str:
    """A cell: with its sign, and more digits where it is small."""
    return f"{error:+.2f} %" if abs(error) < 1 else f"{error:+.1f} %"


def report(results: list[dict[str, Any]], left_out: dict[str, int], as_markdown: bool) -> str:
    """The table, what it was measured with, and what is not in it."""
    if not results:
        return "nothing was measured"
    first = results[0]
    versions = {
        name: each for side in ("mila", "torch", "accelerate") for name, each in first[side]["versions"].items()
    }
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    rows = rows_of(results)
    table = markdown_table(HEADER, rows) if as_markdown else format_table(HEADER, rows, right=tuple(range(1, 12)))
    differ = max(result["peaks_differ_by_bytes"] for result in results)
    count = len(first["rounds"]["mila"])
    sentences = [
        f"Inference: a prompt and {NEW_TOKENS} tokens after it fill the context; training: {STEPS} updates by AdamW.",
        f"{count} rounds; peaks of one case differ by at most {format_bytes(differ)}." if count > 1 else "One round.",
        *(f"Left out: {name}, planned to take {format_bytes(size)}." for name, size in left_out.items()),
    ]
    return f"{processor()}; {said}; {THREADS} threads each\n\n{table}\n\n" + "\n".join(sentences)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each case (default 2)")
    parser.add_argument("--memory", default="6GiB", help="most that a case may be planned to take (default 6GiB)")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only this one; may be repeated")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="the table in Markdown")
    form.add_argument("--json", action="store_true", help="print everything as JSON instead of a table")
    arguments = parser.parse_args()
    most = min(parse_bytes("--memory", arguments.memory), ExecutionContext("cpu").available_bytes() or sys.maxsize)
    cases = [CASES[name] for name in arguments.case or CASES]
    needed = {case.name: plan(case.preset, case.request, search=False).verdict.needed_bytes for case in cases}
    left_out = {name: size for name, size in needed.items() if size > most}
    results = [measure(case, max(1, arguments.rounds)) for case in cases if case.name not in left_out]
    if arguments.json:
        print(json.dumps({"processor": processor(), "results": results, "left_out": left_out}, indent=2))
    else:
        print(report(results, left_out, arguments.markdown))


if __name__ == "__main__":
    main()
