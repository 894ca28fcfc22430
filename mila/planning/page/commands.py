"""The command line that asks for a plan again, with a change."""

from __future__ import annotations

import shlex

from mila.models.language_model import default_prefill_size
from mila.planning.report import PlanReport, TargetSummary
from mila.planning.request import Mode, OptimizerKind

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def plan_words(report: PlanReport, options: str = "") -> list[str]:
    """``mila plan TARGET …`` word by word, with everything that was chosen; ``options`` win."""
    changed = shlex.split(options)
    asked = {name: value for name, value in _choices(report) if name not in changed}
    if "--prefill" in asked and "--context" in changed:  # a call takes no more positions than there are
        context = changed[changed.index("--context") + 1]
        asked["--prefill"] = min(asked["--prefill"], context, key=int)
    words = [word for pair in asked.items() for word in pair] + changed + _overrides(report.target)
    target = report.target.target
    if target.startswith("-"):  # else it would be an option
        return ["mila", "plan", *words, "--", target]
    return ["mila", "plan", target, *words]


def shell_word(word: str) -> str:
    """A word as a shell reads it; what nobody sees is written as escapes, which bash, zsh and ksh have."""
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(character: str) -> str:
    if character.isprintable() and character not in "'\\":
        return character
    try:
        code = character.encode("utf-8", "surrogateescape")  # a byte of a file's name that is no text
    except UnicodeEncodeError:
        code = character.encode("utf-8", "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in code)


def _choices(report: PlanReport) -> list[tuple[str, str]]:
    """The options that say what was chosen, without those that are so anyway."""
    choices, budget = report.choices, report.verdict.budget_bytes
    options = [("--context", str(choices.context)), ("--batch", str(choices.batch)), ("--dtype", choices.dtype)]
    if choices.mode is not Mode.INFERENCE:
        options.insert(0, ("--mode", choices.mode.value))
    if choices.prefill not in (None, default_prefill_size(choices.context)):
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


def _overrides(target: TargetSummary) -> list[str]:
    """What was said about the config when the target was read."""
    tied = {None: [], True: ["--tie-word-embeddings"], False: ["--no-tie-word-embeddings"]}
    return [*tied[target.tie_word_embeddings], *(f"--ignore-field={name}" for name in target.ignore_fields)]


def _size(size: int) -> str:
    """A size for the command line: the largest unit that divides it."""
    for unit, factor in _UNITS:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
