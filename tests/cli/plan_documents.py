"""What ``mila plan --json`` prints, read."""

from __future__ import annotations

from pathlib import Path

from mila.planning import Failure, PlanReport, SweepReport
from mila.planning.presets_report import PresetsReport
from mila.planning.schema import read_document
from tests.cli.commands import mila_here

FIXED = ("--budget", "64GiB")


def document(*arguments: str | Path) -> tuple[int, PlanReport | SweepReport | PresetsReport | Failure]:
    """Run with ``--json``; return the exit code and the only document."""
    result = mila_here("plan", *arguments, "--json")
    assert (result.stderr, result.stdout.count("\n")) == ("", 1)
    return result.exit_code, read_document(result.stdout)
