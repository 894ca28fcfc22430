"""A plan for people: lines that sum up, the fullest step, what is elsewhere, the verdict, and what would change it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from mila.memory import format_bytes
from mila.memory.format import format_table
from mila.planning.elsewhere import without
from mila.planning.fitting import MOST_CHANGES
from mila.planning.report import (
    Choices,
    Limit,
    Line,
    Outcome,
    PlanReport,
    SweepPoint,
    SweepReport,
    TargetSummary,
    TreeRow,
    Verdict,
)

WIDTH = 80
#: Characters of the longest bar.
_BAR = 15
#: What makes it fit is explained beside its options where these are no longer than this, else below them.
_WIDEST_OPTIONS = 36
#: Rows of equal components that follow each other are shown as one from here on.
_ALIKE = 2
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
    parts = [_sweep_heading(report), table]
    if report.budget_bytes is None:
        parts.append("\n".join(_wrapped(f"CANNOT TELL: {report.budget_source}.", "")))
    else:
        rest = f", {without(report.uncounted)}" if report.uncounted else ""
        budget = f"{_exact(report.budget_bytes)}, for these bytes and what is counted elsewhere{rest}"
        parts.append("\n".join(_wrapped(budget, "Budget: ")))
    if problems:
        parts.append("\n".join(line for word, problem in problems for line in _wrapped(problem, f"{word}: ")))
    return "\n\n".join(parts)


def _sweep_heading(report: SweepReport) -> str:
    """As of one plan, with what is for one mode alone where the mode varies."""
    choices = report.choices
    if "mode" in report.varied:
        own = {name: report.chosen(name) for name in ("prefill", "optimizer", "accumulate")}
        choices = choices.model_copy(update=own)
    return heading(report.target, choices, report.varied)


def heading(target: TargetSummary, choices: Choices, varied: Sequence[str] = ()) -> str:
    """The model, and how it is built."""
    about = f"{target.model_type}, {target.parameters:,} parameters, {target.layers:,} layers"
    inference, training = (" in inference", " in training") if "mode" in varied else ("", "")
    fixed = [
        f"on {choices.device}" if "mode" in varied else f"{choices.mode.value} on {choices.device}",
        f"batch {choices.batch:,}",
        f"context {choices.context:,}",
        "" if choices.prefill is None or "context" in varied else f"prefill {choices.prefill:,}{inference}",
        choices.dtype,
        "" if choices.quantize is None else f"quantized: {choices.quantize}",
        "" if choices.optimizer is None else f"optimizer {choices.optimizer.value}{training}",
        "" if choices.accumulate in (None, 1) else f"{choices.accumulate:,} passes per update{training}",
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
    lines = [line for line in report.lines if line.bytes]
    total = Line(key="", label="Reserved", bytes=report.reserved_bytes)
    return "\n".join([*_line_rows("Reserved by Mila, exactly", lines, report.reserved_bytes), _sum_row(total)])


def _fullest_step(report: PlanReport) -> str:
    step = report.fullest_step
    lines = [line for line in step.lines if line.bytes]
    total = Line(key="", label="Alive at that step", bytes=step.bytes)
    title = f"In the transient region, at its fullest step ({step.step})"
    unused = step.region_bytes - step.bytes
    rest = [] if not unused else _wrapped(f"The region is {_exact(unused)} larger: placement leaves gaps.", "")
    return "\n".join([*_wrapped(title, ""), *_line_rows("", lines, step.bytes), _sum_row(total), *rest])


def _elsewhere(report: PlanReport) -> str:
    rows = ["Counted elsewhere: not allocated by Mila, not in the bytes above"]
    for line in report.elsewhere:
        size = "?" if line.bytes is None else f"{line.bytes:,}"
        short = "" if line.bytes is None else format_bytes(line.bytes)
        rows.append(f"{line.label:<37}{size:>13}{short:>12}".rstrip())
        rows += _wrapped(line.source, "    ")
    needed = Line(key="", label="Needed, all together", bytes=report.verdict.needed_bytes)
    rows.append(_sum_row(needed))
    return "\n".join(rows)


def _limits(report: PlanReport) -> str:
    if not report.limits:
        return ""
    return "The largest that fits, everything else as it is\n" + "\n".join(_limit_row(limit) for limit in report.limits)


def _limit_row(limit: Limit) -> str:
    if limit.value is None or limit.reserved_bytes is None:
        return f"{limit.option:<10}{'none fits':>12}"
    if limit.is_open:
        return f"{limit.option:<10} no limit found up to {limit.value:,}"
    why = "  (the model's limit)" if limit.is_models_limit else ""
    return f"{limit.option:<10}{limit.value:>12,} {limit.reserved_bytes:>21,} bytes reserved{why}"


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


def _line_rows(title: str, lines: Iterable[Line], whole: int) -> Iterator[str]:
    if title:
        yield title
    for line in lines:
        share = line.bytes / whole if whole else 0
        bar = "#" * round(share * _BAR)
        yield f"{line.label:<25}{line.bytes:>19,}{format_bytes(line.bytes):>12}{share:>6.0%}  {bar}".rstrip()
        if line.detail:
            yield from _wrapped(line.detail, "    ")


def _sum_row(line: Line) -> str:
    return f"{'-' * 56}\n{line.label:<25}{line.bytes:>19,}{format_bytes(line.bytes):>12}"


def _tree(report: PlanReport) -> str:
    rows = []
    for row, count in _without_repetition(report.tree):
        name = "  " * row.depth + row.path.rpartition(".")[2] + (f" (x {count})" if count > 1 else "")
        persistent = row.parameter_bytes + row.gradient_bytes + row.state_bytes
        rows.append((name, row.component, f"{persistent:,}", f"{row.fullest_bytes:,}"))
    header = ("component", "", "persistent bytes", "at the fullest step")
    return format_table(header, rows, right=(2, 3))


def _without_repetition(rows: Sequence[TreeRow]) -> Iterator[tuple[TreeRow, int]]:
    """Rows, neighbours whose bytes are equal all the way down only once, with how often they are there."""
    i = 0
    while i < len(rows):
        size = _branch(rows, i)
        count, following = 1, i + size
        while following < len(rows) and _are_alike(rows[i : i + size], rows[following : following + size]):
            count, following = count + 1, following + size
        if count >= _ALIKE and rows[i].depth:
            yield rows[i], count
            yield from _without_repetition(rows[i + 1 : i + size])
            i = following
        else:
            yield rows[i], 1
            i += 1


def _branch(rows: Sequence[TreeRow], i: int) -> int:
    """How many rows a component and everything below it have."""
    end = i + 1
    while end < len(rows) and rows[end].depth > rows[i].depth:
        end += 1
    return end - i


def _are_alike(first: Sequence[TreeRow], second: Sequence[TreeRow]) -> bool:
    return len(first) == len(second) and all(
        one.model_dump(exclude={"path"}) == other.model_dump(exclude={"path"})
        and (not i or one.path.rpartition(".")[2] == other.path.rpartition(".")[2])
        for i, (one, other) in enumerate(zip(first, second, strict=True))
    )


def _point_row(varied: Sequence[str], point: SweepPoint) -> tuple[str, ...]:
    values = [point.options[option] for option in varied]
    shown = tuple(f"{value:,}" if isinstance(value, int) else value for value in values)
    if point.reserved_bytes is None:
        return (*shown, "-", "", _WORDS[point.outcome])
    word = "" if point.outcome is Outcome.UNKNOWN else _WORDS[point.outcome]
    return (*shown, f"{point.reserved_bytes:,}", format_bytes(point.reserved_bytes), word)


def _exact(size: int) -> str:
    return f"{size:,} bytes ({format_bytes(size)})"


def _wrapped(text: str, prefix: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=prefix, subsequent_indent=" " * len(prefix), break_on_hyphens=False
    )
