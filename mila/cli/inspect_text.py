"""Inspections and comparisons for people. Whatever a file says is shown, never obeyed: names may hold anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from mila.memory import format_bytes
from mila.memory.format import format_table
from mila.planning.comparison_report import (
    ComparisonReport,
    FieldComparison,
    SideSummary,
    TensorComparison,
    TensorOutcome,
    TensorSide,
    ValuesReport,
)
from mila.planning.inspection_report import ContentKind, FindingKind, InspectionReport, counted

_LONGEST_NAME, _LONGEST_VALUE = 200, 100
_KINDS = {
    ContentKind.FOLDER: "model folder",
    ContentKind.CONFIG: "config",
    ContentKind.SAFETENSORS: "safetensors file",
    ContentKind.INDEX: "index of safetensors files",
    ContentKind.GGUF: "GGUF file",
    ContentKind.ARCHIVE: "archive of Mila",
    ContentKind.HUB: "model on the hub",
}
_OUTCOMES = {
    TensorOutcome.IDENTICAL: "identical",
    TensorOutcome.SAME_VALUES: "same values, other dtype",
    TensorOutcome.WITHIN_TOLERANCE: "within the tolerance",
    TensorOutcome.SAME_HEADER: "same dtype and shape (values not compared)",
    TensorOutcome.DIFFERENT: "values differ",
    TensorOutcome.OTHER_DTYPE: "other dtype, values not compared",
    TensorOutcome.OTHER_SHAPE: "other shape",
    TensorOutcome.ONLY_IN_A: "only in A",
    TensorOutcome.ONLY_IN_B: "only in B",
}


def inspection_text(report: InspectionReport) -> str:
    """What it is, files, tensors, totals, other names, problems, notes; where none are chosen, metadata and config."""
    parts = [_heading(report), _files(report), _tensors(report), _totals(report)]
    chosen = {row.name for row in report.tensors}
    aliases = [f"{printable(alias)} = {printable(name)}" for alias, name in report.aliases.items() if name in chosen]
    parts.append(_block("Other names of stored tensors", aliases))
    if report.names is None:
        config = {key: json.dumps(value, ensure_ascii=False) for key, value in (report.config or {}).items()}
        parts += [_block("Metadata", _fields(report.metadata)), _block("Config", _fields(config))]
    parts += [
        _block("Problems", (printable(problem.message) for problem in report.problems)),
        _block("Notes", (printable(note.message) for note in report.notes)),
        _verdict(report),
    ]
    return "\n\n".join(part for part in parts if part)


def comparison_text(report: ComparisonReport) -> str:
    """All of a report: the two sides, notes, what differs of tensors, metadata and configs, and the verdict."""
    sides = [
        f"{letter}: {printable(side.target)} ({_side(side)})" for letter, side in (("A", report.a), ("B", report.b))
    ]
    effective = report.effective_config or []
    parts = [
        "\n".join(sides),
        _counts(report),
        _block("Notes", map(printable, report.notes)),  # they may explain all that follows
        _block("Tensors that are not identical", _differences(report.tensors)),
        _block("Metadata", map(_difference, report.metadata)),
        _block("Config", map(_difference, report.config)),
        _block("What the configs mean to Mila", map(_difference, effective)),
        _comparison_verdict(report),
    ]
    return "\n\n".join(part for part in parts if part)


def printable(text: str, longest: int = 1000) -> str:
    """A text such that it cannot move the cursor, hide or reorder a line, or fill the screen."""
    cut = text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"
    return "".join(each if each.isprintable() else _escaped(each) for each in cut)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _heading(report: InspectionReport) -> str:
    line = f"{printable(report.target)}: {_KINDS[report.kind]}"
    if report.place != report.target:
        line += f", {printable(report.place)}"
    return line


def _files(report: InspectionReport) -> str:
    rows = [
        (
            printable(each.name),
            f"{each.tensors:,}",
            f"{each.tensor_bytes:,}",
            f"{each.bytes:,}",
            format_bytes(each.bytes),
        )
        for each in report.files
    ]
    header = ("file", "tensors", "bytes of tensors", "bytes of file", "")
    return format_table(header, rows, right=(1, 2, 3, 4)) if rows else ""


def _tensors(report: InspectionReport) -> str:
    with_files = len(report.files) > 1
    rows = []
    for tensor in report.tensors:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        row = (printable(tensor.name, _LONGEST_NAME), tensor.dtype, shape, f"{tensor.bytes:,}")
        rows.append((*row, printable(tensor.file)) if with_files else row)
    if rows:
        header = ("tensor", "dtype", "shape", "bytes", "file") if with_files else ("tensor", "dtype", "shape", "bytes")
        return format_table(header, rows, right=(3,))
    return "" if report.names is None else f"No tensor matches {printable(report.names)}."


def _totals(report: InspectionReport) -> str:
    if not report.tensors:
        return ""
    rows = [
        (each.dtype, f"{each.tensors:,}", f"{each.elements:,}", f"{each.bytes:,}", format_bytes(each.bytes))
        for each in report.totals
    ]
    total = report.selected_bytes
    whole = f"{report.selected_elements:,}"
    rows.append(("total", f"{len(report.tensors):,}", whole, f"{total:,}", format_bytes(total)))
    table = format_table(("dtype", "tensors", "elements", "bytes", ""), rows, right=(1, 2, 3, 4))
    if report.names is None:
        return table
    return f"{table}\n{printable(report.names)}: {len(report.tensors):,} of {counted(report.stored_tensors, 'tensor')}"


def _verdict(report: InspectionReport) -> str:
    if report.problems:
        return f"{counted(len(report.problems), 'problem')}."
    is_lacking = any(note.kind is FindingKind.NOT_CHECKED for note in report.notes)
    if not report.checked:
        return "No problems in what headers say; no value was read." if is_lacking else ""
    if not report.tensors:
        return "No problems; there were no values to read."
    if is_lacking:
        return "No problems in what was read."
    values = "every value" if report.names is None else "every value of these tensors"
    return f"No problems; {values} was read."


def _fields(fields: Mapping[str, str]) -> list[str]:
    return [f"{printable(key, _LONGEST_NAME)} = {printable(value, _LONGEST_VALUE)}" for key, value in fields.items()]


def _block(title: str, lines: Iterable[str]) -> str:
    found = [f"  {line}" for line in lines]
    return "\n".join([f"{title}:", *found]) if found else ""


def _size(size: int) -> str:
    return counted(size, "byte") + (f", {format_bytes(size)}" if size >= 1024 else "")


def _side(side: SideSummary) -> str:
    return f"{_KINDS[side.kind]}, {counted(side.tensors, 'tensor')}, {_size(side.bytes)}"


def _counts(report: ComparisonReport) -> str:
    rows = [(_OUTCOMES[each], f"{report.counts[each]:,}") for each in TensorOutcome if each in report.counts]
    return format_table(("tensors", ""), rows, right=(1,)) if rows else ""


def _differences(rows: Iterable[TensorComparison]) -> list[str]:
    return [f"{printable(row.name, _LONGEST_NAME)}: {_tensor_difference(row)}" for row in rows]


def _tensor_difference(row: TensorComparison) -> str:
    if row.a is None or row.b is None:
        side = row.a or row.b
        return f"{_OUTCOMES[row.outcome]}" + (f" ({_tensor(side)})" if side else "")
    headers = f"{_tensor(row.a)} and {_tensor(row.b)}"
    if row.outcome is TensorOutcome.SAME_VALUES:
        is_dtype = row.a.dtype != row.b.dtype
        return f"same values, other dtype ({headers})" if is_dtype else "same values, other bits (zeros or NaN)"
    if row.values is None:
        return f"{_OUTCOMES[row.outcome]} ({headers})" + (f": {row.reason}" if row.reason else "")
    dtypes = "" if row.a.dtype == row.b.dtype else f" ({headers})"
    return f"{_values(row.values)}{dtypes}"


def _tensor(side: TensorSide) -> str:
    text = f"{side.dtype} {'x'.join(map(str, side.shape)) or 'scalar'}"
    return text if side.stored_as is None else f"{text}, stored as {printable(side.stored_as, _LONGEST_NAME)}"


def _values(found: ValuesReport) -> str:
    text = f"{found.differing:,} of {found.compared:,} {found.unit} differ"
    if not found.beyond_tolerance:
        text += ", within the tolerance"
    elif found.beyond_tolerance != found.differing:
        text += f", {found.beyond_tolerance:,} by more than the tolerance"
    if found.largest_absolute is not None and found.largest_relative is not None:
        text += f", at most by {found.largest_absolute:.6g} (relative {found.largest_relative:.3g})"
    if found.nan_in_one:
        text += f"; {found.nan_in_one:,} NaN on one side alone"
    if found.infinite:
        text += f"; {found.infinite:,} infinite on one side alone or with another sign"
    return text


def _difference(found: FieldComparison) -> str:
    a, b = ("absent" if each is None else printable(each, _LONGEST_VALUE) for each in (found.a, found.b))
    return f"{printable(found.field, _LONGEST_NAME)}: {a} in A, {b} in B"


def _comparison_verdict(report: ComparisonReport) -> str:
    if not report.same:
        return "DIFFERENT"
    has_rows = report.tensors or report.config or report.metadata
    looked = "" if report.values_compared or not report.counts else " (values not compared)"
    return f"The same{', apart from what is listed' if has_rows else ''}{looked}."
