"""A plan for people: lines that sum up, the fullest step, what is elsewhere, the verdict, and what would change it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from mila.cli.inspect_text import printable
from mila.memory import format_bytes
from mila.memory.format import aligned, format_table
from mila.planning.elsewhere import without
from mila.planning.fitting import MOST_CHANGES
from mila.planning.page.components import Component, component_tree
from mila.planning.report import (
    MODE_OF_CHOICE,
    Choices,
    Limit,
    Line,
    Outcome,
    PlanReport,
    SweepPoint,
    SweepReport,
    TargetSummary,
    Verdict,
)

WIDTH = 80
#: Characters of the longest bar.
_BAR = 15
#: What makes it fit is explained beside its options where these are no longer than this, else below them.
_WIDEST_OPTIONS = 36
#: Of rows with a label and a size: the columns that are aligned to the right.
_SIZES = (1, 2)
_ABOUT_TREE = (
    "By component, everything below it included. Persistent: parameters, gradients and state, which live as long as "
    "the network; at the fullest step: what is alive then in the transient region. Repeated components are one row "
    "(x N), with the bytes of all N together and, of the persistent ones, of each."
)
#: Of a point in a sweep; what is unknown has no plan, or no budget.
_WORDS = {Outcome.FITS: "fits", Outcome.DOES_NOT_FIT: "does not fit", Outcome.UNKNOWN: "not possible"}


def report_text(report: PlanReport, *, tree: bool) -> str:
    """All of a plan; ``tree`` adds a row for every component."""
    parts = [
        heading(report.target, report.choices),
        "\n".join(_wrapped(verdict_line(report.verdict), "")),
        _lines_table(report),
        _fullest_step(report),
        _elsewhere(report),
    ]
    if tree:
        parts.append(_tree(report))
    parts.append("Assumptions\n" + "\n".join(line for each in report.assumptions for line in _wrapped(each, "- ")))
    parts += [part for part in (_limits(report), _remedies(report)) if part]
    return "\n\n".join(parts)


def sweep_text(report: SweepReport) -> str:
    """A row for every point."""
    header = (*report.varied, "bytes reserved", "", "")
    rows = [_point_row(report.varied, point) for point in report.points]
    numbers = [i for i, option in enumerate(report.varied) if option in ("context", "batch", "prefill")]
    count = len(report.varied)
    table = format_table(header, rows, right=(*numbers, count, count + 1))
    problems = dict.fromkeys(
        (_WORDS[point.outcome], point.problem) for point in report.points if point.problem is not None
    )
    parts = [heading(report.target, report.choices_of_modes, report.varied), table]
    if report.budget_bytes is None:
        parts.append("\n".join(_wrapped(f"CANNOT TELL: {report.budget_source}.", "")))
    else:
        rest = f", {without(report.uncounted)}" if report.uncounted else ""
        budget = f"{_exact(report.budget_bytes)}, for these bytes and what is counted elsewhere{rest}"
        parts.append("\n".join(_wrapped(budget, "Budget: ")))
    if problems:
        parts.append("\n".join(line for word, problem in problems for line in _wrapped(problem, f"{word}: ")))
    return "\n\n".join(parts)


def heading(target: TargetSummary, choices: Choices, varied: Sequence[str] = ()) -> str:
    """The model, and how it is built."""
    about = f"{target.model_type}, {target.parameters:,} parameters, {target.layers:,} layers"
    of_mode = {name: f" in {mode.value}" if "mode" in varied else "" for name, mode in MODE_OF_CHOICE.items()}
    fixed = [
        f"on {choices.device}" if "mode" in varied else f"{choices.mode.value} on {choices.device}",
        f"batch {choices.batch:,}",
        f"context {choices.context:,}",
        "" if choices.prefill is None or "context" in varied else f"prefill {choices.prefill:,}{of_mode['prefill']}",
        choices.dtype,
        "" if choices.quantize is None else f"quantized: {choices.quantize}",
        "" if choices.optimizer is None else f"optimizer {choices.optimizer.value}{of_mode['optimizer']}",
        "" if choices.accumulate in (None, 1) else f"{choices.accumulate:,} passes per update{of_mode['accumulate']}",
    ]
    shown = [part for part in fixed if part and part.split()[0] not in varied and part != _varying(part, varied)]
    lines = [*_wrapped(f"{target.name}: {about}", ""), *_wrapped(", ".join(shown), "")]
    if target.stored_bytes is not None:
        lines.append(f"files: {format_bytes(target.stored_bytes)} of {', '.join(target.stored_dtypes)}")
    return "\n".join([*lines, *(line for note in target.notes for line in _wrapped(note, "note: "))])


def verdict_line(verdict: Verdict) -> str:
    """Whether there is room, in one sentence."""
    needed = f"needs {_exact(verdict.needed_bytes)}, with what is counted elsewhere"
    if verdict.budget_bytes is None or verdict.left_bytes is None:
        return f"CANNOT TELL: {needed}; {verdict.budget_source}."
    budget = f"of {_exact(verdict.budget_bytes)} {verdict.budget_source}"
    if verdict.outcome is Outcome.FITS:
        fits = f"FITS, {without(verdict.uncounted)}" if verdict.uncounted else "FITS"
        return f"{fits}: {needed}, {budget}; {format_bytes(verdict.left_bytes)} are left."
    return f"DOES NOT FIT: {needed}, {budget}; {format_bytes(-verdict.left_bytes)} are missing."


def _varying(part: str, varied: Sequence[str]) -> str:
    """``part`` itself where it stands for something that varies without saying its name."""
    unnamed = {
        "dtype": ("float", "bfloat"),
        "quantize": ("quant",),
    }
    return part if any(part.startswith(unnamed.get(option, ())) for option in varied) else ""


def _lines_table(report: PlanReport) -> str:
    return "\n".join(["Reserved by Mila, exactly", *_summed(report.lines, "Reserved", report.reserved_bytes)])


def _fullest_step(report: PlanReport) -> str:
    step = report.fullest_step
    title = f"In the transient region, at its fullest step ({step.step})"
    unused = step.region_bytes - step.bytes
    rest = [] if not unused else _wrapped(f"The region is {_exact(unused)} larger: placement leaves gaps.", "")
    return "\n".join([*_wrapped(title, ""), *_summed(step.lines, "Alive at that step", step.bytes), *rest])


def _elsewhere(report: PlanReport) -> str:
    rows = [_size_row(line.label, line.bytes) for line in report.elsewhere]
    *lines, needed = aligned([*rows, _size_row("Needed, all together", report.verdict.needed_bytes)], right=_SIZES)
    text = ["Counted elsewhere: not allocated by Mila, not in the bytes above"]
    for line, other in zip(lines, report.elsewhere, strict=True):
        text += [line, *_wrapped(other.source, "    ")]
    return "\n".join([*text, _rule(needed), needed])


def _limits(report: PlanReport) -> str:
    if not report.limits:
        return ""
    found = iter(aligned([_limit_row(limit) for limit in report.limits if not limit.is_open], right=(0, 1)))
    said = [f"no limit found up to {limit.value:,}" if limit.is_open else next(found) for limit in report.limits]
    width = max(len(limit.option) for limit in report.limits)
    rows = [f"{limit.option:<{width}}  {text}" for limit, text in zip(report.limits, said, strict=True)]
    return "\n".join(["The largest that fits, everything else as it is", *rows])


def _limit_row(limit: Limit) -> tuple[str, str, str]:
    if limit.value is None or limit.reserved_bytes is None:
        return "none fits", "", ""
    why = "(the model's limit)" if limit.is_models_limit else ""
    return f"{limit.value:,}", f"{limit.reserved_bytes:,} bytes reserved", why


def _remedies(report: PlanReport) -> str:
    if report.verdict.outcome is not Outcome.DOES_NOT_FIT or not report.limits:
        return ""
    if not report.remedies:
        return "What would make it fit\n" + "\n".join(_wrapped(_why_nothing_helps(report), ""))
    options = max(len(remedy.options) for remedy in report.remedies)
    rows: list[str] = []
    for remedy in report.remedies:
        said = f"{remedy.label}; {format_bytes(remedy.left_bytes)} are left"
        if options <= _WIDEST_OPTIONS:
            rows += _wrapped(said, f"{remedy.options:<{options}}  ")
        else:
            rows += [remedy.options, *_wrapped(said, "    ")]
    return "\n".join(["What would make it fit, the least intrusive first", *rows])


def _why_nothing_helps(report: PlanReport) -> str:
    fixed = [line for line in report.lines if line.key in ("parameters", "gradients", "moments") and line.bytes]
    size, names = sum(line.bytes for line in fixed), ", ".join(line.label.lower() for line in fixed)
    if size <= (report.verdict.budget_bytes or 0):
        return f"No change of up to {MOST_CHANGES} options does."
    return f"No change of up to {MOST_CHANGES} options does: {names} alone take {_exact(size)}."


def _summed(lines: Iterable[Line], label: str, whole: int) -> Iterator[str]:
    """Lines that are not empty, each with its share of the whole, and the whole."""
    there = [line for line in lines if line.bytes]
    shares = [line.bytes / whole for line in there]
    rows = [(*_size_row(line.label, line.bytes), f"{share:.0%}") for line, share in zip(there, shares, strict=True)]
    *texts, total = aligned([*rows, (*_size_row(label, whole), "")], right=(*_SIZES, 3))
    room = min(_BAR, WIDTH - 2 - max(map(len, texts), default=0))
    for line, share, text in zip(there, shares, texts, strict=True):
        yield f"{text}  {'#' * round(share * room)}".rstrip()
        if line.detail:
            yield from _wrapped(line.detail, "    ")
    yield from (_rule(total), total)


def _size_row(label: str, size: int | None) -> tuple[str, str, str]:
    return (label, "?", "") if size is None else (label, f"{size:,}", format_bytes(size))


def _rule(line: str) -> str:
    return "-" * len(line)


def _tree(report: PlanReport) -> str:
    root = component_tree(report.tree)
    rows = [] if root is None else [_tree_row(depth, component) for depth, component in root.walk()]
    header = ("component", "class", "persistent bytes", "each", "at the fullest step")
    return "\n".join([*_wrapped(_ABOUT_TREE, ""), format_table(header, rows, right=(2, 3, 4))])


def _tree_row(depth: int, component: Component) -> tuple[str, ...]:
    count, sizes = component.count, component.sizes
    name = "  " * depth + component.name + (f" (x {count})" if count > 1 else "")
    each = "" if count == 1 else "differ" if component.each_persistent is None else f"{component.each_persistent:,}"
    return name, component.kind, f"{sizes.persistent:,}", each, f"{sizes.fullest:,}"


def _point_row(varied: Sequence[str], point: SweepPoint) -> tuple[str, ...]:
    values = [point.options[option] for option in varied]
    shown = tuple(f"{value:,}" if isinstance(value, int) else value for value in values)
    if point.reserved_bytes is None:
        return (*shown, "-", "", _WORDS[point.outcome])
    word = "" if point.outcome is Outcome.UNKNOWN else _WORDS[point.outcome]
    return (*shown, f"{point.reserved_bytes:,}", format_bytes(point.reserved_bytes), word)


def _exact(size: int) -> str:
    if abs(size) < 1024:  # they say it all
        return f"{size} {'byte' if abs(size) == 1 else 'bytes'}"
    return f"{size:,} bytes ({format_bytes(size)})"


def _wrapped(text: str, prefix: str) -> list[str]:
    """Lines of a paragraph; what names hold is shown before it could pass for white space."""
    paragraph = printable(text, len(text))
    indent = " " * len(prefix)
    return textwrap.wrap(paragraph, WIDTH, initial_indent=prefix, subsequent_indent=indent, break_on_hyphens=False)
