"""Targets on the Hugging Face hub: ``config.json`` and the headers of the weights, nothing else is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from mila.core.loading import Progress
from mila.errors import CheckpointError, ConfigurationError
from mila.models.hugging_face.folder import CONFIG_FILE
from mila.planning.hub_files import HubModel, cached_file, parse_name
from mila.planning.interpreted import target_of
from mila.planning.stored_weights import HeaderTensors
from mila.planning.target import Reading, Target
from mila.planning.target_files import planned_without_weights, read_folder
from mila.planning.targets import HUB_PREFIX
from mila.serialization.failures import shown
from mila.serialization.sharded import INDEX_NAME, SINGLE_FILE_NAME

OFFLINE = "HF_HUB_OFFLINE is set: read from the cache of the hub"
BOTH = f"both {SINGLE_FILE_NAME} and {INDEX_NAME} on the hub: neither was read"
_INSTALL = "pip install 'huggingface_hub>=1.0'"


def read_hub(reading: Reading, on_header: Progress | None = None) -> Target:
    """The target of a model on the hub.

    Args:
        reading: how it was named: ``hf://owner/name``, optionally with ``@revision``; ``main`` by default.
        on_header: called with the headers of weights that were read, and with those to read.

    Raises:
        ConfigurationError: a name that is none, no ``config.json``, the package ``huggingface_hub`` is missing, or the
            hub cannot be asked, does not answer or denies access.
        CheckpointError: what it answers is malformed, or a model that Mila does not have.
    """
    name = parse_name(reading.target)
    package = hub_package(reading.target, name.repository)
    reading = replace(reading, name=name.repository)
    cached = cached_file(package, name, CONFIG_FILE)
    if cached is not None:
        target = read_folder(reading, cached.parent)
        return replace(target, notes=(*target.notes, OFFLINE))
    model = HubModel(package, name)
    if CONFIG_FILE not in model.names:
        raise ConfigurationError(f"{model.place}: expected a model with {CONFIG_FILE}, got {got_instead(model.names)}")
    raw = model.read_config()
    place = model.repository.place_of(CONFIG_FILE)
    _target_of(reading, place, raw)  # what cannot be planned is said before more is asked for
    weights, notes = _read_weights(model, on_header)
    return _target_of(reading, place, raw, weights, notes)


def hub_package(target: str, repository: str) -> ModuleType:
    """The package ``huggingface_hub``; raises :class:`ConfigurationError` without it, or for a name that it refuses."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise ConfigurationError(f"{target}: needs the package huggingface_hub: {_INSTALL}") from None
    package: ModuleType = huggingface_hub
    if package.__version__.startswith("0."):
        got = f"{package.__version__}: {_INSTALL}"
        raise ConfigurationError(f"{target}: expected huggingface_hub 1.0 or newer, got {got}")
    try:
        package.utils.validate_repo_id(repository)
    except ValueError as error:
        raise ConfigurationError(f"{shown(target)}: {error}") from None
    return package


def hub_path(place: str) -> Path:
    """A place as a path, which cannot hold the two slashes of its prefix."""
    return Path(place.removeprefix(HUB_PREFIX))


def got_instead(names: list[str]) -> str:
    """What a model has in place of what was looked for, and what can be done."""
    gguf = [each for each in names if each.endswith(".gguf")]
    if gguf:
        return f"GGUF files: {shown(gguf)}; download one of the GGUF files and name it"
    return f"{len(names)} other file{'s' if len(names) > 1 else ''}" if names else "no files"


def _target_of(
    reading: Reading,
    place: str,
    raw: Mapping[str, Any],
    weights: HeaderTensors | None = None,
    notes: tuple[str, ...] = (),
) -> Target:
    try:
        return target_of(reading, hub_path(place), raw, weights=weights, notes=notes)
    except (CheckpointError, ConfigurationError) as error:
        raise type(error)(f"{HUB_PREFIX}{error}") from None  # an unknown architecture stays one


def _read_weights(model: HubModel, on_header: Progress | None) -> tuple[HeaderTensors | None, tuple[str, ...]]:
    """The headers of the weights, where there are safetensors; and what a user should be told."""
    file = model.weights_file()
    if file is not None:
        found = model.read_weights(file, on_header)
        return HeaderTensors(hub_path(found.place), found.tensors, found.aliases, found.metadata), ()
    if SINGLE_FILE_NAME in model.names:
        return None, (f"{BOTH}, planned from the config",)
    return None, (planned_without_weights(model.names),)
