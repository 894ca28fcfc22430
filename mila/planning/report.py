"""What a plan says: the published form of ``mila plan --json``, and what tables, pages and pictures are made of."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from mila.planning.request import Mode, OptimizerKind


class Document(BaseModel):
    """A part of a report: fixed fields, unchangeable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TargetKind(StrEnum):
    """What was named on the command line."""

    FOLDER = "folder"
    CONFIG = "config"
    SAFETENSORS = "safetensors"
    INDEX = "index"
    GGUF = "gguf"
    PRESET = "preset"
    HUB = "hub"


class TargetSummary(Document):
    """The model that was planned.

    Attributes:
        target: as it was named.
        kind: what that is.
        name: a short name for headings.
        model_type: the architecture, as ``config.json`` calls it.
        parameters: how many it has, tied ones once.
        layers: its blocks.
        max_context: the most positions that it allows.
        stored_bytes: of the weights in the files, where they were seen.
        stored_dtypes: of those weights, by the number of their bytes, most first.
        notes: what a user should be told about the target.
        tie_word_embeddings: what was asked for, whatever the config says; ``None`` where that was left to it.
        ignore_fields: of the config, as asked.
    """

    target: str
    kind: TargetKind
    name: str
    model_type: str
    parameters: int
    layers: int
    max_context: int
    stored_bytes: int | None
    stored_dtypes: dict[str, int]
    notes: list[str]
    tie_word_embeddings: bool | None = None
    ignore_fields: list[str] = Field(default_factory=list)


class Choices(Document):
    """The request with every choice made; ``prefill`` is the positions of one call, and absent in training."""

    mode: Mode
    context: int
    batch: int
    prefill: int | None
    dtype: str
    quantize: str | None
    optimizer: OptimizerKind | None
    accumulate: int | None
    device: str


#: The mode of choices that are for one mode alone.
MODE_OF_CHOICE = {"prefill": Mode.INFERENCE, "optimizer": Mode.TRAINING, "accumulate": Mode.TRAINING}


class Line(Document):
    """Bytes with a name.

    Attributes:
        key: for programs: ``parameters``, ``gradients``, ``moments``, ``cache``, ``tables``, ``persistent``,
            ``transient`` or ``alignment`` in the exact part.
        label: for people.
        bytes: exact, or measured elsewhere.
        detail: what it consists of, in a few words.
    """

    key: str
    label: str
    bytes: int
    detail: str = ""


class FullestStep(Document):
    """The step at which most of the transient region is alive.

    Attributes:
        step: a component and a direction.
        lines: ``activations``, ``activation_gradients`` and ``workspace``.
        bytes: their sum: no placement can do with less.
        region_bytes: the size of the region.
        unshared_bytes: what the transient buffers would take if none shared bytes.
    """

    step: str
    lines: list[Line]
    bytes: int
    region_bytes: int
    unshared_bytes: int


class Elsewhere(Document):
    """Memory that Mila does not allocate: a measured or documented constant, never part of the exact bytes.

    ``bytes`` is ``None`` where nobody measured it; ``source`` says where the number is from. ``is_counted``: it comes
    out of the budget; of a CUDA device, memory of the host does not.
    """

    key: str
    label: str
    bytes: int | None
    source: str
    is_counted: bool = True


class Outcome(StrEnum):
    """What the verdict is."""

    FITS = "fits"
    DOES_NOT_FIT = "does_not_fit"
    UNKNOWN = "unknown"


class Verdict(Document):
    """Whether there is room: for the exact bytes and for what is known of elsewhere, together.

    Attributes:
        outcome: fits, does not fit, or unknown where no budget is known.
        needed_bytes: ``reserved_bytes`` and the known lines of elsewhere.
        budget_bytes: what there is.
        budget_source: where that number is from.
        left_bytes: what is left of it; negative where it does not fit.
        uncounted: labels of the lines of elsewhere that come out of the budget as well, whose bytes nobody measured:
            what fits does so without them.
    """

    outcome: Outcome
    needed_bytes: int
    budget_bytes: int | None
    budget_source: str
    left_bytes: int | None
    uncounted: list[str]


