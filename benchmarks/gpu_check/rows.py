"""Rows of the table, and the table as text, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.machine import markdown_table

HEADER = ("what", "measured", "beside", "ratio", "goal")
#: Characters of a column on a terminal; the few longer cells push the rest of their own line aside.
_WIDEST = (72, 32, 60, 8, 12)


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        what: what was measured, with sizes; a later row of the same part and name replaces this one.
        measured: the result with its unit, as it is printed.
        beside: what it is compared with.
        ratio: the comparison as a number; what is divided by what is the part's to say.
        goal: the least ratio that is wanted.
        figures: everything that was measured, for JSON.
    """

    what: str
    measured: str
    beside: str = ""
    ratio: float | None = None
    goal: float | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_missed(self) -> bool:
        """Whether the goal was not reached."""
        return self.goal is not None and (self.ratio is None or self.ratio < self.goal)

    @property
    def cells(self) -> tuple[str, ...]:
        """As it is printed."""
        ratio = "" if self.ratio is None else f"{self.ratio:.3g}"
        goal = "" if self.goal is None else f"{self.goal:g} {'missed' if self.is_missed else 'met'}"
        return self.what, self.measured, self.beside, ratio, goal


@dataclass
class PartResult:
    """What a part gave so far, and how it ended."""

    name: str
    title: str
    state: str = "running"
    seconds: float = 0.0
    rows: dict[str, Row] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Take a row, in place of one of the same name."""
        self.rows[row.what] = row

    @property
    def heading(self) -> str:
        """Title, state and seconds."""
        return f"{self.title}: {self.state} ({self.seconds:.0f} s)"


def text_report(results: Sequence[PartResult]) -> str:
    """Columns of equal width over all parts, for a terminal."""
    cells = [row.cells for result in results for row in result.rows.values()]
    columns = zip(HEADER, *cells, strict=True)
    widths = [min(most, max(map(len, column))) for most, column in zip(_WIDEST, columns, strict=True)]

    def line(row: tuple[str, ...]) -> str:
        first, *others = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        return "  ".join((first, *others)).rstrip()

    lines = [line(HEADER), line(tuple("-" * width for width in widths))]
    for result in results:
        lines += ["", result.heading, *(line(row.cells) for row in result.rows.values())]
    return "\n".join((*lines, "", goals(results)))


def markdown_report(results: Sequence[PartResult]) -> str:
    """One table in which the title of each part is a row."""
    rows: list[tuple[str, ...]] = []
    for result in results:
        rows.append((f"**{result.heading}**", *("",) * (len(HEADER) - 1)))
        rows += [tuple(cell.replace("|", "\\|") for cell in row.cells) for row in result.rows.values()]
    return markdown_table(HEADER, rows) + f"\n\n{goals(results)}\n"


def json_report(results: Sequence[PartResult]) -> str:
    """Everything, figures included."""
    parts = [
        {
            "name": result.name,
            "state": result.state,
            "seconds": result.seconds,
            "rows": [asdict(row) for row in result.rows.values()],
        }
        for result in results
    ]
    return json.dumps({"parts": parts}, indent=2) + "\n"


def goals(results: Iterable[PartResult]) -> str:
    """How many goals were met; the rows say which."""
    rows = [row for result in results for row in result.rows.values() if row.goal is not None]
    return f"goals met: {sum(not row.is_missed for row in rows)} of {len(rows)}"
