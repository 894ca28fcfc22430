"""A plan as one page of HTML that needs nothing else: no network, no fonts, and no scripts but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from mila.errors import ConfigurationError
from mila.memory import format_bytes
from mila.planning.elsewhere import without
from mila.planning.fitting import MOST_CHANGES
from mila.planning.page.bar import memory_bar, sharing_bars
from mila.planning.page.commands import plan_words, shell_word
from mila.planning.page.components import component_tree
from mila.planning.page.curve import context_curve
from mila.planning.page.html import Markup, element, joined
from mila.planning.page.tables import (
    component_table,
    every_component_table,
    fullest_table,
    lines_table,
    sweep_table,
)
from mila.planning.page.treemap import tree_map
from mila.planning.report import MODE_OF_CHOICE, Limit, Outcome, PlanReport, Remedy, SweepReport
from mila.serialization import filesystem, write_file_atomically

__all__ = ["check_page", "page_html", "write_page"]

_SUFFIXES = (".html", ".htm")
_START = b'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="mila plan">'
#: Choices that the page of a sweep leaves out where the option varies: they follow it.
_FOLLOWING = {"context": ("prefill",)}
_SIGNS = {Outcome.FITS: "✓", Outcome.DOES_NOT_FIT: "✕", Outcome.UNKNOWN: "?"}


def write_page(
    report: PlanReport, path: Path | str, *, sweep: SweepReport | None = None, of_sweep: bool = False
) -> None:
    """Write the page of a plan; whenever the writer dies, the file is the old one or the new one.

    Args:
        report: of ``mila.planning.plan``.
        path: a name that ends in ``.html``: free, or that of a page that was written so.
        sweep: what the curve is drawn from.
        of_sweep: the page is that of the sweep, and the plan is its first one.

    Raises:
        ConfigurationError: another ending, or a file that is no page of a plan.
        CheckpointError: the operating system refuses.
    """
    check_page(path)
    content = page_html(report, sweep=sweep, of_sweep=of_sweep).encode()
    write_file_atomically(Path(path), lambda file: filesystem.write(file, content))


def check_page(path: Path | str) -> None:
    """Refuse a page that would replace something else than a page, before anything is planned.

    Raises:
        ConfigurationError: a name without the ending, or a file that is no page of a plan.
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigurationError(f"expected a file that ends in .html for the page, got {path.name!r}")
    if not path.is_file():
        return
    with path.open("rb") as stream:
        start = stream.read(len(_START))
    if start not in (b"", _START):
        raise ConfigurationError(f"expected a free name or a page of a plan to replace, got {path}, which is none")


