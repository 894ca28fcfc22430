"""Language models in archives: saved by themselves, and made again from an archive for inference.

An archive of any mode has a ``model`` scope with the architecture; checkpoints and archives of weights have the
parameters there too, and ``tokenizer.json`` beside it where the model has a tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mila.core import BuildContext, Component, RuntimeMode
from mila.core.state import CONFIG_FILE
from mila.devices import DeviceId, ExecutionContext
from mila.errors import CheckpointError, DTypeError
from mila.models import GptConfig, GptTransformer, LanguageModel, LlamaConfig, LlamaTransformer
from mila.serialization import ArchiveMode, ArchiveReader, ArchiveWriter, ModelArchive
from mila.training.run_folder import RunFolder
from mila.training.tokenization import Tokenizer, tokenizer_from_json

MODEL_SCOPE = "model"
TOKENIZER_FILE = "tokenizer"


def save_model(
    path: Path | str,
    network: Component[Any],
    tokenizer: Tokenizer | None = None,
    mode: ArchiveMode = ArchiveMode.WEIGHTS_ONLY,
) -> None:
    """Write a network by itself: with its weights and its tokenizer, or its architecture alone.

    Raises:
        CheckpointError: a mode that takes a training run, or the operating system refuses.
    """
    if mode is ArchiveMode.CHECKPOINT:
        raise CheckpointError(f"{path}: expected weights or an architecture; save_checkpoint writes checkpoints")
    with ModelArchive.create(path, mode) as archive:
        write_model(archive, network, tokenizer)


def write_model(archive: ArchiveWriter, network: Component[Any], tokenizer: Tokenizer | None) -> None:
    """Write what every archive holds of a model, as far as its mode goes."""
    with archive.scope(MODEL_SCOPE):
        network.save_(archive, archive.mode)
    if tokenizer is not None and archive.mode is not ArchiveMode.ARCHITECTURE:
        archive.write_json(TOKENIZER_FILE, tokenizer.model_dump(mode="json"))


def load_architecture(
    path: Path | str, *, name: str = "model", device: str | None = "cpu", seed: int | None = None
) -> LanguageModel[Any]:
    """Construct the language model of an archive of any mode, unbuilt: nothing is allocated.

    Args:
        path: the archive, or a run folder whose newest checkpoint is meant.
        name: of the network.
        device: where it will run; ``None`` for one that becomes part of another network.
        seed: of initial weights and dropout.

    Raises:
        CheckpointError: no such archive, a model that is none of Mila's language models, or a malformed config.
    """
    with open_archive(path) as archive:
        return _construct(archive, name, device, seed)


def load_model(
    path: Path | str,
    device: str | DeviceId | ExecutionContext = "cpu",
    *,
    name: str = "model",
    max_seq_len: int | None = None,
) -> LanguageModel[Any]:
    """Construct, build for inference and load the language model of a checkpoint or an archive of weights.

    Args:
        path: the archive, or a run folder whose newest checkpoint is meant.
        device: where it runs, whichever device wrote it.
        name: of the network.
        max_seq_len: positions to build for; all that the model has by default.

    Raises:
        CheckpointError: damaged, incomplete, an archive without weights, or a model that is none of Mila's.
        DeviceError: a device that is not here, or that does not compute the model's dtype.
        ShapeError: more positions than the model has.
    """
    context = device if isinstance(device, ExecutionContext) else ExecutionContext(device)
    with open_archive(path) as archive:
        if archive.mode is ArchiveMode.ARCHITECTURE:
            raise CheckpointError(f"{archive.path}: expected a checkpoint or weights, got an architecture alone")
        archive.verify()
        model = _construct(archive, name, None, None)
        model.set_execution_context(context)
        length = model.config.max_seq_len if max_seq_len is None else max_seq_len
        model.build(BuildContext((1, length), RuntimeMode.INFERENCE))
        with archive.scope(MODEL_SCOPE):
            model.load_(archive, archive.mode)
    return model


def load_tokenizer(path: Path | str) -> Tokenizer | None:
    """Read the tokenizer of an archive, ``None`` where it has none.

    Args:
        path: the archive, or a run folder whose newest checkpoint is meant.

    Raises:
        CheckpointError: no such archive, or a malformed tokenizer.
    """
    with open_archive(path) as archive:
        if not archive.has(TOKENIZER_FILE):
            return None
        text = json.dumps(archive.read_json(TOKENIZER_FILE))
    try:
        return tokenizer_from_json(text)
    except ValidationError as error:
        raise malformed(archive.path, TOKENIZER_FILE, error) from error


def open_archive(path: Path | str) -> ArchiveReader:
    """Open an archive, or the newest checkpoint of a run folder.

    Raises:
        CheckpointError: neither.
    """
    newest = RunFolder(path).newest()
    return ModelArchive.open(path if newest is None else newest)


def malformed(path: Path, file: str, error: ValidationError) -> CheckpointError:
    """The one-line error for a JSON file of an archive that does not say what it has to."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return CheckpointError(f"{path}/{file}.json: {place + ': ' if place else ''}{first['msg']}")


def _construct(archive: ArchiveReader, name: str, device: str | None, seed: int | None) -> LanguageModel[Any]:
    with archive.scope(MODEL_SCOPE):
        architecture = archive.read_json(CONFIG_FILE)
    class_name, dtype = architecture.get("class"), architecture.get("dtype")
    text = json.dumps(architecture.get("config"))
    file = f"{MODEL_SCOPE}/{CONFIG_FILE}"
    if not isinstance(dtype, str):
        raise CheckpointError(f"{archive.path}/{file}.json: expected the name of a dtype, got {dtype!r}")
    try:
        if class_name == GptTransformer.__name__:
            return GptTransformer(name, GptConfig.from_json(text), device=device, dtype=dtype, seed=seed)
        if class_name == LlamaTransformer.__name__:
            return LlamaTransformer(name, LlamaConfig.from_json(text), device=device, dtype=dtype, seed=seed)
    except ValidationError as error:
        raise malformed(archive.path, file, error) from error
    except DTypeError as error:
        raise CheckpointError(f"{archive.path}/{file}.json: {error}") from error
    raise CheckpointError(
        f"{archive.path}/{file}.json: expected GptTransformer or LlamaTransformer, got {class_name!r}"
    )
