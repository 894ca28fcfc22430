"""A plan or a sweep as a picture, drawn by matplotlib (extra ``plot``)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from mila.cli.inspect_text import printable
from mila.errors import ConfigurationError
from mila.memory import format_bytes
from mila.planning.elsewhere import without
from mila.planning.page.bar import FURTHEST_BUDGET, counted
from mila.planning.page.curve import GIB, Series, cards_below, ceiling, series_of, short_number
from mila.planning.page.html import tick_text, ticks
from mila.planning.report import Outcome, PlanReport, SweepReport
from mila.serialization import filesystem, write_file_atomically

#: How files of each kind start.
_STARTS = {".png": (b"\x89PNG\r\n",), ".svg": (b"<?xml", b"<svg"), ".pdf": (b"%PDF-",)}
_INK, _MUTED, _RULE, _ALERT = "#1b1f24", "#59616b", "#d5d9de", "#a3201f"
_FILLS = {
    "parameters": "#77aadd",
    "gradients": "#ee8866",
    "moments": "#eedd88",
    "cache": "#44bb99",
    "tables": "#99ddff",
    "persistent": "#bbcc33",
    "transient": "#ffaabb",
    "alignment": "#dddddd",
}
_LINES = (("#0064a6", "-"), ("#b84a00", "--"), ("#00735a", ":"), ("#8b3a8f", "-."), ("#5c5c00", (0, (1, 1))))
_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _INK,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "hatch.color": _MUTED,
    "svg.hashsalt": "mila",
    "svg.fonttype": "none",
}
_BOX: dict[str, Any] = {"height": 0.8, "edgecolor": "#3b4249", "linewidth": 0.8}
#: What a point of a sweep says: its label, its marker, and what that is filled with if not the colour of its curve.
_MARKS = {
    Outcome.FITS: ("fits", "o", ""),
    Outcome.UNKNOWN: ("not known", "o", "white"),
    Outcome.DOES_NOT_FIT: ("does not fit", "X", ""),
}
_CAPTION = "Needed: reserved by Mila, and what is counted elsewhere."
#: What is elsewhere, one after the other.
_HATCHES = ("////", "....", r"\\\\", "xxxx")
_MOST_TICKS = 8
_NARROWEST_LABEL = 0.16


def check_plot(path: Path | str) -> None:
    """Refuse a picture that would replace something else, before anything is planned.

    Raises:
        ConfigurationError: an ending that is no picture's, a file that is no such picture, or no matplotlib.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _STARTS:
        raise ConfigurationError(f"expected a file that ends in .png, .svg or .pdf for the picture, got {path.name!r}")
    if path.is_file():
        with path.open("rb") as stream:
            start = stream.read(16)
        if start and not start.startswith(_STARTS[suffix]):
            kind = suffix[1:].upper()
            raise ConfigurationError(f"expected a free name or a {kind} to replace, got {path}, which is no {kind}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("pictures need matplotlib: pip install matplotlib") from error


def write_plot(report: PlanReport | SweepReport, path: Path | str) -> None:
    """Draw a plan as a bar with its budget, or a sweep as curves across common cards.

    Args:
        report: of ``mila.planning``.
        path: what it ends in says what is written: ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        ConfigurationError: see `check_plot`; a sweep without an option whose values are numbers.
        CheckpointError: the operating system refuses.
    """
    check_plot(path)
    path = Path(path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        if isinstance(report, PlanReport):
            figure = Figure(figsize=(9, 3.6), layout="constrained")
            _draw_plan(figure.add_subplot(), report)
        else:
            figure = Figure(figsize=(9, 5), layout="constrained")
            _draw_sweep(figure.add_subplot(), report)
        stream, kind = io.BytesIO(), path.suffix.lower()[1:]
        when = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        figure.savefig(stream, format=kind, dpi=150, metadata=when)
    write_file_atomically(path, lambda file: filesystem.write(file, stream.getvalue()))


def _draw_plan(axes: Any, report: PlanReport) -> None:
    """The exact lines in a row, what is elsewhere behind them, and the budget across."""
    verdict, position = report.verdict, 0
    budget = verdict.budget_bytes
    is_near = budget is not None and budget <= FURTHEST_BUDGET * verdict.needed_bytes
    end = max(verdict.needed_bytes, (budget or 0) if is_near else 0, 1)
    for line in (each for each in report.lines if each.bytes):
        label = f"{line.label}: {format_bytes(line.bytes)}"
        axes.barh(0, line.bytes, left=position, color=_FILLS.get(line.key, _RULE), label=label, **_BOX)
        if line.bytes >= _NARROWEST_LABEL * end:
            _write_inside(axes, f"{line.label}\n{format_bytes(line.bytes)}", position + line.bytes / 2)
        position += line.bytes
    for other, hatch in zip(counted(report), cycle(_HATCHES), strict=False):
        label = f"Elsewhere, {other.label}: {format_bytes(other.bytes or 0)}"
        axes.barh(0, other.bytes, left=position, color="white", hatch=hatch, label=label, **_BOX)
        position += other.bytes or 0
    axes.set(xlim=(0, end * 1.01), ylim=(-0.55, 0.75), yticks=[])
    if budget is not None and is_near:
        axes.axvline(budget, color=_ALERT, linewidth=2.5)
        side = "right" if budget > end / 2 else "left"
        axes.annotate(
            f"budget {format_bytes(budget)}",
            (budget, 0.62),
            xytext=(-6 if side == "right" else 6, 0),
            textcoords="offset points",
            ha=side,
            va="center",
            color=_ALERT,
            weight="bold",
        )
    marks = ticks(end, _MOST_TICKS)
    axes.set_xticks(marks, [tick_text(mark) for mark in marks])
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.set_title(_title(report), loc="left", fontsize=12, weight="bold")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2, frameon=False, fontsize=9)


def _write_inside(axes: Any, text: str, x: float) -> None:
    axes.text(x, 0, text, ha="center", va="center", fontsize=9, clip_on=True)


def _title(report: PlanReport) -> str:
    verdict = report.verdict
    needed = format_bytes(verdict.needed_bytes)
    name = printable(report.target.name)
    if verdict.budget_bytes is None:
        return f"{name}: needs {needed}"
    outcome = "fits" if verdict.outcome is Outcome.FITS else "does not fit"
    title = f"{name} {outcome}: needs {needed} of {format_bytes(verdict.budget_bytes)}"
    return f"{title}\n{without(verdict.uncounted)}".rstrip()


def _draw_sweep(axes: Any, sweep: SweepReport) -> None:
    """A curve for each choice of what else varies."""
    option, lines = series_of(sweep)
    sizes = [point.needed_bytes for line in lines for _, point in line.points if point.needed_bytes is not None]
    if not sizes:
        raise ConfigurationError(f"a picture needs an option with numbers that varies, got {', '.join(sweep.varied)}")
    end = ceiling(sizes, sweep.budget_bytes)
    for number, line in enumerate(lines):
        _draw_line(axes, line, *_LINES[number % len(_LINES)])
    outcomes = {point.outcome for line in lines for _, point in line.points if point.needed_bytes is not None}
    for outcome, (label, marker, face) in _MARKS.items():
        if outcome in outcomes:
            axes.plot([], [], marker, color=_MUTED, markerfacecolor=face or _MUTED, markersize=6, label=label)
    _draw_cards(axes, sweep, end)
    values = sorted({value for line in lines for value, _ in line.points})
    if len(values) > 1:
        axes.set_xscale("log", base=2)
    shown = values[:: -(-len(values) // 12)]
    axes.set_xticks(shown, [short_number(value) for value in shown])
    axes.minorticks_off()
    marks = ticks(end, _MOST_TICKS)
    axes.set_yticks(marks, [tick_text(mark) for mark in marks])
    axes.set(ylim=(0, end), xlabel=f"{option}\n{_CAPTION}")
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"{printable(sweep.target.name)}: needed bytes", loc="left", fontsize=12, weight="bold")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.2), ncols=4, fontsize=9)


