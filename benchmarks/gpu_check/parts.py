"""The parts of a run: their order, their limits, and what runs them one after the other."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.gpu_check.budget import Budget, Clock
from benchmarks.gpu_check.part_process import TakeRow, run_process
from benchmarks.gpu_check.requirements import ROOT
from benchmarks.gpu_check.rows import PartResult, Row
from benchmarks.gpu_check.settings import Settings


@dataclass(frozen=True)
class Part:
    """A part: a module with ``measure(settings)``, which yields rows.

    Attributes:
        name: as the command line calls it; the module is ``<name>_part``.
        title: as the table calls it.
        limit: seconds that it takes at most.
        needs: packages without which it is left out.
    """

    name: str
    title: str
    limit: float
    needs: tuple[str, ...] = ()

    def measure(self, settings: Settings) -> Iterator[Row]:
        """Run it here."""
        module = importlib.import_module(f"benchmarks.gpu_check.{self.name}_part")
        rows: Iterator[Row] = module.measure(settings)
        return rows


#: In this order: correctness first, and what takes long at the end, where time may run out.
PARTS = (
    Part("machine", "Machine", 45),
    Part("tests", "Tests on the GPU", 160, needs=("pytest", "hypothesis")),
    Part("kernels", "Kernels against a copy on the device", 90),
    Part("memory", "Memory against the plan", 45),
    Part("attention", "Attention against PyTorch", 60),
    Part("training", "Training step against PyTorch", 120),
    Part("decoding", "Decoding", 75),
)
PART_OF = {part.name: part for part in PARTS}


#: Runs a part within some seconds, gives its rows, and says how it ended: ``finished``, or why not.
Launch = Callable[[Part, Settings, float, TakeRow], str]


def launch_process(part: Part, settings: Settings, seconds: float, take_row: TakeRow) -> str:
    """Run the part by a Python of its own, in which the checkout is importable."""
    command = [sys.executable, "-m", "benchmarks.gpu_check.run_part", part.name, settings.to_json()]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return run_process(command, os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, seconds, take_row)


def run_parts(
    parts: Iterable[Part],
    settings: Settings,
    budget: Budget,
    launch: Launch,
    publish: Callable[[Sequence[PartResult]], None],
    missing: Iterable[str] = (),
    clock: Clock = time.monotonic,
) -> list[PartResult]:
    """Run parts while there is time; one that fails does not keep the others from running.

    Args:
        parts: in this order.
        settings: what they measure.
        budget: the time of all of them.
        launch: runs one of them.
        publish: gets all results so far, after each row and after each part.
        missing: packages that cannot be imported.
        clock: for the seconds that a part took.
    """
    absent = frozenset(missing)
    results: list[PartResult] = []
    for part in parts:
        result = PartResult(part.name, part.title)
        results.append(result)
        start = clock()

        def take_row(row: Row, result: PartResult = result) -> None:
            result.add(row)
            publish(results)

        result.state = _run_one(part, settings, budget, launch, take_row, absent)
        result.seconds = clock() - start
        publish(results)
    return results


def _run_one(
    part: Part,
    settings: Settings,
    budget: Budget,
    launch: Launch,
    take_row: TakeRow,
    absent: frozenset[str],
) -> str:
    lacking = [name for name in part.needs if name in absent]
    if lacking:
        return f"left out: {', '.join(lacking)} cannot be imported"
    seconds = budget.grant(part.limit)
    if seconds is None:
        return f"left out: {budget.remaining():.0f} s were left"
    try:
        return launch(part, settings, seconds, take_row)
    except Exception as error:  # the others still have something to say
        return f"failed: {type(error).__name__}: {error}"
