"""Test and measure Mila on a GPU, in under eight minutes, and print one table.

    python -m benchmarks.gpu_check [--seconds N] [--only PART ...] [--skip PART ...] [--markdown FILE] [--json FILE]

Run from the checkout. Needs no network; what has to be importable is checked first. Each part runs in a process of its
own, with a limit, and files are written after each: a run that is cut leaves what it has measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu_check import requirements
from benchmarks.gpu_check.budget import Budget
from benchmarks.gpu_check.parts import PARTS, launch_process, run_parts
from benchmarks.gpu_check.rows import PartResult, json_report, markdown_report, text_report
from benchmarks.gpu_check.settings import MEBIBYTE, Settings

#: Seconds of a whole run: eight minutes, less what starting, killing and writing take.
DEFAULT_SECONDS = 460.0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="of the whole run (default: %(default)g)"
    )
    parser.add_argument("--only", action="append", choices=names, help="run only this part; may be repeated")
    parser.add_argument("--skip", action="append", choices=names, default=[], help="leave this part out")
    parser.add_argument("--device", default="cuda:0", help="cuda:<index>")
    parser.add_argument("--array-mib", type=int, default=256, help="size of the largest arrays of each kernel")
    parser.add_argument("--tests-matching", metavar="EXPRESSION", help="passed to pytest as -k")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    return parser.parse_args(arguments)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """What the command line asks for."""
    settings = replace(
        Settings(),
        device=arguments.device,
        torch_device=arguments.device,
        array_bytes=arguments.array_mib * MEBIBYTE,
        compile_model=not arguments.no_compile,
    )
    if arguments.tests_matching is None:
        return settings
    return replace(settings, tests=("-k", arguments.tests_matching, *settings.tests))


class Publisher:
    """Shows rows as they come, and keeps the files up to date: a run that is killed leaves what it has measured."""

    def __init__(self, markdown: Path | None, json: Path | None) -> None:
        self._files = [(path, form) for path, form in ((markdown, markdown_report), (json, json_report)) if path]
        self.results: Sequence[PartResult] = ()
        self._shown = ""

    def __call__(self, results: Sequence[PartResult]) -> None:
        """Take the results so far."""
        self.results = results
        last = results[-1]
        if last.state != "running":
            print(last.heading, file=sys.stderr, flush=True)
        elif last.rows:
            what, measured, *_ = list(last.rows.values())[-1].cells
            line = f"    {what}: {measured}"
            if line != self._shown:
                print(line, file=sys.stderr, flush=True)
            self._shown = line
        for path, form in self._files:
            path.write_text(form(results), encoding="utf-8")


def main(given: Sequence[str] | None = None) -> int:
    """Check, run, write; 2 if something needed is missing, 1 if a part did not finish or a goal was missed."""
    arguments = parse(sys.argv[1:] if given is None else given)
    budget = Budget(arguments.seconds)
    found = requirements.check()
    for remark in found.remarks:
        print(remark, file=sys.stderr)
    obstacle = found.obstacle or requirements.missing_device(arguments.device)
    if obstacle is not None:
        print(obstacle, file=sys.stderr)
        return 2
    chosen = arguments.only or [part.name for part in PARTS]
    parts = [part for part in PARTS if part.name in chosen and part.name not in arguments.skip]
    publisher = Publisher(arguments.markdown, arguments.json)
    try:
        run_parts(parts, settings_of(arguments), budget, launch_process, publisher, found.missing)
    finally:
        print(text_report(publisher.results))
    fine = all(result.state == "finished" for result in publisher.results)
    return 0 if fine and not any(row.is_missed for result in publisher.results for row in result.rows.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
