"""A model folder: what its ``config.json`` says, without its weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mila.devices import DeviceId, ExecutionContext
from mila.errors import CheckpointError, ConfigurationError
from mila.memory.storage import DType
from mila.models.arguments import check_names, check_probability, check_truth
from mila.models.hugging_face.architecture import Architecture, Interpretation
from mila.models.hugging_face.gpt2 import GPT2
from mila.models.hugging_face.llama_family import LLAMA, MISTRAL, QWEN2, QWEN3
from mila.models.language_model import LanguageModel, LanguageModelConfig
from mila.serialization import holds_checkpoints, read_json_object, recover_folder
from mila.serialization.failures import refusal, refusals
from mila.serialization.foreign_content import CONVERT_GGUF
from mila.serialization.paths import checked_path

#: By ``model_type``; exports of networks made from scratch use the first that has words for their config.
ARCHITECTURES: dict[str, Architecture] = {each.model_type: each for each in (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3)}
#: Model types of a text encoder, see :func:`mila.models.hugging_face.clip_config.read_clip_text_folder`.
CLIP_MODEL_TYPES = ("clip_text_model", "clip")
CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class ModelFolder:
    """What a model folder says about itself.

    Attributes:
        path: the folder.
        model_type: the architecture's name.
        config: of the network.
        raw: the content of ``config.json``.
        dropouts: the file's dropout probabilities that are not zero; the network has the ``dropout`` that was asked
            for, which is 0 by default.
        notes: what a user should be told.
    """

    path: Path
    model_type: str
    config: LanguageModelConfig
    raw: Mapping[str, Any]
    dropouts: Mapping[str, float]
    notes: tuple[str, ...]

    @property
    def architecture(self) -> Architecture:
        """How the folder's fields and tensors are called."""
        return ARCHITECTURES[self.model_type]

    def network(
        self,
        name: str = "model",
        *,
        device: str | DeviceId | ExecutionContext | None = None,
        dtype: DType | type[Any] | str | None = None,
        seed: int | None = None,
    ) -> LanguageModel[Any]:
        """The network of the config, unbuilt: nothing is allocated, so that it can be planned.

        ``device`` may be an execution context, which also says with how many threads the network runs.
        """
        if not isinstance(device, ExecutionContext):
            return self.architecture.network_class(name, self.config, device=device, dtype=dtype, seed=seed)
        network = self.architecture.network_class(name, self.config, dtype=dtype, seed=seed)
        network.set_execution_context(device)
        return network


def read_model_folder(
    folder: Path | str,
    *,
    tie_word_embeddings: bool | None = None,
    dropout: float | None = None,
    ignore_fields: Collection[str] = (),
) -> ModelFolder:
    """Read ``config.json``; no weights.

    Args:
        folder: as the Hugging Face libraries write them.
        tie_word_embeddings: overrides what the config says.
        dropout: of the network; 0 by default, whatever the config says.
        ignore_fields: unknown fields of the config that do not change the result.

    Raises:
        ConfigurationError: an argument that is none, or an override that the architecture does not have.
        CheckpointError: no such folder, an architecture that Mila does not have, or one message with every field that
            is missing, wrong, unknown, or without a kernel.
    """
    check_truth("tie_word_embeddings", tie_word_embeddings)
    check_probability("dropout", dropout)
    check_names("ignore_fields", ignore_fields)
    path, raw = read_raw_config(folder)
    return model_folder(path, raw, tie_word_embeddings, dropout, ignore_fields)


def model_folder(
    path: Path,
    raw: Mapping[str, Any],
    tie_word_embeddings: bool | None,
    dropout: float | None,
    ignore_fields: Collection[str],
) -> ModelFolder:
    """What the content ``raw`` of a ``config.json`` says; arguments and errors as for :func:`read_model_folder`."""
    file = path / CONFIG_FILE
    architecture = ARCHITECTURES.get(model_type := str(raw.get("model_type")))
    if architecture is None:
        expected = f"one of the model types {', '.join(ARCHITECTURES)}"
        if "model_type" not in raw:
            raise CheckpointError(f"{file}: missing model_type: expected {expected}")
        hint = ""
        if model_type in CLIP_MODEL_TYPES:
            hint = "; a text encoder is for read_clip_text_folder, from_pretrained and `mila embed`"
        got = f"{raw.get('model_type')!r}{hint}"
        raise CheckpointError(f"{file}: expected {expected}, got {got}")
    read = _interpret(architecture, raw, file, tie_word_embeddings, dropout, ignore_fields)
    return ModelFolder(path, model_type, read.config, raw, read.dropouts, read.notes)


def read_raw_config(folder: Path | str) -> tuple[Path, dict[str, Any]]:
    """The path of a model folder and the content of its ``config.json``.

    Raises:
        ConfigurationError: ``folder`` is no path.
        CheckpointError: no such folder, or no JSON object in the file.
    """
    path = checked_path(folder, "folder")
    recover_folder(path)
    _require_config(path)
    return path, read_json_object(path / CONFIG_FILE, what="model config")


def _require_config(path: Path) -> None:
    """Raise where there is no model folder, and say what there is instead."""
    with refusals(path, "could not be read"):
        if (path / CONFIG_FILE).exists():
            return
        is_folder = path.is_dir()
        names = [each.name for each in path.iterdir()] if is_folder else [path.name]
    hint = None
    if holds_checkpoints(path):
        hint = "what `mila train` wrote is for `mila sample`"
    elif any(name.endswith(".gguf") for name in names):
        hint = CONVERT_GGUF
    got = "a folder without" if is_folder else "a file"
    if not path.exists():
        got, hint = "nothing", "Mila downloads nothing"
    raise refusal(path, expected=f"a model folder with {CONFIG_FILE}", got=got, hint=hint)


def _interpret(
    architecture: Architecture,
    raw: Mapping[str, Any],
    file: Path,
    tie_word_embeddings: bool | None,
    dropout: float | None,
    ignored: Collection[str],
) -> Interpretation:
    overrides: dict[str, Any] = {}
    if tie_word_embeddings is not None:
        overrides["tie_word_embeddings"] = tie_word_embeddings
    if dropout and not architecture.dropout_fields:
        raise ConfigurationError(f"{file}: a {architecture.model_type} has no dropout here, got dropout={dropout}")
    if dropout is not None and architecture.dropout_fields:
        overrides["dropout"] = float(dropout)
    return architecture.interpret(raw, file, overrides, ignored)
