"""What it takes over the context: a line per dtype, and across the cards that there are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mila.memory import format_bytes
from mila.planning.page.html import Markup, element, tick_text, ticks
from mila.planning.report import Outcome, SweepPoint, SweepReport

#: Common sizes of the memory of accelerators, in GiB.
CARDS = (8, 12, 16, 24, 40, 48, 80, 141)
GIB = 1 << 30
_MOST_TICKS = 8
_SERIES_STYLES = 5
#: The next card above the largest plan is shown where it is no further away than this.
_HEADROOM = 1.5
_MARK = 4


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its points in the order of ``x``."""

    label: str
    points: tuple[tuple[int, SweepPoint], ...]


def series_of(sweep: SweepReport) -> tuple[str, list[Series]]:
    """The option along the axis (the context, where it varies), and a line for each choice of the others.

    The name is empty where nothing that varies has numbers for values.
    """
    numeric = [name for name in sweep.varied if all(isinstance(p.options.get(name), int) for p in sweep.points)]
    if not numeric or not sweep.points:
        return "", []
    axis = "context" if "context" in numeric else numeric[0]
    lines: dict[str, list[tuple[int, SweepPoint]]] = {}
    for point in sweep.points:
        others = [_words(name, point.options[name]) for name in sweep.varied if name != axis]
        lines.setdefault(", ".join(others) or sweep.choices.dtype, []).append((int(point.options[axis]), point))
    return axis, [Series(label, tuple(sorted(each, key=lambda pair: pair[0]))) for label, each in lines.items()]


def _words(name: str, value: int | str) -> str:
    return f"{name} {value:,}" if isinstance(value, int) else value


def short_number(value: int) -> str:
    """``"32k"`` for 32,768: a context as people say it."""
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else f"{value:,}"


def ceiling(sizes: Sequence[int], budget: int | None) -> int:
    """Where the axis of bytes ends: above all plans, and above the next card or the budget where these are near."""
    most = max([*sizes, 1])
    near = [mark for mark in (*(card * GIB for card in CARDS), budget or 0) if most <= mark <= most * _HEADROOM]
    return int(max([most, *near[:1], budget if budget in near else 0]) * 1.06)


def cards_below(end: int) -> list[int]:
    """The cards that an axis up to ``end`` bytes shows, in GiB."""
    return [card for card in CARDS if card * GIB <= end]


def context_curve(sweep: SweepReport) -> Markup | None:
    """The picture, wide and narrow; ``None`` where there is nothing to draw a line through."""
    axis, lines = series_of(sweep)
    sizes = [point.needed_bytes for line in lines for _, point in line.points if point.needed_bytes is not None]
    values = sorted({value for line in lines for value, _ in line.points})
    if len(values) < 2 or not sizes or values[0] < 1:
        return None
    end = ceiling(sizes, sweep.budget_bytes)
    drawings = [
        _Drawing(sweep, axis, lines, values, end, width, height).svg(name)
        for name, width, height in (("wide", 800, 420), ("narrow", 340, 380))
    ]
    legend = [
        element("li", element("span", class_=f"key series-{number % _SERIES_STYLES}", aria_hidden="true"), line.label)
        for number, line in enumerate(lines)
    ]
    said = "● fits  ○ not known  ✕ does not fit. Needed: reserved by Mila, and what is counted elsewhere."
    marks = element("p", said, class_="note")
    return element("figure", element("ul", *legend, class_="legend"), *drawings, marks, class_="curve")


