"""One training step (forward, backward, AdamW; float32) of Mila beside PyTorch eager, on the same weights and batches.

    python -m benchmarks.train_step [--quick] [--json] [--case NAME ...] [--openblas-thread-timeout VALUE]

Needs torch. Each side lives in a process of its own and the two take turns, the order changing from round to round; a
ratio is the median of the ratios of all rounds, so that a slow spell of the machine hits both. Above 1, Mila is faster.

NumPy's OpenBLAS keeps its threads spinning for a while after every product, where they take processors from Mila's own
threads. ``OPENBLAS_THREAD_TIMEOUT=4`` ends that; it is read when NumPy is imported, so Mila's command line sets it
before. ``--openblas-thread-timeout unset`` measures what a program gets that does not set it.

The profile is taken in steps of its own, after the timed ones. Memory is the peak of the resident memory (``VmHWM``) of
a process that does nothing else; net is without what its imports take.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import markdown_table, processor
from benchmarks.train_step_cases import CASES, THREADS, BenchmarkCase
from benchmarks.worker_process import PAUSE, WorkerProcess, mila_environment

MEBIBYTE = 2**20
WORKERS = "benchmarks.train_step_workers"


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    warmup_steps: int
    profiled_steps: int


FULL = Effort(rounds=9, warmup_steps=3, profiled_steps=5)
QUICK = Effort(rounds=3, warmup_steps=1, profiled_steps=2)


def measure(case: BenchmarkCase, effort: Effort, timeout: str) -> dict[str, Any]:
    """Everything about one case."""
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.safetensors"
        with (
            WorkerProcess(WORKERS, "mila", [case.name, str(weights)], mila_environment(timeout)) as mila,
            WorkerProcess(WORKERS, "torch", [case.name, str(weights)], dict(os.environ)) as torch,
        ):
            first = {worker.side: worker.ask("run", steps=effort.warmup_steps) for worker in (mila, torch)}
            rounds, last = take_turns(mila, torch, case, effort)
            losses = {side: [*first[side]["losses"], *last[side]["losses"]] for side in first}
            return {
                "case": case.name,
                "mila_ms": statistics.median(turn["mila"] for turn in rounds),
                "torch_ms": statistics.median(turn["torch"] for turn in rounds),
                "ratio": statistics.median(turn["torch"] / turn["mila"] for turn in rounds),
                "ratios": [turn["torch"] / turn["mila"] for turn in rounds],
                "largest_loss_difference": max(
                    abs(a - b) for a, b in zip(losses["mila"], losses["torch"], strict=True)
                ),
                "memory": {worker.side: worker.ask("memory") for worker in (mila, torch)},
                "details": {worker.side: worker.ask("details") for worker in (mila, torch)},
                "profile": mila.ask("profile", steps=effort.profiled_steps),
            }


def take_turns(
    mila: WorkerProcess, torch: WorkerProcess, case: BenchmarkCase, effort: Effort
) -> tuple[list[dict[str, float]], dict[str, dict[str, list[float]]]]:
    """Median milliseconds of a step of both sides in every round, and the answers of the last round."""
    rounds = []
    answers: dict[str, dict[str, list[float]]] = {}
    for index in range(effort.rounds):
        for worker in (mila, torch) if index % 2 == 0 else (torch, mila):
            time.sleep(PAUSE)
            answers[worker.side] = worker.ask("run", steps=case.steps)
        rounds.append({side: statistics.median(answer["milliseconds"]) for side, answer in answers.items()})
    return rounds, answers


# ---------------------------------------------------------------------- report


def speed_table(results: list[dict[str, Any]]) -> str:
    """Milliseconds and ratios."""
    rows = []
    for result in results:
        case, ratios = CASES[result["case"]], result["ratios"]
        rows.append(
            (
                case.title,
                f"{case.batch}",
                f"{case.length}",
                f"{result['mila_ms']:,.0f}",
                f"{result['torch_ms']:,.0f}",
                f"{result['ratio']:.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{1e3 * case.tokens_per_step / result['mila_ms']:,.0f}",
                f"{result['largest_loss_difference']:.0e}",
            )
        )
    header = ("model", "B", "T", "Mila ms", "PyTorch ms", "ratio", "rounds", "Mila tokens/s", "loss difference")
    return markdown_table(header, rows)


def memory_table(results: list[dict[str, Any]]) -> str:
    """Peak resident memory, and what Mila's plan said before."""
    rows = []
    for result in results:
        memory = [result["memory"][side][kind] for kind in ("peak_bytes", "net_bytes") for side in ("mila", "torch")]
        numbers = [*memory, result["details"]["mila"]["reserved_bytes"]]
        case = CASES[result["case"]]
        title = f"{case.title}, B={case.batch}"
        rows.append((title, *(f"{number / MEBIBYTE:,.0f}" for number in numbers), f"{memory[2] / memory[3]:.2f}"))
    header = ("peak MiB", "Mila", "PyTorch", "Mila net", "PyTorch net", "Mila's plan", "net, Mila / PyTorch")
    return markdown_table(header, rows)


def profile_table(results: list[dict[str, Any]]) -> str:
    """Milliseconds per step of every kernel, one column per case."""
    profiles = [result["profile"] for result in results]
    names = sorted(
        {name for profile in profiles for name in profile["kernels_ms"]},
        key=lambda name: -max(profile["kernels_ms"].get(name, 0.0) / profile["step_ms"] for profile in profiles),
    )

    def cell(profile: dict[str, Any], milliseconds: float) -> str:
        return f"{milliseconds:,.1f} ({100 * milliseconds / profile['step_ms']:.1f} %)"

    rows = [(name, *(cell(profile, profile["kernels_ms"].get(name, 0.0)) for profile in profiles)) for name in names]
    rows.append(("outside kernels", *(cell(profile, profile["outside_kernels_ms"]) for profile in profiles)))
    rows.append(("whole step", *(cell(profile, profile["step_ms"]) for profile in profiles)))
    rows.append(("linear and attention (BLAS)", *(f"{100 * profile['matrix_share']:.0f} %" for profile in profiles)))
    return markdown_table(("Mila, ms per step", *(result["case"] for result in results)), rows)


def report(results: list[dict[str, Any]]) -> str:
    """All tables, and what they were measured with."""
    mila, torch = (results[0]["details"][side] for side in ("mila", "torch"))
    versions = ", ".join(f"{name} {version}" for name, version in (mila["versions"] | torch["versions"]).items())
    blas = mila["openblas"]
    variables = " ".join(f"{name}={value}" for name, value in mila["environment"].items()) or "no OPENBLAS_ variables"
    described = f"OpenBLAS {blas['core']}, {blas['threads']} threads" if blas else "no OpenBLAS"
    head = f"{processor()}; {versions}; {THREADS} threads each; Mila: {described}, {variables}"
    return "\n\n".join((head, speed_table(results), memory_table(results), profile_table(results)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of tables")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only this one; may be repeated")
    parser.add_argument(
        "--openblas-thread-timeout",
        default="4",
        metavar="VALUE",
        help="for Mila's process: 4 to 28, or unset (default 4)",
    )
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    cases = [CASES[name] for name in arguments.case or CASES]
    results = [measure(case, effort, arguments.openblas_thread_timeout) for case in cases]
    print(json.dumps(results, indent=2) if arguments.json else report(results))


if __name__ == "__main__":
    main()
