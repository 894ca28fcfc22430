"""Plans over ranges of options: every combination, asked of the graph."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from mila.devices import DeviceId
from mila.errors import ConfigurationError, DeviceError, ShapeError
from mila.planning.asking import Listener, Questions
from mila.planning.breakdown import lines_of
from mila.planning.budget import Budget
from mila.planning.building import check_policy, choices_of
from mila.planning.planner import summary_of, target_named
from mila.planning.report import Outcome, SweepPoint, SweepReport
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

    Combinations that a build would refuse become points with a problem and no bytes.

    Args:
        target: as for :func:`mila.planning.plan`.
        request: everything that does not vary; where the mode does, prefill and passes count in their mode alone.
        ranges: values by the names of fields of ``request``.
        on_question: is called with the choices before each plan.

    Raises:
        ConfigurationError: an option that cannot vary, no values, too many combinations, or none that can be built.
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
            wanted = choices_of(named, _with(asked, options))
            root, plan = questions.plan(wanted)
        except (ConfigurationError, DeviceError, ShapeError) as error:
            points.append(_refused(options, error))
            continue
        if choices is None:
            choices, summary = wanted, summary_of(named, root)
        reserved, room = plan.reserved_bytes, budget.in_mode(device, wanted.mode)
        points.append(
            SweepPoint(
                options=options,
                reserved_bytes=reserved,
                needed_bytes=room.needed(reserved),
                lines=lines_of(plan),
                outcome=room.outcome(reserved),
            )
        )
    if choices is None or summary is None:
        raise ConfigurationError(f"sweep: none of {count:,} combinations can be built; the first: {points[0].problem}")
    return SweepReport(
        target=summary,
        choices=choices,
        varied=list(ranges),
        budget_bytes=budget.size,
        budget_source=budget.source,
        uncounted=list(budget.uncounted),
        points=points,
    )


def _refused(options: dict[str, int | str], error: Exception) -> SweepPoint:
    return SweepPoint(
        options=options, reserved_bytes=None, needed_bytes=None, lines=[], outcome=Outcome.UNKNOWN, problem=str(error)
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


def _with(request: PlanRequest, options: Mapping[str, int | str]) -> PlanRequest:
    fields: dict[str, Any] = {**request.model_dump(), **options}
    if "mode" in options:  # what is for one mode alone is asked of that mode alone
        others = {"prefill": None} if options["mode"] == Mode.TRAINING else {"accumulate": 1}
        fields |= {name: value for name, value in others.items() if name not in options}
    return PlanRequest.model_validate(fields)
