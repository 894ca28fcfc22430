"""Runs the tests of CUDA kernels on mutants: each mutant in a process of its own, until the first test fails.

The tests are pytest's own items, collected once. What each of them launches is noted by a first pass in which no kernel
runs. A mutant gets the items that launch a kernel which its change can reach: those that need the same modules
together, and of them first what costs more than half of the others do, since empty and single elements find little.
"""

from __future__ import annotations

import itertools
import os
import pickle
import resource
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from mila.devices.kernel_files import source_text, sources
from tests.cuda.mutation import observed
from tests.cuda.mutation.mutants import Mutant, share
from tests.cuda.mutation.needs import NOTED, Needs, alike, like, needs_of
from tests.cuda.mutation.texts import Target, target_of
from tests.emulator.module import Mode

FOLDER = Path(__file__).resolve().parents[1]
ROOT = FOLDER.parents[1]
#: The files of tests/cuda whose tests are about single kernels, but for those of huge arrays.
FILES = (
    "kernels",
    "special_values",
    "sizes",
    "grids",
    "orders",
    "wide_indices",
    "attention",
    "attention_cached",
    "context_attention",
    "special_attention",
    "rope",
    "rope_tables",
    "token_tables",
)
#: Seconds of processor time that a mutant may take in all.
MOST_SECONDS = 120
#: Of what a failing test says.
MOST_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        outcome: ``killed``, ``survived``, or ``refused`` by the compiler.
        test: the first that failed.
        reason: what it said.
        tests: how many ran.
    """

    outcome: str
    test: str = ""
    reason: str = ""
    tests: int = 0


class Laboratory:
    """A plugin of pytest that collects, notes and then tries mutants instead of running the tests.

    Use it by :func:`in_laboratory`.
    """

    def __init__(self, hold: observed.Hold) -> None:
        self._hold = hold
        self._items: Sequence[pytest.Item] = ()
        self._needs: dict[pytest.Item, Needs] = {}
        self._failure: tuple[str, str] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
        """Remember the first failure. Pytest's own reports take longer than most of these tests."""
        outcome: Literal["passed", "skipped", "failed"] = "passed"
        if call.excinfo is not None:
            outcome = "skipped" if call.excinfo.errisinstance(pytest.skip.Exception) else "failed"
        if outcome == "failed" and call.excinfo is not None and self._failure is None:
            self._failure = item.nodeid, call.excinfo.exconly()[:MOST_CHARACTERS]
        return pytest.TestReport(item.nodeid, item.location, {}, outcome, None, call.when)  # type: ignore[arg-type]

    def note(self, items: Sequence[pytest.Item]) -> None:
        """Find out what the items launch. Their failures say nothing: no kernel runs."""
        self._items = items
        groups = alike(items)
        source_of = {source_text(source): source for source in sources()}
        self._hold.noted = []
        for item in self._run([item for group in groups for item in group[:NOTED]]):
            self._needs[item] = needs_of(self._hold.noted, source_of)
            self._hold.noted = []
        self._hold.noted = None
        self._failure = None
        for group in groups:
            known = [self._needs[item] for item in group[:NOTED]]
            self._needs.update((item, like(item, known)) for item in group[NOTED:])

    def try_out(self, mutant: Mutant) -> Verdict:
        """Run a mutant's tests in a child process."""
        target = target_of(mutant.key.file, mutant.text, int(share(0, str(mutant.key)) * 1000))
        items = self._chosen(target, mutant.operator == "barrier")
        return _in_child(lambda: self._judge(target, items))

    def failure_without_a_mutant(self, tests: set[str]) -> str:
        """Which of some tests fails on the kernels as they are, and how: it kills nothing."""
        verdict = _in_child(lambda: self._judge(None, [item for item in self._items if item.nodeid in tests]))
        return "" if verdict.outcome == "survived" else f"{verdict.test}: {verdict.reason}"

    def _chosen(self, target: Target, checks_first: bool) -> list[pytest.Item]:
        of_source = [item for item, needs in self._needs.items() if target.source in needs.kernels]
        reaching = [item for item in of_source if self._needs[item].reaches(target)]
        groups: dict[frozenset[tuple[Mode, str]], list[pytest.Item]] = {}
        for item in reaching or of_source:  # a kernel may be launched by none of the few that were noted
            groups.setdefault(self._needs[item].modules(target.source), []).append(item)

        def expense(group: frozenset[tuple[Mode, str]]) -> tuple[int, bool, bool]:
            is_checked = any(mode is Mode.CHECK for mode, _ in group)
            return len(group), not all("FLOAT32" in dtype for _, dtype in group), is_checked is not checks_first

        chosen = []
        for group in sorted(groups, key=expense):
            items = sorted(groups[group], key=lambda item: self._needs[item].size)
            chosen += [*items[len(items) // 2 :], *items[: len(items) // 2]]
        return chosen

    def _run(self, items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
        """Run items one after the other; yield each after it has run. What all files share stays set up."""
        for item, following in itertools.zip_longest(items, items[1:]):
            elsewhere = following or next(other for other in self._items if other.path != item.path)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=elsewhere)
            yield item

    def _judge(self, target: Target | None, items: Sequence[pytest.Item]) -> Verdict:
        if target is not None:
            self._hold.replacements = {target.original: target.changed}
        for count, _ in enumerate(self._run(items), start=1):
            if self._failure is not None:
                return Verdict("refused" if self._hold.is_refused else "killed", *self._failure, count)
        return Verdict("survived", tests=len(items))


class _Session:
    """A plugin of pytest that works with the collected items instead of running them."""

    def __init__(self, laboratory: Laboratory, work: Callable[[Laboratory], None]) -> None:
        self._laboratory = laboratory
        self._work = work
        self.error: BaseException | None = RuntimeError("pytest has collected no tests of kernels")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.error = None
        try:
            self._laboratory.note(session.items)
            self._work(self._laboratory)
        except BaseException as error:
            self.error = error
        return True


def in_laboratory(work: Callable[[Laboratory], None]) -> None:
    """Collect the tests of kernels and call ``work``: once in a process, before anything else imports the emulator."""
    laboratory = Laboratory(observed.installed())
    session = _Session(laboratory, work)
    files = [str(FOLDER / f"test_{name}.py") for name in FILES]
    options = ["-o", "addopts=", "--import-mode=importlib", "-p", "no:terminal", "-p", "no:cacheprovider", "-s"]
    options += ["--assert=plain"]
    pytest.main([*options, f"--rootdir={ROOT}", *files], plugins=[laboratory, session])
    if session.error is not None:
        raise session.error


def _in_child(judge: Callable[[], Verdict]) -> Verdict:
    """Call in a fork of this process, in which anything may happen."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent are not used in the child
        child = os.fork()
    if child == 0:
        _be_child(judge, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answer:  # nothing but a signal ends a child before it answers
        return Verdict("killed", reason=f"the process ended with status {status}")
    verdict: Verdict | str = pickle.loads(answer)
    if isinstance(verdict, str):
        raise RuntimeError(f"a mutant could not be tried:\n{verdict}")
    return verdict


def _be_child(judge: Callable[[], Verdict], writing: int) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        answer: Verdict | str = judge()
    except BaseException:
        answer = traceback.format_exc()[-MOST_CHARACTERS:]
    os.write(writing, pickle.dumps(answer))
    os._exit(0)
