"""``python -m tests.cuda.mutation``: tries mutants of the CUDA kernels on their tests, without a GPU.

``--again`` also tries the survivors that are listed in ``survivors.tsv``: one that is killed now must leave the list.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import mila.kernels.cuda
from tests.cuda.mutation.trials import COUNT, SEED, Trial, processor_seconds, try_mutants, write
from tests.emulator.toolchain import missing_tools

#: The files that have mutants.
KERNEL_FILES = sorted(path.name for path in Path(mila.kernels.cuda.__file__).parent.glob("*.cu*"))


def main(arguments: list[str]) -> int:
    """Try mutants, tell about each, and return 1 if one has survived that is not listed."""
    parser = argparse.ArgumentParser(prog="python -m tests.cuda.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="how many mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="which ones (default: %(default)s)")
    parser.add_argument("--file", action="append", default=[], help="of this kernel file alone; may be repeated")
    parser.add_argument("--again", action="store_true", help="try listed survivors too")
    parser.add_argument("--report", type=Path, help="write the outcomes to this file, as JSON")
    options = parser.parse_args(arguments)
    reason = missing_tools()
    if reason is not None:
        parser.error(reason)
    if unknown := sorted({*options.file} - {*KERNEL_FILES}):
        parser.error(f"--file: no such kernel file: {', '.join(unknown)}; there are {', '.join(KERNEL_FILES)}")
    if options.count < 1:
        parser.error(f"--count: expected at least 1, got {options.count}")

    def tell(trial: Trial, done: int) -> None:
        verdict = trial.verdict
        why = " ".join(f"{verdict.test}: {verdict.reason}".split()) if verdict.test else verdict.reason
        print(f"{done:4}/{options.count} {verdict.outcome}: {trial.mutant}", f"     {why}"[:240], sep="\n", flush=True)

    trials = try_mutants(options.count, options.seed, options.file, options.again, tell)
    survivors = [trial for trial in trials if trial.verdict.outcome == "survived"]
    new = [trial for trial in survivors if not trial.verdict.reason.startswith("listed")]
    killed = len(trials) - len(survivors)
    print(f"{len(trials)} mutants: {killed} killed, {len(survivors)} survived, {len(new)} of them not listed")
    for trial in new:
        print(f"{trial.key}\treason")
    print(f"{processor_seconds():.0f} s of processor time")
    if options.report is not None:
        write(trials, options.report)
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