def _draw_line(axes: Any, line: Series, colour: str, style: Any) -> None:
    points = [(value, point.needed_bytes, point.outcome) for value, point in line.points]
    sizes = [float("nan") if size is None else size for _, size, _ in points]
    label = printable(line.label)
    axes.plot([value for value, _, _ in points], sizes, color=colour, linestyle=style, linewidth=2.2, label=label)
    for outcome, (_, marker, face) in _MARKS.items():
        there: Sequence[tuple[int, int]] = [
            (x, size) for x, size, is_so in points if size is not None and is_so is outcome
        ]
        if there:
            look = {"color": colour, "markerfacecolor": face or colour, "markersize": 6, "zorder": 3}
            axes.plot(*zip(*there, strict=True), marker, **look)


def _draw_cards(axes: Any, sweep: SweepReport, end: int) -> None:
    """Lines for common cards and the budget, with labels where these do not cover each other."""
    marks = [(card * GIB, f"card {card} GiB", False) for card in cards_below(end)]
    budget = sweep.budget_bytes
    if budget is not None and budget <= end:
        marks = [(budget, "budget", True), *(mark for mark in marks if mark[0] != budget)]
    written: list[int] = []
    for size, label, is_budget in sorted(marks, key=lambda mark: (not mark[2], -mark[0])):
        colour = _ALERT if is_budget else _MUTED
        axes.axhline(size, color=colour, linewidth=1.8 if is_budget else 1, linestyle="--" if is_budget else ":")
        if all(abs(size - other) >= 0.04 * end for other in written):
            written.append(size)
            place = {"xy": (1, size), "xycoords": ("axes fraction", "data"), "xytext": (6, 0)}
            weight = "bold" if is_budget else "normal"
            axes.annotate(label, **place, textcoords="offset points", va="center", color=colour, weight=weight)
