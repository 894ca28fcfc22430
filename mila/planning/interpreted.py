"""From the content of a ``config.json`` to a target."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mila.devices import ExecutionContext
from mila.errors import CheckpointError, UnknownArchitectureError
from mila.memory.storage import DType
from mila.models.hugging_face.architecture import Architecture
from mila.models.hugging_face.fields import short
from mila.models.hugging_face.folder import ARCHITECTURES, CLIP_MODEL_TYPES
from mila.models.language_model import LanguageModel, LanguageModelConfig
from mila.planning.report import TargetKind
from mila.planning.stored_weights import HeaderTensors, compare, summarize
from mila.planning.target import PlannedConfig, Reading, StoredWeights, Target
from mila.planning.text_encoder import text_encoder_target
from mila.serialization.failures import refusal

#: A plan makes every layer's components, a few kilobytes each: a file that claims any number must not fill the memory.
MOST_LAYERS = 1024
#: A plan computes the rotary frequencies of one head.
LARGEST_HEAD = 1 << 16


def target_of(
    reading: Reading,
    file: Path,
    raw: Mapping[str, Any],
    *,
    weights: HeaderTensors | None = None,
    stored: StoredWeights | None = None,
    notes: tuple[str, ...] = (),
) -> Target:
    """The target of a config.

    Args:
        reading: how it was named.
        file: what errors about the config name.
        raw: the content of the config.
        weights: headers that must fit the config.
        stored: what the files hold, where the weights are no safetensors.
        notes: what else a user should be told.

    Raises:
        CheckpointError: one message with everything that is wrong with the config, or with the weights.
        ConfigurationError: an override that the model does not have.
    """
    if raw.get("model_type") in CLIP_MODEL_TYPES:
        return text_encoder_target(reading, file, raw, weights, stored, notes)
    architecture = _architecture(file, raw)
    overrides: dict[str, Any] = {}
    if reading.tie_word_embeddings is not None:
        overrides["tie_word_embeddings"] = reading.tie_word_embeddings
    found = architecture.interpret(raw, file, overrides, reading.ignore_fields)
    require_plannable(file, found.config)
    notes = (*found.notes, *reading.notes_on(raw, found.dropouts), *notes)
    if weights is not None:
        stored = summarize(weights)
        is_decided = reading.tie_word_embeddings is not None
        notes = (*notes, *compare(weights, architecture, found.config, head_is_decided=is_decided).notes)
    return Target(
        target=reading.target,
        kind=reading.kind,
        name=reading.name,
        model_type=architecture.model_type,
        config=found.config,
        make=partial(_make, architecture.network_class),
        stored=stored,
        notes=notes,
        tie_word_embeddings=reading.tie_word_embeddings,
        ignore_fields=tuple(reading.ignore_fields),
    )


def meaning_of(file: Path, raw: Mapping[str, Any]) -> PlannedConfig:
    """What Mila makes of the content of a config by itself; arguments and errors as for :func:`target_of`."""
    return target_of(Reading(str(file), TargetKind.CONFIG, file.stem), file, raw).config


def _architecture(file: Path, raw: Mapping[str, Any]) -> Architecture:
    model_type = raw.get("model_type")
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type]
    expected = f"one of the model types {', '.join((*ARCHITECTURES, *CLIP_MODEL_TYPES))}"
    if "model_type" not in raw:  # in the words of every other field
        raise CheckpointError(f"{file}: missing model_type: expected {expected}")
    error = refusal(file, expected=expected, got=short(model_type))
    raise UnknownArchitectureError(str(error)) if isinstance(model_type, str) else error


def require_plannable(file: Path, config: LanguageModelConfig) -> None:
    """Raise :class:`CheckpointError` for sizes that would take memory before the weights are looked at."""
    if config.num_layers > MOST_LAYERS:
        got = str(config.num_layers)
        raise refusal(file, expected=f"at most {MOST_LAYERS} layers, as planning makes each of them", got=got)
    head = getattr(config, "head_dim", None) or config.embedding_dim // config.num_heads
    if head > LARGEST_HEAD:
        raise refusal(file, expected=f"heads of at most {LARGEST_HEAD} elements", got=str(head))


def _make(
    network_class: type[LanguageModel[Any]], config: LanguageModelConfig, context: ExecutionContext, dtype: DType
) -> LanguageModel[Any]:
    network = network_class("model", config, dtype=dtype)
    network.set_execution_context(context)
    return network
