"""Part: the tests that are marked ``gpu``, on real CuPy, shared by processes: most of their time is Python's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Queue
from typing import Any

from benchmarks.gpu_check.rows import Row
from benchmarks.gpu_check.settings import Settings

#: Failures that have a row of their own, and reasons for skipping.
_SHOWN_FAILURES = 12
_SHOWN_REASONS = 3
#: Seconds between two rows of counts: the last of them stands if the tests are cut.
_BETWEEN_ROWS = 2.0
#: Exit codes of pytest.
_MEANINGS = {2: "interrupted", 3: "internal error", 4: "wrong use", 5: "no test was collected"}
_NOTHING_TO_DO = 5
#: For what the tests compute on the CPU to compare with: there are as many processes as the processors can take.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Worker:
    """A process that runs a share of the tests; it ends with its parent's process group."""

    def __init__(self, index: int, settings: Settings, messages: Queue[tuple[Worker, dict[str, Any] | None]]) -> None:
        count = settings.test_workers
        command = [sys.executable, "-m", "benchmarks.gpu_check.run_tests", str(index), str(count), *settings.tests]
        environment = os.environ | _ONE_THREAD
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, text=True
        )
        self.current = ""
        self.status: int | None = None
        threading.Thread(target=self._read, args=(messages,), daemon=True).start()

    def _read(self, messages: Queue[tuple[Worker, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with suppress(json.JSONDecodeError):  # of a process that died while it wrote
                    messages.put((self, json.loads(line)))
        self.process.wait()
        messages.put((self, None))


class Tally:
    """How tests ended, by their names."""

    def __init__(self) -> None:
        self.outcomes: dict[str, tuple[str, str]] = {}

    def take(self, worker: Worker, message: dict[str, Any]) -> None:
        """A line of a worker."""
        if "status" in message:
            worker.status = message["status"]
        elif message["outcome"] == "running":
            worker.current = message["test"]
        else:
            self.outcomes[message["test"]] = message["outcome"], message["reason"]

    def rows(self) -> Iterator[Row]:
        """Counts, the first failures, and why tests were skipped."""
        counts = Counter(outcome for outcome, _ in self.outcomes.values())
        failures = [(test, why) for test, (outcome, why) in self.outcomes.items() if outcome in ("failed", "error")]
        reasons = Counter(why for outcome, why in self.outcomes.values() if outcome == "skipped")
        judged = counts["passed"] + len(failures)
        yield Row(
            "tests marked gpu",
            f"{counts['passed']:,} passed",
            ", ".join(f"{counts[name]:,} {name}" for name in ("failed", "error", "skipped") if counts[name]),
            counts["passed"] / judged if judged else None,
            1.0,
            {"counts": dict(counts), "failures": failures, "skipped": dict(reasons)},
        )
        for test, why in failures[:_SHOWN_FAILURES]:
            yield Row(test, "failed", why)
        for why, count in reasons.most_common(_SHOWN_REASONS):
            yield Row(f"skipped: {why}", f"{count:,} tests")


def measure(settings: Settings) -> Iterator[Row]:
    """Run the tests, and tell every few seconds how far they are."""
    messages: Queue[tuple[Worker, dict[str, Any] | None]] = Queue()
    workers = [Worker(index, settings, messages) for index in range(settings.test_workers)]
    tally, running, next_rows = Tally(), len(workers), time.monotonic() + _BETWEEN_ROWS
    while running:
        with suppress(Empty):
            worker, message = messages.get(timeout=_BETWEEN_ROWS)
            if message is None:
                running -= 1
            else:
                tally.take(worker, message)
        if time.monotonic() > next_rows:
            yield from tally.rows()
            next_rows = time.monotonic() + _BETWEEN_ROWS
    yield from tally.rows()
    yield from endings(workers, has_tests=bool(tally.outcomes))


def endings(workers: list[Worker], has_tests: bool) -> Iterator[Row]:
    """What is to be said of how the processes ended."""
    for number, worker in enumerate(workers):
        if worker.status is None:
            yield Row(f"pytest {number}", f"died with {worker.process.returncode}", f"while it ran {worker.current}")
        elif worker.status > 1 and not (worker.status == _NOTHING_TO_DO and has_tests):
            yield Row("pytest", f"ended with {worker.status}", _MEANINGS.get(worker.status, ""))
