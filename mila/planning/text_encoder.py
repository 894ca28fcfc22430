"""Text encoders of CLIP as targets: planned for texts of any length, without a cache, a loss or a head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mila.core import BuildContext
from mila.core.loading import LoadPlan
from mila.core.pieces import NameMap
from mila.devices import ExecutionContext
from mila.errors import CheckpointError, ConfigurationError
from mila.memory import MemoryPlan
from mila.memory.storage import DType
from mila.models.clip import ClipTextEncoder
from mila.models.clip_definition import ClipTextConfig
from mila.models.hugging_face.clip_config import ClipTextFolder, clip_text_folder, text_fields
from mila.models.hugging_face.clip_names import resolve_names
from mila.models.hugging_face.folder import CONFIG_FILE
from mila.models.hugging_face.weights import require_layers
from mila.planning.stored_weights import HeaderTensors, dtype_to_compare, summarize
from mila.planning.target import Reading, StandIn, StoredWeights, Target


class PlannedTextEncoder(StandIn, ClipTextEncoder):
    """A text encoder that is asked for texts of any length; a network of that length answers."""

    stands_for = ClipTextEncoder

    def plan(self, context: BuildContext) -> MemoryPlan:
        """What a build for texts of the length of ``context`` would take."""
        length = context.input_shape[1]
        if length == self.length:
            return super().plan(context)
        device = self.get_execution_context()
        other = ClipTextEncoder(self.name, self.text_config, length=length, device=device, dtype=self.dtype)
        return other.plan(context)


def _make(config: ClipTextConfig, context: ExecutionContext, dtype: DType) -> PlannedTextEncoder:
    return PlannedTextEncoder("model", config, device=context, dtype=dtype)


def text_encoder_target(
    reading: Reading,
    file: Path,
    raw: Mapping[str, Any],
    weights: HeaderTensors | None,
    stored: StoredWeights | None,
    notes: tuple[str, ...],
) -> Target:
    """The target of a config of CLIP; arguments are those of ``mila.planning.interpreted.target_of``.

    Raises:
        ConfigurationError: something is asked of its head, which it does not have.
        CheckpointError: one message with everything that is wrong with the config, or with the weights; or sizes
            beyond what the network language allows.
    """
    if reading.tie_word_embeddings is not None:
        got = f"tie_word_embeddings={reading.tie_word_embeddings}"
        raise ConfigurationError(f"{file}: a text encoder has no head that could be the token table, got {got}")
    try:
        found = clip_text_folder(file.parent, dict(raw), reading.ignore_fields)
        found.network()  # else sizes that it cannot have would be refused with every plan, of no file
    except CheckpointError as error:  # it was read of this file, whatever its name
        raise CheckpointError(f"{file}: {str(error).removeprefix(f'{file.parent / CONFIG_FILE}: ')}") from None
    notes = (*found.notes, *reading.notes_on({**raw, **text_fields(raw)}, found.dropouts), *notes)
    if weights is not None:
        stored = summarize(weights)
        notes = (*notes, *compare_text_encoder(found, weights).notes)
    return Target(
        target=reading.target,
        kind=reading.kind,
        name=reading.name,
        model_type=found.model_type,
        config=found.config,
        make=_make,
        stored=stored,
        notes=notes,
        ignore_fields=tuple(reading.ignore_fields),
        is_text_encoder=True,
    )


def compare_text_encoder(found: ClipTextFolder, weights: HeaderTensors) -> NameMap:
    """Hold stored names, shapes and dtypes against those of the network, as loading does; no values are read.

    Args:
        found: what the config says.
        weights: the headers.

    Returns:
        How the names belong to the parameters, with what a user should be told.

    Raises:
        CheckpointError: one message with every missing, unexpected, misshapen and inconvertible tensor; or sizes beyond
            what the network language allows.
    """
    require_layers(weights, found.config.num_layers)
    network = found.network(dtype=dtype_to_compare(weights))
    names = resolve_names(network, {*weights.tensors, *weights.aliases}, found.vision_layers)
    LoadPlan(network, weights, names)
    return names
