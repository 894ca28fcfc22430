"""One of several processes that share the tests; what each test did goes to the standard output as lines of JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import IO, Any, Protocol

from benchmarks.gpu_check.run_part import own_standard_output

_LONGEST_REASON = 160
#: Of so many tests of a file one is run in the first round, and twice as many in each round after it.
_FIRST_ROUND = 16


class Item(Protocol):
    """A collected test."""

    nodeid: str


def in_rounds(items: Sequence[Item]) -> list[Any]:
    """Tests in an order of which any beginning has looked into every file: a sixteenth of each first.

    Within a round the tests of a file stay together.
    """
    numbers: Counter[str] = Counter()
    files: dict[str, int] = {}
    keys = []
    for item in items:
        file = item.nodeid.partition("::")[0]
        number, step, turn = numbers[file], _FIRST_ROUND, 0
        while number % step:
            step //= 2
            turn += 1
        keys.append((turn, files.setdefault(file, len(files)), number))
        numbers[file] += 1
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]


class Outcomes:
    """A plugin of pytest that keeps a share of the tests, and says how each ended.

    Args:
        lines: where to.
        index, count: every ``count``-th test from this one on.
    """

    def __init__(self, lines: IO[str], index: int, count: int) -> None:
        self._lines = lines
        self._index, self._count = index, count

    def say(self, **line: Any) -> None:
        """Write one line."""
        print(json.dumps(line), file=self._lines, flush=True)

    def pytest_collection_finish(self, session: Any) -> None:
        """Choose, after marks and everything else have chosen."""
        session.items[:] = in_rounds(session.items)[self._index :: self._count]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say what runs now: if the process dies, that was it."""
        self.say(test=nodeid, outcome="running")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Take the outcome of a test; setup and teardown count where they are not passed."""
        if report.when != "call" and report.passed:
            return
        outcome = "error" if report.failed and report.when != "call" else report.outcome
        self.say(test=report.nodeid, outcome=outcome, reason=_reason(report))

    def pytest_collectreport(self, report: Any) -> None:
        """Files that could not be collected are errors."""
        if report.failed:
            self.say(test=report.nodeid, outcome="error", reason=_reason(report))


def _reason(report: Any) -> str:
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # of a skipped test: file, line, reason
        return str(report.longrepr[2])[:_LONGEST_REASON]
    crash = getattr(report.longrepr, "reprcrash", None)
    # Without one the text is that of an import, whose error stands last.
    lines = [*reversed(str(report.longrepr).splitlines())] if crash is None else str(crash.message).splitlines()
    return next((line for line in lines if line.strip()), "")[:_LONGEST_REASON]


def main() -> None:
    """``python -m benchmarks.gpu_check.run_tests INDEX COUNT ARGUMENTS``, those of pytest."""
    import pytest

    index, count, *arguments = sys.argv[1:]
    with own_standard_output() as lines:
        outcomes = Outcomes(lines, int(index), int(count))
        outcomes.say(status=int(pytest.main(arguments, plugins=[outcomes])))


if __name__ == "__main__":
    main()