class Remedy(Document):
    """One change that would make it fit, found by planning the graph again.

    Attributes:
        change: the option that changes: ``context``, ``batch``, ``prefill``, ``dtype``, ``quantize``, ``optimizer``
            or several, joined by ``+``.
        options: those of the command line, such as ``--context 16384``.
        reserved_bytes: with them.
        left_bytes: what is then left of the budget.
        label: for people.
    """

    change: str
    options: str
    reserved_bytes: int
    left_bytes: int
    label: str


class Limit(Document):
    """The largest value of one option that fits, everything else as asked; ``value`` is ``None`` where none does.

    ``is_models_limit``: the model allows no more. ``is_open``: no more was looked for, and more may well fit.
    """

    option: str
    value: int | None
    reserved_bytes: int | None
    is_models_limit: bool
    is_open: bool = False


class TreeRow(Document):
    """One component: the bytes of everything below it, counted where it is declared.

    Attributes:
        path: with dots; the root has depth 0.
        depth: how deep.
        component: the class.
        parameter_bytes: of parameters.
        gradient_bytes: of their gradients.
        state_bytes: persistent: moments, caches, tables.
        transient_bytes: declared in the shared region; siblings share these, so they do not add up.
        fullest_bytes: alive at the fullest step.
    """

    path: str
    depth: int
    component: str
    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    transient_bytes: int
    fullest_bytes: int


class PlanReport(Document):
    """Everything that a plan says. ``lines`` sum to ``reserved_bytes``."""

    event: Literal["plan"] = "plan"
    version: Literal[1] = 1
    target: TargetSummary
    choices: Choices
    reserved_bytes: int
    lines: list[Line]
    parameter_bytes: int
    state_bytes: int
    gradient_bytes: int
    fullest_step: FullestStep
    elsewhere: list[Elsewhere]
    assumptions: list[str]
    verdict: Verdict
    limits: list[Limit]
    remedies: list[Remedy]
    tree: list[TreeRow]


class SweepPoint(Document):
    """One plan of a sweep.

    Attributes:
        options: those that vary, by name.
        reserved_bytes: ``None`` where there is no plan.
        needed_bytes: these and the known lines of elsewhere: what is compared with the budget.
        lines: of the plan.
        outcome: sizes that no memory addresses do not fit, whatever the budget.
        problem: why there is no plan.
        choices: all of them, where there is a plan.
    """

    options: dict[str, int | str]
    reserved_bytes: int | None
    needed_bytes: int | None
    lines: list[Line]
    outcome: Outcome
    problem: str | None = None
    choices: Choices | None = None


class SweepReport(Document):
    """Plans over ranges of options.

    ``choices`` are those of the first plan; ``budget_source`` and ``uncounted`` are as in `Verdict`.
    """

    event: Literal["sweep"] = "sweep"
    version: Literal[1] = 1
    target: TargetSummary
    choices: Choices
    varied: list[str]
    budget_bytes: int | None
    budget_source: str
    uncounted: list[str]
    points: list[SweepPoint]

    @property
    def first(self) -> SweepPoint:
        """The first point that has a plan."""
        return next(point for point in self.points if point.problem is None)

    @property
    def choices_of_modes(self) -> Choices:
        """``choices``; where the mode varies, with those that are for one mode alone of each mode."""
        if "mode" not in self.varied:
            return self.choices
        every = (self.choices, *(point.choices for point in self.points if point.choices is not None))
        own = {
            name: next((value for each in every if (value := getattr(each, name)) is not None), None)
            for name in MODE_OF_CHOICE
        }
        return self.choices.model_copy(update=own)


class Failure(Document):
    """Why there is no plan; the exit code says of which kind: 1 refused, 2 cannot tell."""

    event: Literal["error"] = "error"
    version: Literal[1] = 1
    target: str
    message: str
    exit_code: int
