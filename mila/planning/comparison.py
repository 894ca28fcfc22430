"""What differs between two checkpoints, or two configs?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mila.core.loading import Progress
from mila.errors import ConfigurationError
from mila.planning.comparison_report import (
    SAME_OUTCOMES,
    ComparisonReport,
    SideSummary,
    TensorComparison,
    TensorOutcome,
    TensorSide,
    ValuesReport,
)
from mila.planning.config_comparison import compare_configs, compare_fields
from mila.planning.inspection_report import ContentKind
from mila.planning.opening import open_content
from mila.planning.stored_content import StoredContent, StoredTensor
from mila.planning.value_comparison import Side, ValueComparison, compare_values, incomparable
from mila.serialization.failures import shown

_ONE_SIDED = {True: TensorOutcome.ONLY_IN_A, False: TensorOutcome.ONLY_IN_B}


def compare(
    a: str | Path,
    b: str | Path,
    *,
    values: bool = True,
    tolerance: float = 0.0,
    on_progress: Progress | None = None,
    on_header: Progress | None = None,
) -> ComparisonReport:
    """Say what differs between two targets, each of which :func:`mila.planning.inspect` takes.

    Names, aliases included, are compared as they stand in the files. Values are compared exactly, across dtypes too:
    every float is widened to float64. Quantized blocks are compared by their bytes, with their own type alone. A few
    megabytes of memory are taken, whatever the size of the files.

    Args:
        a: the first.
        b: the second.
        values: compare values; without, headers and configs alone.
        tolerance: absolute differences of values up to this one make no difference.
        on_progress: called with the bytes that were read, and with those to read.
        on_header: of a model of the hub, called with the headers of weights that were read, and with those to read.

    Raises:
        ConfigurationError: an argument that is none, a target that is no file of these kinds, or a config beside what
            has none.
        CheckpointError: a malformed or incomplete file, or one that changes while it is read.
    """
    is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if not is_number or not math.isfinite(tolerance) or tolerance < 0:
        raise ConfigurationError(f"tolerance: expected a finite number of 0 or more, got {shown(tolerance)}")
    with open_content(a, on_header) as first, open_content(b, on_header) as second:
        return _compare(first, second, values=values, tolerance=float(tolerance), on_progress=on_progress)


def _compare(
    a: StoredContent, b: StoredContent, *, values: bool, tolerance: float, on_progress: Progress | None
) -> ComparisonReport:
    has_configs = a.config is not None and b.config is not None
    is_config = [each.kind is ContentKind.CONFIG for each in (a, b)]
    if not has_configs and any(is_config):
        other = b if is_config[0] else a
        raise ConfigurationError(f"{other.target}: expected a config to compare, got none in the {other.kind.value}")
    tensors, notes = _Tensors(a, b, tolerance), [*a.notes, *b.notes]
    metadata = compare_fields(a.metadata, b.metadata, counts=False)
    if any(is_config) or (has_configs and not a.tensors and not b.tensors):
        values, metadata = False, []
        if a.tensors or b.tensors:
            notes.append("only the configs were compared: one side is a config")
    else:
        if values and (a.is_on_hub or b.is_on_hub):
            values = False
            notes.append("values were not compared: those of a model on the hub are not read")
        tensors.compare(values=values, on_progress=on_progress)
        if (a.kind is ContentKind.GGUF) is not (b.kind is ContentKind.GGUF):
            notes.append("GGUF files have names of their own: tensors are compared by name only")
        notes += _prefix_notes(a, b)
    if not has_configs and not (a.config is None and b.config is None):
        notes.append(f"only {'A' if b.config is None else 'B'} has a config")
    raw, effective, unclear = compare_configs(a, b) if has_configs else ([], None, [])
    rows = tensors.rows
    is_same = all(row.outcome in SAME_OUTCOMES for row in rows) and not any(each.counts for each in raw)
    largest = [row.values.largest_absolute for row in rows if row.values and row.values.largest_absolute is not None]
    return ComparisonReport(
        a=_summary(a),
        b=_summary(b),
        same=is_same and not effective,
        tolerance=tolerance,
        values_compared=values,
        counts=dict(Counter(row.outcome for row in rows)),
        tensors=[row for row in rows if row.outcome not in (TensorOutcome.IDENTICAL, TensorOutcome.SAME_HEADER)],
        largest_absolute=max(largest, default=None),
        metadata=metadata,
        config=raw,
        effective_config=effective,
        notes=[*notes, *unclear],
    )


def _summary(content: StoredContent) -> SideSummary:
    return SideSummary(
        target=content.target,
        kind=content.kind,
        tensors=len(content.tensors),
        bytes=sum(tensor.nbytes for tensor in content.tensors.values()),
    )


def _prefix_notes(a: StoredContent, b: StoredContent) -> list[str]:
    """Whether all names of one side are those of the other with something before them."""
    notes = []
    for (letter, longer), (other, shorter) in ((("A", a), ("B", b)), (("B", b), ("A", a))):
        first = next(iter(shorter.tensors), None)
        if first is None or first in longer.tensors:
            continue
        prefixes = {name.removesuffix(first) for name in longer.tensors if name.endswith(f".{first}")}
        for prefix in sorted(prefixes):
            if all(f"{prefix}{name}" in longer.tensors for name in shorter.tensors):
                notes.append(f"all names of {other} are in {letter} with {shown(prefix)} before them")
    return notes


@dataclass
class _Tensors:
    """Compares all names of two contents; a pair of stored tensors once, however many names it has."""

    a: StoredContent
    b: StoredContent
    tolerance: float
    rows: list[TensorComparison] = field(default_factory=list)
    _known: dict[tuple[str, str], ValueComparison] = field(default_factory=dict)
    _done: int = 0

    def compare(self, *, values: bool, on_progress: Progress | None) -> None:
        """Fill ``rows``, in the order of A's files, then what only B has."""
        names = dict.fromkeys([*self.a.tensors, *self.a.aliases, *self.b.tensors, *self.b.aliases])
        pairs = {name: (self._find(self.a, name), self._find(self.b, name)) for name in names}
        total = 0
        if values:
            readable = {
                (one.name, other.name): one.nbytes + other.nbytes
                for one, other in pairs.values()
                if one is not None and other is not None and incomparable(one, other) is None
            }
            total = sum(readable.values())

        def on_read(size: int) -> None:
            self._done += size
            if on_progress is not None:
                on_progress(self._done, total)

        for name, (one, other) in pairs.items():
            self.rows.append(self._row(name, one, other, on_read if values else None))

    @staticmethod
    def _find(content: StoredContent, name: str) -> StoredTensor | None:
        return content.tensors.get(content.aliases.get(name, name))

    def _row(
        self, name: str, one: StoredTensor | None, other: StoredTensor | None, on_read: Callable[[int], None] | None
    ) -> TensorComparison:
        sides = [_side(name, each) for each in (one, other)]
        if one is None or other is None:
            return TensorComparison(name=name, outcome=_ONE_SIDED[other is None], a=sides[0], b=sides[1])
        reason = incomparable(one, other)
        found = None
        if on_read is not None and reason is None:
            found = self._values(one, other, on_read)
        outcome = _outcome(one, other, found)
        is_plain = found is None or outcome is TensorOutcome.IDENTICAL
        return TensorComparison(
            name=name,
            outcome=outcome,
            a=sides[0],
            b=sides[1],
            values=None if is_plain or found is None else _values_report(one, found),
            reason=reason if outcome is TensorOutcome.OTHER_DTYPE and on_read is not None else None,
        )

    def _values(self, one: StoredTensor, other: StoredTensor, on_read: Callable[[int], None]) -> ValueComparison:
        key = (one.name, other.name)
        if key not in self._known:
            sides = Side(self.a, one), Side(self.b, other)
            self._known[key] = compare_values(*sides, tolerance=self.tolerance, on_read=on_read)
        return self._known[key]