def page_html(report: PlanReport, *, sweep: SweepReport | None = None, of_sweep: bool = False) -> str:
    """The page as text; the same for the same report. Arguments are those of `write_page`."""
    swept = sweep if of_sweep else None
    style, script = _resource("style.css"), _resource("script.js")
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{checksum}'; base-uri 'none'"
    head = [
        element("meta", http_equiv="Content-Security-Policy", content=f"{policy}; form-action 'none'"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{report.target.name}: {_verdict(report) if swept is None else _sweep_verdict(swept)[1]}"),
        element("style", Markup(style)),
    ]
    sections = _sections(report, sweep) if swept is None else _sweep_sections(report, swept)
    kind = report.choices.mode.value
    parts = (_header(report, swept), element("main", *sections), _footer(report, swept))
    body = element("body", *parts, element("script", Markup(script)), class_=kind)
    return f"{_START.decode()}{joined(head, chr(10))}</head>\n{body}</html>\n"


def _resource(name: str) -> str:
    return (resources.files(__name__) / name).read_text("utf-8")


def _header(report: PlanReport, swept: SweepReport | None) -> Markup:
    target = report.target
    choices, varied = (report.choices, []) if swept is None else (swept.choices_of_modes, swept.varied)
    of_mode = {name: f" in {mode.value}" for name, mode in MODE_OF_CHOICE.items()} if "mode" in varied else {}
    facts = [
        ("model", f"{target.model_type}, {target.layers:,} layers"),
        ("parameters", f"{target.parameters:,}"),
        ("mode", choices.mode.value),
        ("context", f"{choices.context:,} of {target.max_context:,}"),
        ("batch", f"{choices.batch:,}"),
        ("prefill", f"{choices.prefill:,}" if choices.prefill is not None else ""),
        ("dtype", choices.dtype),
        ("quantize", choices.quantize or ""),
        ("optimizer", choices.optimizer.value if choices.optimizer else ""),
        ("accumulate", f"{choices.accumulate:,}" if choices.accumulate is not None else ""),
        ("device", choices.device),
    ]
    if target.stored_bytes is not None:
        dtypes = ", ".join(target.stored_dtypes)
        facts.append(("in its files", f"{format_bytes(target.stored_bytes)}{f' as {dtypes}' if dtypes else ''}"))
    following = {name for option in varied for name in _FOLLOWING.get(option, ())} - {*varied}
    pairs = [
        element("div", element("dt", name, of_mode.get(name, "")), element("dd", "varies" if name in varied else value))
        for name, value in facts
        if value and name not in following
    ]
    outcome, said = (report.verdict.outcome, _verdict(report)) if swept is None else _sweep_verdict(swept)
    return element(
        "header",
        element("p", "mila plan", class_="brand"),
        element("h1", target.name),
        element("p", target.target, class_="target") if target.target != target.name else "",
        _verdict_line(outcome, said),
        element("dl", *pairs, class_="facts"),
    )


def _verdict_line(outcome: Outcome, said: str) -> Markup:
    sign = element("span", _SIGNS[outcome], class_="sign", aria_hidden="true")
    return element("p", sign, said, class_=f"verdict {outcome.value.replace('_', '-')}")


def _sweep_verdict(sweep: SweepReport) -> tuple[Outcome, str]:
    """How many of the plans fit; a sweep fits where any does."""
    outcomes = [point.outcome for point in sweep.points]
    if sweep.budget_bytes is None:
        return Outcome.UNKNOWN, f"{len(outcomes):,} plans: cannot tell, how much there is, is not known"
    fitting = outcomes.count(Outcome.FITS)
    said = f"{fitting:,} of {len(outcomes):,} plans fit in {format_bytes(sweep.budget_bytes)}"
    if fitting and sweep.uncounted:
        said = f"{said}, {without(sweep.uncounted)}"
    return (Outcome.FITS if fitting else Outcome.DOES_NOT_FIT), said


def _verdict(report: PlanReport) -> str:
    verdict = report.verdict
    needed = format_bytes(verdict.needed_bytes)
    if verdict.budget_bytes is None or verdict.left_bytes is None:
        return f"Cannot tell: needs {needed}; how much there is, is not known"
    there = format_bytes(verdict.budget_bytes)
    if verdict.outcome is Outcome.FITS:
        fits = f"Fits, {without(verdict.uncounted)}" if verdict.uncounted else "Fits"
        return f"{fits}: needs {needed} of {there}, {format_bytes(verdict.left_bytes)} are left"
    return f"Does not fit: needs {needed} of {there}, {format_bytes(-verdict.left_bytes)} are missing"


def _sweep_sections(report: PlanReport, sweep: SweepReport) -> Iterator[Markup]:
    """All plans, then the first one by itself."""
    yield _curve_section(sweep)
    first = sweep.first.options.items()
    options = ", ".join(f"{name} {value:,}" if isinstance(value, int) else value for name, value in first)
    title = f"The first of {len(sweep.points):,} plans: {options}"
    yield _section("first", title, _verdict_line(report.verdict.outcome, _verdict(report)))
    yield from _sections(report, None)


def _curve_section(sweep: SweepReport) -> Markup:
    picture = context_curve(sweep)
    table = element("details", element("summary", f"All {len(sweep.points):,} plans"), sweep_table(sweep))
    return _section("curve", f"Over {' and '.join(sweep.varied)}", picture or "", table)


def _sections(report: PlanReport, sweep: SweepReport | None) -> Iterator[Markup]:
    remedies = _remedies(report)
    if remedies and report.verdict.outcome is Outcome.DOES_NOT_FIT:
        yield remedies
    yield _section("takes", "What it takes", memory_bar(report), lines_table(report))
    if remedies and report.verdict.outcome is not Outcome.DOES_NOT_FIT:
        yield remedies
    yield from _component_sections(report)
    if sweep is not None:
        yield _curve_section(sweep)
    step = report.fullest_step
    text = (
        f"Values, their gradients and workspaces share one region. It is fullest at {step.step}: no placement can do"
        " with less than what is alive there."
    )
    yield _section("step", "The fullest step", element("p", text), sharing_bars(step), fullest_table(report))
    yield from _list_section("assumptions", "Assumptions", report.assumptions)
    yield from _list_section("notes", "About the target", report.target.notes)


def _section(name: str, title: str, *content: str) -> Markup:
    return element(
        "section", element("h2", title, id=f"{name}-title"), *content, aria_labelledby=f"{name}-title", id=name
    )


def _list_section(name: str, title: str, items: Sequence[str]) -> Iterator[Markup]:
    if items:
        yield _section(name, title, element("ul", *(element("li", item) for item in items), class_="plain"))


def _component_sections(report: PlanReport) -> Iterator[Markup]:
    root = component_tree(report.tree)
    if root is None:
        return
    if root.children and root.sizes.all:
        text = "Areas are bytes. Enter or a click opens a component; repeated layers are one."
        yield _section("areas", "What takes the most", element("p", text, class_="hint"), tree_map(root))
    content: list[str] = [component_table(root)]
    if any(component.count > 1 for _, component in root.walk()):
        summary = element("summary", f"All {len(report.tree):,} components, each by itself")
        content.append(element("details", summary, every_component_table(report.tree)))
    note = "Counted where it is declared. Siblings share the transient region: what they declare there does not add up."
    yield _section("components", "By component", element("p", note, class_="hint"), *content)


def _remedies(report: PlanReport) -> Markup | None:
    """What would make it fit, and the limits; ``None`` where there is nothing to say."""
    parts: list[Markup] = []
    if report.remedies:
        parts.append(element("ul", *(_remedy(report, remedy) for remedy in report.remedies), class_="remedies"))
    elif report.verdict.outcome is Outcome.DOES_NOT_FIT and report.limits:  # without limits nothing was looked for
        parts.append(element("p", f"No change of up to {MOST_CHANGES} options makes it fit."))
    if report.limits:
        limits = [element("li", *_limit(limit)) for limit in report.limits]
        title = element("h3", "The most that fits, everything else as asked")
        parts.append(element("div", title, element("ul", *limits, class_="plain")))
    if not parts:
        return None
    is_needed = report.verdict.outcome is Outcome.DOES_NOT_FIT
    return _section("remedies", "What would make it fit" if is_needed else "How far it goes", *parts)


def _remedy(report: PlanReport, remedy: Remedy) -> Markup:
    takes = f"reserves {format_bytes(remedy.reserved_bytes)}, leaves {format_bytes(remedy.left_bytes)}"
    command = _command(plan_words(report, remedy.options))
    return element("li", element("p", element("b", remedy.label), " ", element("span", takes)), command)


def _command(words: Sequence[str]) -> Markup:
    """A line for a shell, which breaks between its words only: else one would break behind any hyphen."""
    shown = [element("span", shell_word(word), class_="word") for word in words]
    return element("code", joined(shown, " "), class_="command", tabindex=0)


def _limit(limit: Limit) -> Iterator[str]:
    if limit.value is None:
        yield f"{limit.option}: no value fits"
        return
    if limit.is_open:
        yield f"{limit.option}: no limit found up to {limit.value:,}"
        return
    yield element("b", f"{limit.option} {limit.value:,}")
    if limit.reserved_bytes is not None:
        yield f", reserves {format_bytes(limit.reserved_bytes)}"
    if limit.is_models_limit:
        yield "; the model allows no more"


def _footer(report: PlanReport, swept: SweepReport | None) -> Markup:
    return element(
        "footer",
        element("h2", "The same plan again" if swept is None else "The first of these plans again"),
        _command(plan_words(report)),
        element(
            "p", "Asked of the model's graph, which was constructed and not built: nothing was loaded or allocated."
        ),
    )
