"""Plans over ranges of options: every combination, asked of the graph."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from mila.devices import DeviceId
from mila.errors import ConfigurationError, DeviceError, ShapeError, UnaddressableError
from mila.memory import MemoryPlan
from mila.planning.asking import Listener, Questions
from mila.planning.breakdown import lines_of
from mila.planning.budget import Budget
from mila.planning.building import check_policy, choices_of
from mila.planning.planner import summary_of, target_named
from mila.planning.report import Choices, Outcome, SweepPoint, SweepReport
from mila.planning.request import Mode, PlanRequest
from mila.planning.target import Target

#: Options that may vary: those that change what a build takes on one device.
VARIED_OPTIONS = ("context", "batch", "prefill", "dtype", "quantize", "optimizer", "mode")
#: Plans of a large model take up to a second each.
MOST_POINTS = 256


def sweep(
    target: Target | str | os.PathLike[str],
    request: PlanRequest | None,
    ranges: Mapping[str, Sequence[int | str]],
    *,
    on_question: Listener | None = None,
) -> SweepReport:
    """A plan for every combination of the values in ``ranges``, the last option varying fastest.

    Combinations that a build would refuse become points with a problem and no bytes; of sizes that no memory addresses
    it is known that they do not fit.

    Args:
        target: as for :func:`mila.planning.plan`.
        request: everything that does not vary; where the mode does, prefill and passes count in their mode alone.
        ranges: values by the names of fields of ``request``.
        on_question: is called with the choices before each plan.

    Raises:
        ConfigurationError: an option that cannot vary, no values, too many combinations, or none that can be built.
        UnaddressableError: no combination is of sizes that memory addresses.
        DTypeError, pydantic.ValidationError: a value that no build takes.
        CheckpointError: the target is malformed.
    """
    count = _checked_count(ranges)
    asked, named = PlanRequest() if request is None else request, target_named(target)
    device = DeviceId.parse(asked.device)
    budget, questions = Budget.of(device, asked.mode, asked.budget), Questions(named, on_question)
    points: list[SweepPoint] = []
    summary = choices = None
    for values in product(*ranges.values()):
        options: dict[str, int | str] = dict(zip(ranges, values, strict=True))
        try:
            wanted = choices_of(named, request_of(asked, options))
            root, plan = questions.plan(wanted)
        except (ConfigurationError, DeviceError, ShapeError) as error:
            points.append(_refused(options, error))
            continue
        if choices is None:
            choices, summary = wanted, summary_of(named, root)
        points.append(_planned(options, wanted, plan, budget.in_mode(device, wanted.mode)))
    if choices is None or summary is None:
        are_too_large = all(point.outcome is Outcome.DOES_NOT_FIT for point in points)
        kind = UnaddressableError if are_too_large else ConfigurationError
        raise kind(f"sweep: none of {count:,} combinations can be built; the first: {points[0].problem}")
    return SweepReport(
        target=summary,
        choices=choices,
        varied=list(ranges),
        budget_bytes=budget.size,
        budget_source=budget.source,
        uncounted=list(budget.uncounted),
        points=points,
    )


def _planned(options: dict[str, int | str], choices: Choices, plan: MemoryPlan, room: Budget) -> SweepPoint:
    reserved = plan.reserved_bytes
    return SweepPoint(
        options=options,
        reserved_bytes=reserved,
        needed_bytes=room.needed(reserved),
        lines=lines_of(plan),
        outcome=room.outcome(reserved),
        choices=choices,
    )


def _refused(options: dict[str, int | str], error: Exception) -> SweepPoint:
    outcome = Outcome.DOES_NOT_FIT if isinstance(error, UnaddressableError) else Outcome.UNKNOWN
    return SweepPoint(
        options=options, reserved_bytes=None, needed_bytes=None, lines=[], outcome=outcome, problem=str(error)
    )


def _checked_count(ranges: Mapping[str, Sequence[int | str]]) -> int:
    if not ranges:
        raise ConfigurationError("sweep: expected an option that varies, got none")
    for option, values in ranges.items():
        if option not in VARIED_OPTIONS:
            raise ConfigurationError(f"sweep: expected one of {', '.join(VARIED_OPTIONS)}, got {option!r:.60}")
        if not values:
            raise ConfigurationError(f"sweep: expected values of {option}, got none")
        for value in values if option == "quantize" else ():
            check_policy(str(value))
    count = math.prod(map(len, ranges.values()))
    if count > MOST_POINTS:
        raise ConfigurationError(f"sweep: expected at most {MOST_POINTS:,} combinations, got {count:,}")
    return count


def request_of(request: PlanRequest, options: Mapping[str, int | str]) -> PlanRequest:
    """The request of one point; what is for the other mode alone is left out where the mode varies."""
    fields: dict[str, Any] = {**request.model_dump(), **options}
    if "mode" in options:
        others = {"prefill": None} if options["mode"] == Mode.TRAINING else {"accumulate": 1}
        fields |= {name: value for name, value in others.items() if name not in options}
    return PlanRequest.model_validate(fields)