def _side(name: str, tensor: StoredTensor | None) -> TensorSide | None:
    if tensor is None:
        return None
    stored_as = None if tensor.name == name else tensor.name
    return TensorSide(dtype=tensor.dtype, shape=list(tensor.shape), bytes=tensor.nbytes, stored_as=stored_as)


def _outcome(one: StoredTensor, other: StoredTensor, found: ValueComparison | None) -> TensorOutcome:
    if one.shape != other.shape:
        return TensorOutcome.OTHER_SHAPE
    if found is None:
        return TensorOutcome.SAME_HEADER if one.dtype == other.dtype else TensorOutcome.OTHER_DTYPE
    if found.same_bytes:
        return TensorOutcome.IDENTICAL
    if not found.differing:
        return TensorOutcome.SAME_VALUES
    return TensorOutcome.DIFFERENT if found.beyond_tolerance else TensorOutcome.WITHIN_TOLERANCE


def _values_report(tensor: StoredTensor, found: ValueComparison) -> ValuesReport:
    compared = tensor.element_count if found.unit == "elements" else tensor.nbytes // tensor.unit_bytes
    return ValuesReport(
        unit=found.unit,
        compared=compared,
        differing=found.differing,
        beyond_tolerance=found.beyond_tolerance,
        nan_in_one=found.nan_in_one,
        infinite=found.infinite,
        largest_absolute=found.largest_absolute,
        largest_relative=found.largest_relative,
    )
