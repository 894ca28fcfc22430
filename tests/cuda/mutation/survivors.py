"""The mutants that no test kills, with the reason of each: ``survivors.tsv``."""

from __future__ import annotations

from pathlib import Path

from tests.cuda.mutation.mutants import Key

TABLE = Path(__file__).with_name("survivors.tsv")


def listed() -> dict[Key, str]:
    """The reason of every survivor that is checked in.

    Raises:
        ValueError: a line does not have five columns, or no reason.
    """
    reasons: dict[Key, str] = {}
    for number, line in enumerate(TABLE.read_text("utf-8").splitlines(), start=1):
        if line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) != 5 or not columns[4].strip():
            raise ValueError(f"{TABLE.name}:{number}: expected file, line, change, number and reason, got {line!r}")
        file, code, change, nth, reason = columns
        reasons[Key(file, code, change, int(nth))] = reason
    return reasons