@dataclass(frozen=True, slots=True)
class _Drawing:
    sweep: SweepReport
    axis: str
    lines: Sequence[Series]
    values: Sequence[int]
    end: int
    width: int
    height: int

    left = 62
    right = 84
    top = 14
    bottom = 46

    def svg(self, name: str) -> Markup:
        said = "; ".join(
            f"{line.label}: " + ", ".join(f"{short_number(value)} {self._size(point)}" for value, point in line.points)
            for line in self.lines
        )
        parts = [*self._grid(), *self._cards(), *self._values()]
        for number, line in enumerate(self.lines):
            parts += self._line(line, f"series-{number % _SERIES_STYLES}")
        return element(
            "svg",
            *parts,
            class_=f"plot {name}",
            viewBox=f"0 0 {self.width} {self.height}",
            role="img",
            aria_label=f"Needed bytes over {self.axis}. {said}.",
        )

    def _size(self, point: SweepPoint) -> str:
        return "no plan" if point.needed_bytes is None else format_bytes(point.needed_bytes)

    def _x(self, value: int) -> float:
        low, high = math.log(self.values[0]), math.log(self.values[-1])
        share = (math.log(value) - low) / (high - low)
        return round(self.left + share * (self.width - self.left - self.right), 1)

    def _y(self, size: int) -> float:
        return round(self.height - self.bottom - size / self.end * (self.height - self.top - self.bottom), 1)

    def _grid(self) -> Iterator[Markup]:
        for tick in ticks(self.end, _MOST_TICKS):
            y = self._y(tick)
            yield element("line", x1=self.left, x2=self.width - self.right, y1=y, y2=y, class_="grid")
            yield _text(tick_text(tick), self.left - 8, y + 4, "end")

    def _cards(self) -> Iterator[Markup]:
        """Lines for cards and the budget; a label where it does not cover one below it."""
        marks = [(card * GIB, f"card {card} GiB", "card") for card in cards_below(self.end)]
        if self.sweep.budget_bytes is not None and self.sweep.budget_bytes <= self.end:
            marks = [mark for mark in marks if mark[0] != self.sweep.budget_bytes]
            marks.append((self.sweep.budget_bytes, "budget", "budgetline"))
        taken: list[float] = []
        for size, label, kind in sorted(marks, key=lambda mark: (mark[2] == "card", -mark[0])):
            y = self._y(size)
            yield element("line", x1=self.left, x2=self.width - self.right, y1=y, y2=y, class_=kind)
            if all(abs(y - other) >= 13 for other in taken):
                taken.append(y)
                yield _text(label, self.width - self.right + 9, y + 4, "start", f"of-{kind}")

    def _values(self) -> Iterator[Markup]:
        """The axis of the option: labels for as many values as there is room for."""
        base = self.height - self.bottom
        room, last = 40.0, -math.inf
        shown = []
        for value in reversed(self.values):
            if abs(self._x(value) - last) >= room:
                last = self._x(value)
                shown.append(value)
        for value in self.values:
            x = self._x(value)
            yield element("line", x1=x, x2=x, y1=base, y2=base + 5, class_="axisline")
            if value in shown:
                yield _text(short_number(value), x, base + 19, "middle")
        yield element("line", x1=self.left, x2=self.width - self.right, y1=base, y2=base, class_="axisline")
        middle = (self.left + self.width - self.right) / 2
        yield _text(f"{self.axis}, logarithmic", middle, self.height - 6, "middle")

    def _line(self, line: Series, style: str) -> Iterator[Markup]:
        path, pen = [], "M"
        for value, point in line.points:
            if point.needed_bytes is None:
                pen = "M"
                continue
            path.append(f"{pen}{self._x(value)} {self._y(point.needed_bytes)}")
            pen = "L"
        yield element("path", d="".join(path), class_=f"line {style}")
        for value, point in line.points:
            if point.needed_bytes is not None:
                yield self._mark(value, point, point.needed_bytes, f"{line.label}, {self.axis} {value:,}", style)

    def _mark(self, value: int, point: SweepPoint, size: int, said: str, style: str) -> Markup:
        x, y = self._x(value), self._y(size)
        title = element("title", f"{said}: {format_bytes(size)} ({size:,} bytes)")
        if point.outcome is Outcome.DOES_NOT_FIT:
            cross = f"M{x - _MARK} {y - _MARK}l{2 * _MARK} {2 * _MARK}m0 {-2 * _MARK}l{-2 * _MARK} {2 * _MARK}"
            return element("path", title, d=cross, class_=f"mark cross {style}")
        kind = "fitting" if point.outcome is Outcome.FITS else "open"
        return element("circle", title, cx=x, cy=y, r=_MARK, class_=f"mark {kind} {style}")


def _text(content: str, x: float, y: float, anchor: str, kind: str = "") -> Markup:
    return element("text", content, x=x, y=round(y, 1), text_anchor=anchor, class_=kind or None)
