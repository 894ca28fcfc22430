"""What a comparison says: the published form of ``mila compare --json``."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from mila.planning.inspection_report import ContentKind
from mila.planning.report import Document


class TensorOutcome(StrEnum):
    """How a name fares on both sides.

    ``identical``: the same dtype, shape and bytes. ``same_values``: every value is the same, in another dtype or with
    other bits (a negative zero, another NaN). ``within_tolerance``: values differ, by no more than was allowed.
    ``same_header``: dtype and shape are the same, and values were not looked at. ``different``: values differ.
    ``other_dtype``: another dtype, with values that were not or could not be compared. ``other_shape``: another shape.
    ``only_in_a`` and ``only_in_b``: one side lacks the name.
    """

    IDENTICAL = "identical"
    SAME_VALUES = "same_values"
    WITHIN_TOLERANCE = "within_tolerance"
    SAME_HEADER = "same_header"
    DIFFERENT = "different"
    OTHER_DTYPE = "other_dtype"
    OTHER_SHAPE = "other_shape"
    ONLY_IN_A = "only_in_a"
    ONLY_IN_B = "only_in_b"


#: Outcomes that make no difference.
SAME_OUTCOMES = frozenset(
    {
        TensorOutcome.IDENTICAL,
        TensorOutcome.SAME_VALUES,
        TensorOutcome.WITHIN_TOLERANCE,
        TensorOutcome.SAME_HEADER,
    }
)


class TensorSide(Document):
    """A tensor on one side; ``stored_as`` is the name of its bytes, where the name is an alias."""

    dtype: str
    shape: list[int]
    bytes: int
    stored_as: str | None


class ValuesReport(Document):
    """How values differ.

    Attributes:
        unit: what is counted: ``elements``; ``blocks`` or ``bytes`` where only those can be compared.
        compared: how many there are.
        differing: how many differ. NaN equals NaN, and zero its negative.
        beyond_tolerance: how many of them differ by more than was allowed.
        nan_in_one: how many are NaN on one side alone.
        infinite: how many of those that differ are NaN on no side, and infinite on one or, with another sign, on both.
        largest_absolute: the largest difference of two finite values; ``None`` where there is none.
        largest_relative: the largest such difference divided by the larger magnitude of the two.
    """

    unit: Literal["elements", "blocks", "bytes"]
    compared: int
    differing: int
    beyond_tolerance: int
    nan_in_one: int
    infinite: int
    largest_absolute: float | None
    largest_relative: float | None


class TensorComparison(Document):
    """One name that is not identical on both sides; ``reason`` says why values could not be compared."""

    name: str
    outcome: TensorOutcome
    a: TensorSide | None
    b: TensorSide | None
    values: ValuesReport | None = None
    reason: str | None = None


class FieldComparison(Document):
    """A field that differs, with its value on each side as JSON, ``None`` where it is absent.

    ``counts``: it makes the two different; a name, a version, or a default that one side spells out does not.
    """

    field: str
    a: str | None
    b: str | None
    counts: bool


class SideSummary(Document):
    """What stands on one side."""

    target: str
    kind: ContentKind
    tensors: int
    bytes: int


class ComparisonReport(Document):
    """What differs.

    Attributes:
        a: the first target.
        b: the second.
        same: whether nothing that counts differs: names, shapes, values (dtypes, where values were not compared), and
            what configs say.
        tolerance: absolute differences up to this one are allowed.
        values_compared: whether values were looked at.
        counts: names by outcome.
        tensors: every name that is not identical.
        largest_absolute: the largest difference of two finite values among all tensors.
        metadata: entries that differ; they never count.
        config: fields of both configs that differ.
        effective_config: fields of what both configs mean to Mila that differ, defaults spelled out; ``None`` where one
            of them is no config that Mila has, and a note says which and why.
        notes: what was not compared, and why.
    """

    event: Literal["comparison"] = "comparison"
    version: Literal[1] = 1
    a: SideSummary
    b: SideSummary
    same: bool
    tolerance: float
    values_compared: bool
    counts: dict[TensorOutcome, int]
    tensors: list[TensorComparison]
    largest_absolute: float | None
    metadata: list[FieldComparison]
    config: list[FieldComparison]
    effective_config: list[FieldComparison] | None
    notes: list[str]
