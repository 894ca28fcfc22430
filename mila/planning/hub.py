"""Targets on the Hugging Face hub: ``config.json`` and the headers of the weights, nothing else is fetched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from mila.errors import CheckpointError, ConfigurationError
from mila.models.hugging_face.folder import CONFIG_FILE
from mila.planning.hub_requests import HubRepository
from mila.planning.interpreted import Reading, target_of
from mila.planning.stored_weights import HeaderTensors
from mila.planning.target import Target
from mila.planning.target_files import read_folder, why_without_weights
from mila.serialization.failures import refusal, shown
from mila.serialization.header import PREFIX_BYTES, Header, TensorEntry, header_length, parse_header
from mila.serialization.sharded import INDEX_NAME, SINGLE_FILE_NAME
from mila.serialization.strict_json import parse_json_object

_NAME = re.compile(r"(?P<name>[\w.-]{1,96}(/[\w.-]{1,96})?)(@(?P<revision>[^\s@]{1,250}))?")
_LARGEST_INFORMATION, _LARGEST_CONFIG, _LARGEST_INDEX = 16_000_000, 1_000_000, 16_000_000
#: Of a shard, fewer than a million bytes are read: first what nearly every header fits in, then the rest of it.
_FIRST_BYTES, _LARGEST_HEADER = 1 << 16, 900_000
_LONGEST_INTEGER = 1000
_PREFIX, _INSTALL = "hf://", "pip install 'huggingface_hub>=1.0'"
_MOST_SHARDS, _REQUESTS_AT_ONCE = 1000, 8


def read_hub(reading: Reading, name: str) -> Target:
    """The target of a model on the hub.

    Args:
        reading: how it was named.
        name: ``owner/name``, optionally with ``@revision``; ``main`` by default.

    Raises:
        ConfigurationError: a name that is none, the package ``huggingface_hub`` is missing, or the hub cannot be asked,
            does not answer or denies access.
        CheckpointError: what it answers is malformed, or a model that Mila does not have.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ConfigurationError(f"{shown(reading.target)}: expected hf://owner/name or hf://owner/name@revision")
    package = _package(reading.target)
    repository, revision = found["name"], found["revision"] or "main"
    try:
        package.utils.validate_repo_id(repository)
    except ValueError as error:
        raise ConfigurationError(f"{shown(reading.target)}: {error}") from None
    reading = replace(reading, name=repository)
    if package.constants.HF_HUB_OFFLINE:
        cached = package.try_to_load_from_cache(repository, CONFIG_FILE, revision=revision)
        if isinstance(cached, str):
            target = read_folder(reading, Path(cached).parent)
            return replace(target, notes=(*target.notes, "HF_HUB_OFFLINE is set: read from the cache of the hub"))
    hub = HubRepository(repository, revision, package)
    names = _pin(hub)
    if CONFIG_FILE not in names:
        gguf = [each for each in names if each.endswith(".gguf")]
        hint = "download one of the GGUF files and name it" if gguf else None
        got = shown(gguf) if gguf else f"{len(names)} other files"
        raise refusal(hub.place, expected=f"a model with {CONFIG_FILE}", got=got, hint=hint)
    content = hub.read_file(CONFIG_FILE, _LARGEST_CONFIG)
    place = hub.place_of(CONFIG_FILE)
    raw = parse_json_object(content, place, what="model config", longest_integer=_LONGEST_INTEGER)
    _target_of(reading, place, raw)  # what cannot be planned is said before more is asked for
    weights, notes = _read_weights(hub, names)
    return _target_of(reading, place, raw, weights, notes)


def _target_of(
    reading: Reading,
    place: str,
    raw: Mapping[str, Any],
    weights: HeaderTensors | None = None,
    notes: tuple[str, ...] = (),
) -> Target:
    try:
        return target_of(reading, _path(place), raw, weights=weights, notes=notes)
    except CheckpointError as error:
        raise type(error)(f"{_PREFIX}{error}") from None  # an unknown architecture stays one


def _path(place: str) -> Path:
    """A place as a path, which cannot hold the two slashes of its prefix."""
    return Path(place.removeprefix(_PREFIX))


def _package(target: str) -> ModuleType:
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
    return package


