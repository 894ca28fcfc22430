"""What fits: the largest context and batch, and the cheapest changes, found by asking the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from mila.models.language_model import DEFAULT_PREFILL_SIZE
from mila.planning.asking import Questions
from mila.planning.budget import Budget
from mila.planning.building import HALF_PRECISION, POLICIES
from mila.planning.report import Choices, Limit, Remedy
from mila.planning.request import Mode, OptimizerKind
from mila.planning.searching import largest_within

#: The most sequences that are looked for.
MOST_BATCH = 2**31 - 1
#: Calls of fewer positions take a prompt in about as slowly as decoding does.
_LEAST_PREFILL = 16
#: One in so many of what was asked for: less of the batch is drastic, and less of the context is no remedy.
_DRASTIC = 8
#: Contexts of fewer positions are no remedy either.
_LEAST_CONTEXT = 16
#: Options that a remedy changes at most.
MOST_CHANGES = 3
#: What may change, the least intrusive first: results stay as they are, then lose precision, then become fewer.
_CHANGES = {
    Mode.INFERENCE: ("prefill", "dtype", "quantize", "context", "batch"),
    Mode.TRAINING: ("batch", "dtype", "context", "optimizer"),
}
#: Of several changes, the one that comes first here is made first, and as far as it goes.
_ORDER = ("dtype", "quantize", "optimizer", "prefill", "batch", "context")


def limits_of(questions: Questions, choices: Choices, budget: Budget, *, chose_prefill: bool) -> list[Limit]:
    """The largest context and the largest batch that fit, everything else as asked.

    ``chose_prefill``: nobody asked for a prefill, which then grows with the context as it does by default.
    """
    fitting = _Fitting(questions, budget)
    is_free = chose_prefill and choices.prefill is not None
    longer = choices.model_copy(update={"prefill": DEFAULT_PREFILL_SIZE}) if is_free else choices
    return [fitting.limit(longer, "context"), fitting.limit(choices, "batch")]


def remedies_of(questions: Questions, choices: Choices, budget: Budget) -> list[Remedy]:
    """Changes that make it fit, the least intrusive first.

    Pairs of changes come first where no single one is enough, or only one that takes most of the batch or the optimizer
    away; where no pair is enough either, there are three changes.
    """
    fitting, changes = _Fitting(questions, budget), _CHANGES[choices.mode]
    single = fitting.all_changed(choices, changes, 1)
    if not all(_is_drastic(choices, made) for made in single.values()):
        return [fitting.remedy(choices, made, names) for names, made in single.items()]
    others = [change for change in changes if change != "optimizer" or (change,) not in single]
    several: dict[tuple[str, ...], Choices] = {}
    for count in range(2, MOST_CHANGES + 1):
        if not several and (count == 2 or not single):
            several = fitting.all_changed(choices, others, count)
    useful = {names: made for names, made in several.items() if not _is_in_vain(made, names, single)}
    return [fitting.remedy(choices, made, names) for names, made in (*useful.items(), *single.items())]


class _Fitting:
    """One target and one budget."""

    def __init__(self, questions: Questions, budget: Budget) -> None:
        self._questions = questions
        self._budget = budget
        self._room = (budget.size or 0) - budget.elsewhere_bytes
        self._most = {"context": questions.target.config.max_seq_len, "batch": MOST_BATCH}

    def limit(self, choices: Choices, option: str) -> Limit:
        """The largest context or batch that fits."""
        value = self._largest(choices, option, self._most[option])
        if value is None:
            return Limit(option=option, value=None, reserved_bytes=None, is_models_limit=False)
        return Limit(
            option=option,
            value=value,
            reserved_bytes=self._questions.reserved_bytes(_with(choices, option, value)),
            is_models_limit=option == "context" and value == self._most[option],
            is_open=option == "batch" and value == MOST_BATCH,  # the search for it ended before it was found
        )

    def all_changed(self, choices: Choices, changes: Sequence[str], count: int) -> dict[tuple[str, ...], Choices]:
        """What fits with so many of these changes, by their names: those whose last one intrudes least first."""
        indices = sorted(combinations(range(len(changes)), count), key=lambda chosen: chosen[::-1])
        names = [tuple(changes[i] for i in chosen) for chosen in indices]
        return {each: made for each in names if (made := self.least_changed(choices, *each)) is not None}

    def least_changed(self, choices: Choices, *changes: str) -> Choices | None:
        """What fits if these options may change; ``None`` where nothing does."""
        for made in self._changed(choices, sorted(changes, key=_ORDER.index)):
            if made is None or ("prefill" in changes and made.prefill == made.context):
                continue  # the context alone has done that
            if self._fits(made):
                return made
        return None

    def remedy(self, choices: Choices, made: Choices, changes: tuple[str, ...]) -> Remedy:
        """Changes that fit, in words and numbers."""
        reserved = self._questions.reserved_bytes(made) or 0
        return Remedy(
            change="+".join(changes),
            options=" ".join(_option(choices, made, change) for change in changes),
            reserved_bytes=reserved,
            left_bytes=self._budget.left(reserved) or 0,
            label=" and ".join(_label(choices, made, change) for change in changes),
        )

    def _changed(self, choices: Choices, changes: list[str]) -> Iterator[Choices | None]:
        """Choices with every change made: the last one as little as possible."""
        first, *rest = changes
        if not rest:
            yield from self._least_changed(choices, first)
            return
        for changed in _most_changed(self._questions, choices, first):
            yield from self._changed(changed, rest)

    def _least_changed(self, choices: Choices, change: str) -> Iterator[Choices | None]:
        """What to try, the smallest change first."""
        if change == "prefill":
            yield self._less_prefill(choices)
        elif change == "batch":
            yield self._less_batch(choices)
        elif change == "context":
            yield self._less_context(choices)
        else:
            yield from _most_changed(self._questions, choices, change)

    def _less(self, choices: Choices, option: str) -> Choices | None:
        asked: int = getattr(choices, option)
        value = self._largest(choices, option, asked)
        return None if value is None or value == asked else _with(choices, option, value)

    def _less_context(self, choices: Choices) -> Choices | None:
        """Never so few positions that it is another task."""
        least = max(_LEAST_CONTEXT, -(-choices.context // _DRASTIC))
        if choices.context <= least or not self._fits(_with(choices, "context", least)):
            return None
        return self._less(choices, "context")

    def _less_prefill(self, choices: Choices) -> Choices | None:
        """The largest power of two."""
        asked = choices.prefill or 1
        if asked <= _LEAST_PREFILL or not self._fits(_with(choices, "prefill", _LEAST_PREFILL)):
            return None
        value = self._largest(choices, "prefill", asked)
        if value is None or value == asked:
            return None
        return _with(choices, "prefill", 1 << (value.bit_length() - 1))

    def _less_batch(self, choices: Choices) -> Choices | None:
        """In training parts of the batch, so that updates stay the same."""
        less = self._less(choices, "batch")
        if less is None or choices.accumulate is None:
            return less
        part = next(size for size in range(less.batch, 0, -1) if choices.batch % size == 0)
        return less.model_copy(
            update={"batch": part, "accumulate": choices.accumulate * (choices.batch // part)},
        )

    def _largest(self, choices: Choices, option: str, most: int) -> int | None:
        if self._questions.least_bytes(choices) > self._room:
            return None  # no context, batch or prefill changes that
        return largest_within(
            lambda value: self._questions.reserved_bytes(_with(choices, option, value)),
            self._room,
            getattr(choices, option),
            most,
        )

    def _fits(self, choices: Choices) -> bool:
        if self._questions.least_bytes(choices) > self._room:
            return False
        reserved = self._questions.reserved_bytes(choices)
        return reserved is not None and reserved <= self._room


def _most_changed(questions: Questions, choices: Choices, change: str) -> Iterator[Choices]:
    """Choices with one option changed as far as it goes; several where there are several ways."""
    if change == "dtype":
        if choices.dtype == "float64":
            yield _with(choices, "dtype", "float32")
        if choices.dtype not in HALF_PRECISION:
            yield _with(choices, "dtype", _half_precision(questions, choices))
    elif change == "quantize":
        yield from (_with(choices, "quantize", policy) for policy in POLICIES if choices.quantize is None)
    elif change == "optimizer" and choices.optimizer is OptimizerKind.ADAMW:
        yield choices.model_copy(update={"optimizer": OptimizerKind.NONE})
    elif change == "prefill" and (choices.prefill or 0) > _LEAST_PREFILL:
        yield _with(choices, "prefill", _LEAST_PREFILL)
    elif change == "batch" and choices.batch > 1:
        parts = None if choices.accumulate is None else choices.accumulate * choices.batch
        yield choices.model_copy(update={"batch": 1, "accumulate": parts})


def _half_precision(questions: Questions, choices: Choices) -> str:
    """That of the files in inference; else bfloat16, which has the range of float32."""
    stored = questions.target.stored
    is_float16 = stored is not None and next(iter(stored.dtypes), None) == "float16"
    return "float16" if is_float16 and choices.mode is Mode.INFERENCE else "bfloat16"


def _is_drastic(asked: Choices, made: Choices) -> bool:
    """Whether less than an eighth of the batch is left, or no optimizer."""
    is_less = made.batch * (made.accumulate or 1) * _DRASTIC < asked.batch * (asked.accumulate or 1)
    return is_less or made.optimizer is not asked.optimizer


def _is_in_vain(made: Choices, names: Sequence[str], single: Mapping[tuple[str, ...], Choices]) -> bool:
    """Whether one of these changes would do, as it is."""
    return any(getattr(made, name) == getattr(single[(name,)], name) for name in names if (name,) in single)


def _with(choices: Choices, option: str, value: int | str) -> Choices:
    """Choices with one changed; a call never takes more positions than there are."""
    changed = choices.model_copy(update={option: value})
    if changed.prefill is not None and changed.prefill > changed.context:
        return changed.model_copy(update={"prefill": changed.context})
    return changed


def _option(asked: Choices, changed: Choices, change: str) -> str:
    """As on the command line."""
    option = f"--{change} {getattr(changed, change)}"
    if change == "context" and changed.prefill == changed.context != asked.prefill is not None:
        return f"{option} --prefill {changed.prefill}"  # a call has no more positions than there are
    return f"{option} --accumulate {changed.accumulate}" if _has_parts(asked, changed, change) else option


def _label(asked: Choices, changed: Choices, change: str) -> str:
    """For people."""
    value = getattr(changed, change)
    labels = {
        "prefill": f"prompts in calls of {value} positions",
        "dtype": f"stored in {value}",
        "quantize": f"quantized: {value}",
        "context": f"a context of {value:,}" if change == "context" else "",
        "batch": f"a batch of {value:,}" if change == "batch" else "",
        "optimizer": "without an optimizer",
    }
    parts = f", {changed.accumulate} accumulated" if _has_parts(asked, changed, change) else ""
    return labels[change] + parts


def _has_parts(asked: Choices, changed: Choices, change: str) -> bool:
    return change == "batch" and changed.accumulate != asked.accumulate
