"""Which lines of a kernel ran, by gcov.

Use: compile with ``Mode.COVERAGE``, launch, then ask. Counts add up over all launches of the module in this process
since the last time they were asked for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.emulator.errors import EmulatorError
from tests.emulator.module import Mode, Module

#: gcov's run-time library puts its files below this folder instead of where the module was compiled.
_PREFIX, _STRIP = "GCOV_PREFIX", "GCOV_PREFIX_STRIP"


def counts_by_file(module: Module) -> dict[str, dict[int, int]]:
    """Return how often each line with code has run, of every file that was compiled, and forget it.

    Args:
        module: Compiled with ``Mode.COVERAGE``.

    Returns:
        Counts by the names of files, as ``#line`` gives them, and by line, of all instances of a template together.
        Lines without code are absent.
    """
    if module.mode is not Mode.COVERAGE:
        raise EmulatorError(f"{module.filename} was compiled for {module.mode.name}, not for COVERAGE")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _write_counters(module, folder)
        shutil.copyfile(module.folder / "module.gcno", folder / "module.gcno")
        done = subprocess.run(
            ["gcov", "--json-format", "--stdout", "module.gcda"], cwd=folder, capture_output=True, text=True, check=True
        )
    counts: dict[str, dict[int, int]] = {}
    for file in json.loads(done.stdout)["files"]:
        own = counts.setdefault(Path(file["file"]).name, {})
        for line in file["lines"]:
            number = line["line_number"]
            own[number] = own.get(number, 0) + line["count"]
    return counts


def line_counts(module: Module, filename: str | None = None) -> dict[int, int]:
    """Return how often each line of one file, the module's own if None, has run; and forget all counts."""
    return counts_by_file(module).get(filename or module.filename, {})


def missed_lines(module: Module, filename: str | None = None) -> list[int]:
    """Return the lines with code that no thread has reached."""
    return sorted(line for line, count in line_counts(module, filename).items() if count == 0)


def _write_counters(module: Module, folder: Path) -> None:
    before = {name: os.environ.get(name) for name in (_PREFIX, _STRIP)}
    os.environ |= {_PREFIX: str(folder), _STRIP: "99"}
    try:
        module.library.emulator_write_coverage()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
