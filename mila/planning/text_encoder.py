"""Text encoders of CLIP as targets: planned for texts of any length, without a cache, a loss or a head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mila.core import BuildContext
from mila.core.loading import LoadPlan
from mila.devices import ExecutionContext
from mila.errors import CheckpointError, ConfigurationError
from mila.memory import MemoryPlan
from mila.memory.storage import FLOAT32, FLOAT64, DType
from mila.models import LanguageModelConfig
from mila.models.clip import ClipTextEncoder
from mila.models.clip_definition import ClipTextConfig
from mila.models.hugging_face.clip_config import ClipTextFolder, clip_text_folder
from mila.models.hugging_face.clip_names import resolve_names
from mila.models.hugging_face.folder import CONFIG_FILE
from mila.models.hugging_face.weights import require_layers
from mila.planning.stored_weights import HeaderTensors, summarize
from mila.planning.target import StoredWeights, Target

if TYPE_CHECKING:
    from mila.planning.interpreted import Reading


class TextEncoderConfig(LanguageModelConfig):
    """The sizes of a text encoder as planning asks for them; ``text`` is what it is made of."""

    tie_word_embeddings: bool = False
    text: ClipTextConfig


class PlannedTextEncoder(ClipTextEncoder):
    """A text encoder that is asked for texts of any length; a network of that length answers.

    Args:
        name: of the network.
        config: what it is.
        context: the device.
        dtype: stored dtype.
    """

    def __init__(self, name: str, config: ClipTextConfig, context: ExecutionContext, dtype: DType) -> None:
        super().__init__(name, config, device=context, dtype=dtype)
        self._planned_device, self._planned_dtype = context, dtype

    def plan(self, context: BuildContext) -> MemoryPlan:
        """What a build for texts of the length of ``context`` would take."""
        length = context.input_shape[1]
        if length == self.length:
            return super().plan(context)
        device, dtype = self._planned_device, self._planned_dtype
        return ClipTextEncoder(self.name, self.text_config, length=length, device=device, dtype=dtype).plan(context)


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
        CheckpointError: one message with everything that is wrong with the config, or with the weights.
    """
    if reading.tie_word_embeddings is not None:
        got = f"tie_word_embeddings={reading.tie_word_embeddings}"
        raise ConfigurationError(f"{file}: a text encoder has no head that could be the token table, got {got}")
    try:
        found = clip_text_folder(file.parent, dict(raw), reading.ignore_fields)
    except CheckpointError as error:  # it was read of this file, whatever its name
        raise CheckpointError(f"{file}: {str(error).removeprefix(f'{file.parent / CONFIG_FILE}: ')}") from None
    if found.dropouts:
        dropouts = ", ".join(f"{key} = {value}" for key, value in found.dropouts.items())
        notes = (f"planned without the dropout of the config ({dropouts}), which counts in training only", *notes)
    if weights is not None:
        stored = summarize(weights)
        notes = (*notes, *_compare(found, weights))
    text = found.config
    config = TextEncoderConfig(
        vocab_size=text.vocab_size,
        embedding_dim=text.embedding_dim,
        num_layers=text.num_layers,
        num_heads=text.num_heads,
        max_seq_len=text.max_seq_len,
        text=text,
    )
    return Target(
        target=reading.target,
        kind=reading.kind,
        name=reading.name,
        model_type=found.model_type,
        config=config,
        make=_make,
        stored=stored,
        notes=(*found.notes, *notes),
        ignore_fields=tuple(reading.ignore_fields),
        is_text_encoder=True,
    )


def _make(config: LanguageModelConfig, context: ExecutionContext, dtype: DType) -> ClipTextEncoder:
    if not isinstance(config, TextEncoderConfig):
        raise ConfigurationError(f"config: expected a TextEncoderConfig, got {type(config).__name__}")
    return PlannedTextEncoder("model", config.text, context, dtype)


def _compare(found: ClipTextFolder, weights: HeaderTensors) -> tuple[str, ...]:
    """Hold stored names, shapes and dtypes against those of the network, as loading does; no values are read."""
    require_layers(weights, found.config.num_layers)
    is_wide = any(entry.dtype_name == "F64" for entry in weights.tensors.values())
    network = found.network(dtype=FLOAT64 if is_wide else FLOAT32)
    names = resolve_names(network, {*weights.tensors, *weights.aliases}, found.vision_layers)
    LoadPlan(network, weights, names)
    return names.notes
