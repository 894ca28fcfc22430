"""The command line that asks for a plan again, with a change."""

from __future__ import annotations

import shlex

from mila.planning.report import PlanReport
from mila.planning.request import Mode, OptimizerKind

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def plan_command(report: PlanReport, options: str = "") -> str:
    """``mila plan TARGET …`` for a shell, with everything that was chosen; ``options`` win."""
    changed = shlex.split(options)
    asked = {name: value for name, value in _choices(report) if name not in changed}
    if "--prefill" in asked and "--context" in changed:  # a call takes no more positions than there are
        context = changed[changed.index("--context") + 1]
        asked["--prefill"] = min(asked["--prefill"], context, key=int)
    words = [word for pair in asked.items() for word in pair]
    return shlex.join(["mila", "plan", report.target.target, *words, *changed])


def _choices(report: PlanReport) -> list[tuple[str, str]]:
    """The options that say what was chosen, without those that are so anyway."""
    choices, budget = report.choices, report.verdict.budget_bytes
    options = [("--context", str(choices.context)), ("--batch", str(choices.batch)), ("--dtype", choices.dtype)]
    if choices.mode is not Mode.INFERENCE:
        options.insert(0, ("--mode", choices.mode.value))
    if choices.prefill is not None:
        options.append(("--prefill", str(choices.prefill)))
    if choices.quantize is not None:
        options.append(("--quantize", choices.quantize))
    if choices.optimizer is OptimizerKind.NONE:
        options.append(("--optimizer", choices.optimizer.value))
    if choices.accumulate not in (None, 1):
        options.append(("--accumulate", str(choices.accumulate)))
    if choices.device != "cpu":
        options.append(("--device", choices.device))
    if budget is not None:
        options.append(("--budget", _size(budget)))
    return options


def _size(size: int) -> str:
    """A size for the command line: the largest unit that divides it."""
    for unit, factor in _UNITS:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
