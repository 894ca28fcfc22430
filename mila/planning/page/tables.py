"""The tables of the page: what it takes, what is alive at the fullest step, and every component."""

from __future__ import annotations

from collections.abc import Sequence

from mila.memory import format_bytes
from mila.planning.page.bar import counted, hatch
from mila.planning.page.components import Component, Sizes, sizes_of
from mila.planning.page.html import Markup, element, scrolling, share_text
from mila.planning.report import Elsewhere, Outcome, PlanReport, SweepPoint, SweepReport, TreeRow

_COLUMNS = (
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("state", "state"),
    ("fullest", "fullest step"),
    ("transient", "transient, declared"),
)
OUTCOMES = {Outcome.FITS: "fits", Outcome.DOES_NOT_FIT: "does not fit", Outcome.UNKNOWN: "not known"}


def lines_table(report: PlanReport) -> Markup:
    """The exact lines and their sum; then what is elsewhere, and what is left of the budget."""
    verdict, reserved = report.verdict, report.reserved_bytes
    exact = [_line(line.key, line.label, line.detail, line.bytes, reserved) for line in report.lines]
    parts = [
        element("thead", _head("what", "bytes", "", "share")),
        element("tbody", *exact, _sum("Reserved", "exactly what Mila takes from the system", reserved, share="100 %")),
    ]
    hatches = {each.key: f" {hatch(number)}" for number, each in enumerate(counted(report))}
    rest = [_elsewhere(each, hatches.get(each.key, "")) for each in report.elsewhere]
    if rest:
        title = element("th", "Elsewhere: not allocated by Mila, measured or documented", colspan=4, scope="rowgroup")
        parts.append(element("tbody", element("tr", title, class_="group"), *rest))
    totals = (
        [_sum("Needed", "reserved, and what comes out of the budget elsewhere", verdict.needed_bytes)] if rest else []
    )
    if verdict.budget_bytes is not None:
        totals.append(_sum("Budget", verdict.budget_source, verdict.budget_bytes))
    if verdict.left_bytes is not None:
        label = "Left" if verdict.left_bytes >= 0 else "Missing"
        totals.append(_sum(label, "", abs(verdict.left_bytes), is_bad=verdict.left_bytes < 0))
    if totals:
        parts.append(element("tbody", *totals))
    return scrolling(element("table", *parts, class_="lines"), "What it takes, line by line")


def _head(*titles: str) -> Markup:
    first, *others = titles
    cells = [element("th", first, scope="col")]
    cells += [
        element("th", title, scope="col", class_="number") if title else element("td", class_="number readable")
        for title in others
    ]
    return element("tr", *cells)


def _line(key: str, label: str, detail: str, size: int | None, whole: int | None) -> Markup:
    name = [element("span", class_=f"swatch {key}", aria_hidden="true"), label]
    if detail:
        name.append(element("small", detail))
    exact, readable = ("not measured", "") if size is None else (f"{size:,}", format_bytes(size))
    share = "" if size is None or whole is None else share_text(size, whole)
    return element(
        "tr",
        element("th", *name, scope="row"),
        element("td", exact, class_="number"),
        element("td", readable, class_="number readable"),
        element("td", share, class_="number"),
        class_="nothing" if size == 0 else None,
    )


def _elsewhere(line: Elsewhere, filled: str) -> Markup:
    source = line.source if line.is_counted else f"{line.source}; not out of this budget"
    return _line(f"elsewhere{filled}", line.label, source, line.bytes, None)


def _sum(label: str, detail: str, size: int, *, share: str = "", is_bad: bool = False) -> Markup:
    return element(
        "tr",
        element("th", label, element("small", detail) if detail else "", scope="row"),
        element("td", f"{size:,}", class_="number"),
        element("td", format_bytes(size), class_="number readable"),
        element("td", share, class_="number"),
        class_="sum bad" if is_bad else "sum",
    )


def fullest_table(report: PlanReport) -> Markup:
    """What lives in the transient region at its fullest step, exact."""
    step = report.fullest_step
    rows = [_line(line.key, line.label, line.detail, line.bytes, step.bytes) for line in step.lines]
    body = element("tbody", *rows, _sum("Alive", step.step, step.bytes, share="100 %" if step.bytes else ""))
    table = element("table", element("thead", _head("what", "bytes", "", "share")), body, class_="lines")
    return scrolling(table, "What is alive at the fullest step")


def component_table(root: Component) -> Markup:
    """The tree with repeated layers together: one row per component, which can be opened and closed."""
    columns = _columns([component.sizes for _, component in root.walk()])
    rows = []
    for depth, component in root.walk():
        head = element("th", element("span", component.title, class_="name"), scope="row", style=f"--depth:{depth}")
        rows.append(_row(head, component.kind, component.sizes, columns, data_depth=depth))
    table = element("table", _component_head(columns), element("tbody", *rows), class_="components sorts tree")
    return scrolling(table, "Components, repeated layers together")


def every_component_table(rows: Sequence[TreeRow]) -> Markup:
    """Every component by its path."""
    sizes = [sizes_of(row) for row in rows]
    columns = _columns(sizes)
    body = [
        _row(element("th", row.path, scope="row"), row.component, each, columns)
        for row, each in zip(rows, sizes, strict=True)
    ]
    table = element("table", _component_head(columns), element("tbody", *body), class_="components sorts")
    return scrolling(table, "Every component")


def _columns(sizes: Sequence[Sizes]) -> list[str]:
    """The columns that are not empty."""
    total = Sizes.total(sizes)
    return [name for name, _ in _COLUMNS if getattr(total, name)]


def _component_head(columns: Sequence[str]) -> Markup:
    titles = dict(_COLUMNS)
    cells = [element("th", "component", scope="col"), element("th", "class", scope="col")]
    cells += [element("th", titles[name], scope="col", class_="number") for name in columns]
    return element("thead", element("tr", *cells))


def _row(head: Markup, kind: str, sizes: Sizes, columns: Sequence[str], data_depth: int | None = None) -> Markup:
    """A row of a table that sorts; its cells have their exact bytes with them."""
    cells = [element("td", kind)]
    for name in columns:
        size = int(getattr(sizes, name))
        cells.append(element("td", format_bytes(size), data_b=size) if size else element("td", "0", data_b=0))
    return element("tr", head, *cells, data_depth=data_depth)


def sweep_table(sweep: SweepReport) -> Markup:
    """Every point of a sweep."""
    cells = [element("th", name, scope="col") for name in sweep.varied]
    cells += [element("th", title, scope="col", class_="number") for title in ("reserved", "needed")]
    cells.append(element("th", "verdict", scope="col"))
    rows = [_point(point, sweep.varied) for point in sweep.points]
    table = element(
        "table", element("thead", element("tr", *cells)), element("tbody", *rows), class_="components sorts"
    )
    return scrolling(table, "Every plan of the sweep")


def _point(point: SweepPoint, varied: Sequence[str]) -> Markup:
    head, *others = [point.options.get(name, "") for name in varied]
    cells = [element("th", _value(head), scope="row", data_b=head if isinstance(head, int) else None)]
    cells += [element("td", _value(each), class_="value") for each in others]
    for size in (point.reserved_bytes, point.needed_bytes):
        cells.append(element("td", "", data_b=-1) if size is None else element("td", format_bytes(size), data_b=size))
    said = OUTCOMES[point.outcome]
    if point.problem is not None:
        said = f"{said}: {point.problem}" if point.outcome is Outcome.DOES_NOT_FIT else point.problem
    cells.append(element("td", said))
    return element("tr", *cells)


def _value(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
