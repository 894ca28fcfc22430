"""What can be planned: a model's config, and what its files say about its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mila.core import Component, Network
from mila.devices import ExecutionContext
from mila.memory.storage import DType
from mila.models import LanguageModelConfig
from mila.models.clip_definition import ClipTextConfig
from mila.planning.report import TargetKind
from mila.serialization.failures import shown

#: What can be planned; all that is asked of any of them is its number of layers, and the most positions.
PlannedConfig = LanguageModelConfig | ClipTextConfig


class StandIn:
    """A root that is made for planning alone.

    Attributes:
        stands_for: the class of what a build makes, which is the one that people are told.
    """

    stands_for: ClassVar[type[Component[Any]]]


@dataclass(frozen=True)
class Reading:
    """How a target was named, and what its reader decided.

    Attributes:
        target: as it was named.
        kind: what that is.
        name: a short name for headings.
        tie_word_embeddings: overrides what the config says.
        ignore_fields: unknown fields of the config that do not change the result.
    """

    target: str
    kind: TargetKind
    name: str
    tie_word_embeddings: bool | None = None
    ignore_fields: Collection[str] = ()

    def notes_on(self, fields: Collection[str], dropouts: Mapping[str, float]) -> tuple[str, ...]:
        """What is left out of a config that has these fields, and what was to be left out and is not there."""
        notes = [
            f"the config has no field {shown(name)} to ignore" for name in self.ignore_fields if name not in fields
        ]
        if dropouts:
            said = ", ".join(f"{key} = {value}" for key, value in dropouts.items())
            notes.insert(0, f"planned without the dropout of the config ({said}), which counts in training only")
        return tuple(notes)


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
        tie_word_embeddings: what the reader was asked to make of the head, whatever the config says.
        ignore_fields: unknown fields of the config that the reader was asked to ignore.
        is_text_encoder: it reads whole texts, and has no cache, no head and no loss.
    """

    target: str
    kind: TargetKind
    name: str
    model_type: str
    config: PlannedConfig
    make: Callable[[Any, ExecutionContext, DType], Network[Any]]
    stored: StoredWeights | None = None
    notes: tuple[str, ...] = field(default=())
    tie_word_embeddings: bool | None = None
    ignore_fields: tuple[str, ...] = ()
    is_text_encoder: bool = False
