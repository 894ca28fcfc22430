"""Tries a number of mutants, and says what became of each."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cuda.mutation.laboratory import Laboratory, Verdict, in_laboratory
from tests.cuda.mutation.mutants import Key, Mutant, sample
from tests.cuda.mutation.survivors import listed

#: What is tried as a part of the tests.
COUNT, SEED = 100, 0


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutant and its verdict."""

    key: Key
    mutant: str
    verdict: Verdict


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def try_mutants(
    count: int, seed: int, files: Sequence[str], again: bool, progress: Callable[[Trial, int], None]
) -> list[Trial]:
    """Try the first ``count`` mutants of a sample; those that the compiler refuses do not count.

    Args:
        count: how many.
        seed: of the sample.
        files: of the mutants; none are all.
        again: whether listed survivors are tried as well, instead of being taken to survive.
        progress: called after each with the trial and how many are done.

    Raises:
        RuntimeError: a test that has killed a mutant fails without one too.
    """
    known = {} if again else listed()
    trials: list[Trial] = []

    def verdict_on(laboratory: Laboratory, mutant: Mutant) -> Verdict:
        reason = known.get(mutant.key)
        return laboratory.try_out(mutant) if reason is None else Verdict("survived", reason=f"listed: {reason}")

    def work(laboratory: Laboratory) -> None:
        for mutant in sample(seed, files):
            if len(trials) == count:
                break
            trial = Trial(mutant.key, str(mutant), verdict_on(laboratory, mutant))
            if trial.verdict.outcome != "refused":
                trials.append(trial)
                progress(trial, len(trials))
        failure = laboratory.failure_without_a_mutant({trial.verdict.test for trial in trials})
        if failure:
            raise RuntimeError(f"a test kills nothing, since it fails without a mutant: {failure}")

    in_laboratory(work)
    return trials


def write(trials: Sequence[Trial], path: Path) -> None:
    """Write trials to a file."""
    path.write_text(json.dumps([asdict(trial) for trial in trials], indent=1), "utf-8")


def read(path: Path) -> list[Trial]:
    """Read what ``write`` has written."""
    return [
        Trial(Key(**record["key"]), record["mutant"], Verdict(**record["verdict"]))
        for record in json.loads(path.read_text("utf-8"))
    ]
