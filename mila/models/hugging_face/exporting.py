"""Networks written as model folders that ``transformers`` opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mila.core.pieces import PieceMap
from mila.core.state import TensorSavePass, save_flat_tensors
from mila.errors import ConfigurationError, LifecycleError
from mila.memory.storage import DType, network_dtype
from mila.models.clip import ClipTextEncoder
from mila.models.hugging_face.architecture import Architecture, InexpressibleError
from mila.models.hugging_face.clip_config import clip_fields
from mila.models.hugging_face.clip_names import canonical_names
from mila.models.hugging_face.folder import ARCHITECTURES, CONFIG_FILE
from mila.models.hugging_face.harmless_fields import KEPT_FIELDS
from mila.models.language_model import LanguageModel
from mila.serialization import ExportFolder, parse_size
from mila.serialization.paths import checked_path

#: What an export copies from the folder that the network came from.
COPIED_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


def export_pretrained(
    network: LanguageModel[Any] | ClipTextEncoder,
    folder: Path | str,
    *,
    max_shard_size: str | int = "5GB",
    dtype: DType | type[Any] | str | None = None,
) -> None:
    """Write a model folder: ``config.json``, the weights, and the tokenizer's files where the network came with them.

    The folder appears whole or not at all. The architecture is that of the folder that the network came from, else the
    first that has words for its config. A text encoder becomes a ``CLIPTextModelWithProjection``, or a
    ``CLIPTextModel`` where it has no projection.

    Args:
        network: built, with all its parameters; as a root, or in a training step.
        folder: a free name, or an earlier export, which is replaced.
        max_shard_size: the most bytes of weights in one file, as a number or a text such as ``"5GB"``.
        dtype: of the weights in the files; the network's by default.

    Raises:
        LifecycleError: not built, or parameters are missing.
        ConfigurationError: an argument that is none, or no architecture has words for the network's config.
        CheckpointError: values that ``dtype`` cannot hold, or the operating system refuses; nothing was written.
    """
    if not isinstance(network, LanguageModel | ClipTextEncoder):
        raise ConfigurationError(f"network: expected a language model or a text encoder, got {network!r}")
    path = checked_path(folder, "folder")
    shard_bytes = parse_size(max_shard_size, "max_shard_size")
    network.require_built("save_pretrained")
    if network.root._missing:
        names = ", ".join(network.root._missing)
        raise LifecycleError(
            f"{network.path}: save_pretrained needs all parameters, and these were not loaded: {names}"
        )
    fields, pieces = _text_encoder(network) if isinstance(network, ClipTextEncoder) else _language_model(network)
    stored = network.dtype if dtype is None else network_dtype(dtype)
    came_from = network.pretrained
    copied = [] if came_from is None else [came_from.folder / file for file in COPIED_FILES]
    with ExportFolder(path) as target:
        target.write_json(CONFIG_FILE, fields | {"torch_dtype": stored.name})
        for file in copied:
            if file.is_file():
                target.copy_file(file)
        with target.tensors(shard_bytes) as writer:
            writer.set_metadata("format", "pt")
            save_flat_tensors(network, writer, "", TensorSavePass.DECLARE, pieces=pieces, dtype=stored)
            writer.begin()
            save_flat_tensors(network, writer, "", TensorSavePass.WRITE, pieces=pieces)


def _language_model(network: LanguageModel[Any]) -> tuple[dict[str, Any], PieceMap]:
    """The fields of the config, and the names of the tensors."""
    architecture, fields = _express(network)
    raw = {} if network.pretrained is None else network.pretrained.raw
    # Defaults of transformers would be ids and dropout that nobody asked for.
    kept = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")) | dict.fromkeys(architecture.dropouts, 0.0)
    kept |= {key: raw[key] for key in (KEPT_FIELDS | set(architecture.dropouts)) & raw.keys()}
    if dropout := getattr(network.config, "dropout", 0.0):
        kept |= dict.fromkeys(architecture.dropout_fields, dropout)
    return kept | fields, architecture.names.canonical(network)


def _text_encoder(network: ClipTextEncoder) -> tuple[dict[str, Any], PieceMap]:
    """The fields of the config, and the names of the tensors."""
    raw = {} if network.pretrained is None else network.pretrained.raw
    return clip_fields(network.text_config, raw), canonical_names(network)


def _express(network: LanguageModel[Any]) -> tuple[Architecture, dict[str, Any]]:
    """The architecture that an export has, and the fields that say the network's config."""
    came_from = network.pretrained
    first = [] if came_from is None else [ARCHITECTURES[came_from.model_type]]
    reasons = []
    for architecture in [*first, *ARCHITECTURES.values()]:
        try:
            return architecture, architecture.express(network.config)
        except InexpressibleError as error:
            reasons.append(f"{architecture.model_type} has no {error}")
    raise ConfigurationError(
        f"{network.path}: no architecture of transformers has words for its config: {', '.join(reasons)}"
    )
