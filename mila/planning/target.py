"""What can be planned: a model's config, and what its files say about its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mila.core import Network
from mila.devices import ExecutionContext
from mila.memory.storage import DType
from mila.models import LanguageModelConfig
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
        tie_word_embeddings: what the reader was asked to make of the head, whatever the config says.
        ignore_fields: unknown fields of the config that the reader was asked to ignore.
        is_text_encoder: it reads whole texts, and has no cache, no head and no loss.
    """

    target: str
    kind: TargetKind
    name: str
    model_type: str
    config: LanguageModelConfig
    make: Callable[[LanguageModelConfig, ExecutionContext, DType], Network[Any]]
    stored: StoredWeights | None = None
    notes: tuple[str, ...] = field(default=())
    tie_word_embeddings: bool | None = None
    ignore_fields: tuple[str, ...] = ()
    is_text_encoder: bool = False
