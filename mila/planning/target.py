"""What can be planned: a model's config, and what its files say about its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mila.devices import ExecutionContext
from mila.memory.storage import DType
from mila.models import LanguageModel, LanguageModelConfig
from mila.planning.report import TargetKind


@dataclass(frozen=True)
class StoredWeights:
    """The weights in the files of a target, as their headers say.

    Attributes:
        nbytes: of all tensors.
        dtypes: bytes by dtype name (``bfloat16``, ``q4_k``, …), most first.
        elements: how many numbers they hold, where the format says.
    """

    nbytes: int
    dtypes: Mapping[str, int]
    elements: int | None = None


@dataclass(frozen=True)
class Target:
    """A model that can be constructed without its weights.

    Attributes:
        target: as it was named.
        kind: what that is.
        name: a short name for headings.
        model_type: the architecture, as ``config.json`` calls it.
        config: of the network.
        make: constructs the unbuilt network: ``make(config, context, dtype)``.
        stored: of the files, where there are any.
        notes: what a user should be told.
    """

    target: str
    kind: TargetKind
    name: str
    model_type: str
    config: LanguageModelConfig
    make: Callable[[LanguageModelConfig, ExecutionContext, DType], LanguageModel[Any]]
    stored: StoredWeights | None = None
    notes: tuple[str, ...] = field(default=())