def _pin(hub: HubRepository) -> list[str]:
    """Hold the repository to the commit that its revision is now; return the names of its files."""
    content = hub.read_information(_LARGEST_INFORMATION)
    said = parse_json_object(content, hub.place, what="description of the model", longest_integer=_LONGEST_INTEGER)
    files, commit = said.get("siblings"), said.get("sha")
    entries = files if isinstance(files, list) else [None]
    names = [entry.get("rfilename") if isinstance(entry, dict) else None for entry in entries]
    if not all(isinstance(name, str) for name in names):
        raise refusal(hub.place, expected="a list of the model's files", got=shown(files))
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise refusal(hub.place, expected="the commit of the revision", got=shown(commit))
    hub.pin(commit)
    return [str(name) for name in names]


def _read_weights(hub: HubRepository, names: list[str]) -> tuple[HeaderTensors | None, tuple[str, ...]]:
    """The headers of the weights, where there are safetensors; and what a user should be told."""
    if SINGLE_FILE_NAME in names and INDEX_NAME in names:
        return None, (
            f"both {SINGLE_FILE_NAME} and {INDEX_NAME} on the hub: neither was read, planned from the config",
        )
    if INDEX_NAME in names:
        return _read_shards(hub, names), ()
    if SINGLE_FILE_NAME in names:
        header = _read_header(hub, SINGLE_FILE_NAME)
        place = _path(hub.place_of(SINGLE_FILE_NAME))
        return HeaderTensors(place, header.tensors, header.aliases, header.metadata), ()
    return None, (why_without_weights(names),)


def _read_header(hub: HubRepository, file: str) -> Header:
    place = hub.place_of(file)
    start = hub.read_part(file, 0, _FIRST_BYTES)
    length = header_length(start.content[:64], start.file_size, place, _LARGEST_HEADER)
    end = PREFIX_BYTES + length
    content = start.content[PREFIX_BYTES:end]
    if end > len(start.content):
        rest = hub.read_part(file, len(start.content), end - len(start.content))
        if (rest.file_size, rest.tag) != (start.file_size, start.tag):
            raise refusal(place, expected="the file of the first answer", got="another one: it changed meanwhile")
        content += rest.content
    return parse_header(content, start.file_size - end, place)


def _read_shards(hub: HubRepository, names: list[str]) -> HeaderTensors:
    place = hub.place_of(INDEX_NAME)
    shard_of = _read_index(hub, place)
    shards = sorted(set(shard_of.values()))
    if len(shards) > _MOST_SHARDS:
        raise refusal(place, expected=f"at most {_MOST_SHARDS} shards", got=str(len(shards)))
    missing = next((shard for shard in shards if shard not in names), None)
    if missing is not None:
        raise refusal(place, expected=f"the shard {shown(missing)}", got="no such file on the hub")
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as requests:
        pending = [requests.submit(_read_header, hub, shard) for shard in shards]
        try:
            headers = dict(zip(shards, [each.result() for each in pending], strict=True))
        finally:
            requests.shutdown(wait=False, cancel_futures=True)
    return _join(place, shard_of, headers)


def _read_index(hub: HubRepository, place: str) -> dict[str, str]:
    content = hub.read_file(INDEX_NAME, _LARGEST_INDEX)
    shard_of: Any = parse_json_object(content, place, what="index", longest_integer=_LONGEST_INTEGER).get("weight_map")
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise refusal(place, expected="a weight_map that maps tensors to files", got=shown(shard_of))
    return shard_of


def _join(place: str, shard_of: Mapping[str, str], headers: Mapping[str, Header]) -> HeaderTensors:
    """All headers as one, once the index and the files agree about every tensor."""
    tensors: dict[str, TensorEntry] = {}
    aliases: dict[str, str] = {}
    home: dict[str, str] = {}
    for shard, header in headers.items():
        for name in (*header.tensors, *header.aliases):
            if name in home:
                raise refusal(
                    place, tensor=name, expected="one shard", got=f"it in {shown(home[name])} and {shown(shard)}"
                )
            home[name] = shard
            if name not in shard_of and name in header.tensors:
                raise refusal(place, tensor=name, expected="an entry in the index", got=f"one in {shown(shard)}")
        tensors |= header.tensors
        aliases |= header.aliases
    for name, shard in shard_of.items():
        if home.get(name) != shard:
            got = f"it in {shown(home[name])}" if name in home else "no such tensor there"
            raise refusal(place, tensor=name, expected=f"it in {shown(shard)}", got=got)
    return HeaderTensors(_path(place), tensors, aliases, {})
