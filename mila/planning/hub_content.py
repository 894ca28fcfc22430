"""What the files of a model on the Hugging Face hub hold, by their headers: no value is fetched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mila.core.loading import Progress
from mila.errors import ConfigurationError
from mila.models.hugging_face.folder import CONFIG_FILE
from mila.planning.hub import BOTH, OFFLINE, got_instead, hub_package, hub_path
from mila.planning.hub_files import HubModel, HubWeights, cached_file, parse_name
from mila.planning.inspection_report import ContentKind
from mila.planning.opening import open_content
from mila.planning.stored_content import StoredContent, stored_tensor
from mila.planning.target_files import INDEX_ENDING, without_weights
from mila.serialization.failures import shown
from mila.serialization.sharded import SINGLE_FILE_NAME


def open_hub(target: str, on_header: Progress | None = None) -> StoredContent:
    """Read ``config.json`` and the headers of the weights, or one file's.

    Args:
        target: ``hf://owner/name[@revision][/file]``.
        on_header: called with the headers that were read, and with those to read.

    Raises:
        ConfigurationError: a name that is none, nothing that can be read, the package ``huggingface_hub`` is missing,
            or the hub cannot be asked, does not answer or denies access.
        CheckpointError: what it answers is malformed.
    """
    name = parse_name(target, with_file=True)
    package = hub_package(target, name.repository)
    cached = cached_file(package, name, name.file or CONFIG_FILE)
    if cached is not None:
        content = open_content(cached if name.file else cached.parent)
        return replace(content, target=target, notes=(*content.notes, OFFLINE))
    model = HubModel(package, name)
    if name.file is None:
        return _whole(target, model, on_header)
    return _file(target, model, name.file, on_header)


def _whole(target: str, model: HubModel, on_header: Progress | None) -> StoredContent:
    file = model.weights_file()
    notes: tuple[str, ...] = ()
    has_config = CONFIG_FILE in model.names
    config = model.read_config() if has_config else None
    if file is None and SINGLE_FILE_NAME in model.names:
        notes = (f"{BOTH}; name one of them",)
    elif file is None and not has_config:
        got = got_instead(model.names)
        raise ConfigurationError(f"{model.place}: expected {CONFIG_FILE} or safetensors, got {got}")
    elif file is None:
        notes = (without_weights(model.names),)
    content = StoredContent(
        target,
        ContentKind.HUB,
        hub_path(model.place),
        config=config,
        config_file=_path_of(model, CONFIG_FILE) if has_config else None,
        notes=notes,
        is_on_hub=True,
    )
    return content if file is None else _with(content, model.read_weights(file, on_header))


def _file(target: str, model: HubModel, file: str, on_header: Progress | None) -> StoredContent:
    place = model.repository.place_of(file)
    if file not in model.names:
        readable = [each for each in model.names if each.endswith((".safetensors", ".json"))]
        raise ConfigurationError(
            f"{place}: expected a file of the model, got none of that name; there are {shown(readable)}"
        )
    if file.endswith(".gguf"):
        raise ConfigurationError(
            f"{place}: expected a safetensors file, an index or a config, got a GGUF file; download it"
        )
    path = _path_of(model, file)
    if file.endswith((INDEX_ENDING, ".safetensors")):
        kind = ContentKind.INDEX if file.endswith(INDEX_ENDING) else ContentKind.SAFETENSORS
        return _with(StoredContent(target, kind, path, is_on_hub=True), model.read_weights(file, on_header))
    config = model.read_config(file)
    return StoredContent(target, ContentKind.CONFIG, path, config=config, config_file=path, is_on_hub=True)


def _with(content: StoredContent, weights: HubWeights) -> StoredContent:
    """The same content, with what the headers say."""
    tensors = {
        name: stored_tensor(entry, weights.file_of[name], weights.data_starts[weights.file_of[name]])
        for name, entry in weights.tensors.items()
    }
    return replace(content, tensors=tensors, aliases=weights.aliases, metadata=weights.metadata, sizes=weights.sizes)


def _path_of(model: HubModel, file: str) -> Path:
    return hub_path(model.repository.place_of(file))
