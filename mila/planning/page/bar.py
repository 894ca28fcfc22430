"""The exact lines of a plan as one bar, with what is elsewhere behind it and the budget across."""

from __future__ import annotations

from mila.memory import format_bytes
from mila.planning.page.html import Markup, element, percent, tick_text, ticks
from mila.planning.report import Elsewhere, FullestStep, PlanReport

_MOST_TICKS = 6
#: Patterns of the style sheet.
_HATCHES = 4
#: A budget further away than this many times the needed bytes is beyond the bar: else nothing could be told apart.
FURTHEST_BUDGET = 3


def memory_bar(report: PlanReport) -> Markup:
    """The bar as a figure; all its numbers stand in the table of lines."""
    verdict = report.verdict
    budget = verdict.budget_bytes
    is_beyond = budget is not None and budget > FURTHEST_BUDGET * verdict.needed_bytes
    end = max(verdict.needed_bytes, 0 if budget is None or is_beyond else budget, 1)
    segments, position = [], 0
    for line in (each for each in report.lines if each.bytes):
        segments.append(_segment(line.key, line.label, line.bytes, position, end, budget))
        position += line.bytes
    for number, other in enumerate(counted(report)):
        kind = f"elsewhere {hatch(number)}" + (" apart" if number == 0 else "")
        segments.append(_segment(kind, other.label, other.bytes or 0, position, end, None))
        position += other.bytes or 0
    parts = [element("div", *segments, class_="segments")]
    if budget is not None:
        parts.append(_budget(budget, end, is_beyond=is_beyond))
    marks = [
        element("span", element("i", tick_text(tick)), class_="tick", style=f"left:{percent(tick / end)}")
        for tick in ticks(end, _MOST_TICKS)
    ]
    return element(
        "figure",
        element(
            "div", *parts, element("div", *marks, class_="axis"), class_="bar", role="img", aria_label=_said(report)
        ),
        class_="barfigure",
    )


def hatch(number: int) -> str:
    """How what is elsewhere is filled, one line after the other."""
    return f"hatch-{number % _HATCHES}"


def counted(report: PlanReport) -> list[Elsewhere]:
    """What is known to come out of the budget beside the exact lines."""
    return [each for each in report.elsewhere if each.is_counted and each.bytes]


def _segment(kind: str, label: str, size: int, start: int, end: int, budget: int | None) -> Markup:
    """A part of the bar; its label keeps clear of the budget's line, on the side where there is more room."""
    room = None
    if budget is not None and start < budget < start + size:
        share = (budget - start) / size
        room = f"margin-left:{percent(share)}" if share < 0.5 else f"width:{percent(share)}"
    text = element("span", element("b", label), " ", element("span", format_bytes(size)), class_="label", style=room)
    place = f"left:{percent(start / end)};width:{percent(size / end)}"
    return element("span", text, class_=f"segment {kind}", style=place, title=f"{label}: {size:,} bytes")


def _budget(budget: int, end: int, *, is_beyond: bool) -> Markup:
    if is_beyond:
        text = element("span", f"budget {format_bytes(budget)}, further right →", class_="label")
        return element("div", text, class_="budget beyond end", style="left:100%")
    place = budget / end
    text = element("span", f"budget {format_bytes(budget)}", class_="label")
    return element("div", text, class_="budget" + (" end" if place > 0.5 else ""), style=f"left:{percent(place)}")


def _said(report: PlanReport) -> str:
    lines = [f"{line.label} {format_bytes(line.bytes)}" for line in report.lines if line.bytes]
    lines += [f"elsewhere, {each.label} {format_bytes(each.bytes or 0)}" for each in counted(report)]
    if report.verdict.budget_bytes is not None:
        lines.append(f"budget {format_bytes(report.verdict.budget_bytes)}")
    return f"Bar: {'; '.join(lines)}."


def sharing_bars(step: FullestStep) -> Markup:
    """How well the transient region is used: what is alive, the region, and what it would be without sharing."""
    rows = (
        ("alive at the fullest step", step.bytes),
        ("the region", step.region_bytes),
        ("if nothing shared bytes", step.unshared_bytes),
    )
    most = max(1, *(size for _, size in rows))
    items = [
        element(
            "li",
            element("span", label, class_="what"),
            element("span", element("span", class_="fill", style=f"width:{percent(size / most)}"), class_="track"),
            element("span", format_bytes(size), class_="size"),
        )
        for label, size in rows
    ]
    return element("ul", *items, class_="bars")
