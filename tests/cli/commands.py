"""Commands of ``mila``, in this process or in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

import mila.errors
from mila.cli.app import app

TEXT = "".join(f"the quick brown fox {number} jumps over the lazy dog {number * 7}.\n" for number in range(60))

TINY = [
    *("--width", "8", "--layers", "1", "--heads", "2", "--sequence-length", "8", "--batch-size", "2"),
    *("--steps", "6", "--validate-every", "3", "--validation-batches", "2", "--checkpoint-every", "2"),
]


def write_text(folder: Path) -> Path:
    """Write a text to train on into a new file of a folder."""
    path = folder / "fox.txt"
    path.write_text(TEXT)
    return path


def mila_here(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def environment(**changes: str) -> dict[str, str]:
    """The environment of a process that finds the mila that is tested."""
    kept = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    return {**kept, "PYTHONPATH": str(Path(mila.errors.__file__).parents[1]), **changes}


def mila_command(*arguments: str | Path) -> list[str]:
    """The command line of ``mila`` in a process of its own."""
    return [sys.executable, "-W", "error", "-m", "mila.cli.main", *map(str, arguments)]


def mila_process(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run(
        mila_command(*arguments), env=environment(), capture_output=True, text=True, timeout=300, check=False
    )


def documents(output: str) -> list[dict[str, Any]]:
    """What ``--json`` printed: a document on every line."""
    return [json.loads(line) for line in output.splitlines()]


def steps_of(output: str) -> list[tuple[int, float, float]]:
    """What two runs must have in common of their steps."""
    found = [each for each in documents(output) if each["event"] == "step"]
    return [(each["step"], each["loss"], each["gradient_norm"]) for each in found]
