"""From what somebody names to what its files hold: every header is checked, no value is read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mila.core.loading import Progress
from mila.errors import ConfigurationError
from mila.models.gguf_import.header import Value
from mila.models.gguf_import.source import GgufSource
from mila.models.hugging_face.folder import CONFIG_FILE
from mila.models.hugging_face.weights import open_weights
from mila.planning.inspection_report import ContentKind
from mila.planning.name_hints import is_path, model_of_hub, near_presets
from mila.planning.presets import find_preset
from mila.planning.report import TargetKind
from mila.planning.stored_content import Array, OpenFile, StoredContent, StoredTensor, stored_tensor
from mila.planning.target_files import kind_of, without_weights
from mila.planning.targets import HUB_PREFIX, PRESET_PREFIX
from mila.serialization import (
    FORMAT_DTYPES,
    ArchiveReader,
    SafetensorsFile,
    ShardedTensors,
    filesystem,
    newest_complete,
    open_tensors,
    read_json_object,
    recover_folder,
)
from mila.serialization.failures import refusal, refusals, shown
from mila.serialization.header import ALIASES_KEY, PREFIX_BYTES
from mila.serialization.manifest import MANIFEST_NAME, read_manifest
from mila.serialization.paths import checked_path
from mila.serialization.sharded import INDEX_NAME, NUMBERED_SHARD, SINGLE_FILE_NAME

_GGML_DTYPES = {
    name: np.dtype(kind)
    for name, kind in {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4"}.items()
} | {"I64": np.dtype("<i8"), "BF16": FORMAT_DTYPES["BF16"].numpy_dtype}
_ARCHIVED_CONFIG = "model/config.json"
#: Longer arrays of metadata are described.
_MOST_SHOWN = 8


def open_content(target: str | Path, on_header: Progress | None = None) -> StoredContent:
    """Read the headers of what a path leads to; a context manager that closes the files.

    Args:
        target: a model folder, a ``config.json``, a safetensors file, an index, a GGUF file, an archive or a run folder
            of ``mila train``; ``hf://owner/name[@revision][/file]`` for a model of the hub or one of its files, of
            which only headers are read.
        on_header: of a model of the hub, called with the headers of weights that were read, and with those to read.

    Raises:
        ConfigurationError: an argument that is none, a name of nothing, a file of another kind, or a hub that cannot be
            asked.
        CheckpointError: a malformed or incomplete file.
    """
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
    if not isinstance(target, str) or not target:
        raise ConfigurationError(f"target: expected the name of a file or a folder, got {shown(target)}")
    if target.startswith(PRESET_PREFIX):
        raise _nothing(target)
    if target.startswith(HUB_PREFIX):
        from mila.planning.hub_content import open_hub  # only where it is asked for

        return open_hub(target, on_header)
    path = checked_path(target, "target")
    recover_folder(path)
    with refusals(path, "could not be opened"):
        is_there = path.exists()
    if not is_there:
        raise _nothing(target)
    if path.name == MANIFEST_NAME and not path.is_dir():
        path = path.parent
    kind = kind_of(path)
    if kind is TargetKind.CONFIG:
        config = read_json_object(path, what="model config")
        return StoredContent(target, ContentKind.CONFIG, path, config=config, config_file=path)
    with contextlib.ExitStack() as opened:
        found = _Found(target, path, opened)
        content = _folder(found) if kind is TargetKind.FOLDER else _file(found, kind)
        opened.pop_all()
        return content


def _nothing(target: str) -> ConfigurationError:
    """The error for the name of no file, with what may have been meant."""
    name = target.removeprefix(PRESET_PREFIX)
    has_prefix, repository = name != target, model_of_hub(target)
    near = "" if is_path(name) else near_presets(name)
    got, hint = "nothing of that name" if not has_prefix else "no preset of that name", ""
    if find_preset(name) is not None:
        if has_prefix:
            got = "a preset, which `mila plan` plans"
        else:
            hint = "; the preset of that name is for `mila plan`"
    elif near:
        hint = f"; did you mean {near}? Presets are for `mila plan`"
    elif repository is not None:
        hint = f"; a model of the hub is {HUB_PREFIX}{repository}"
    return ConfigurationError(f"{shown(target)}: expected a file or a folder, got {got}{hint}")


@dataclass
class _Found:
    """What was found so far; ``opened`` closes it again where something is wrong."""

    target: str
    path: Path
    opened: contextlib.ExitStack
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    files: dict[str, OpenFile] = field(default_factory=dict)

    def open(self, label: str, path: Path) -> OpenFile:
        self.files[label] = self.opened.enter_context(OpenFile(path))
        return self.files[label]

    def add(self, tensor: StoredTensor) -> str:
        """Take a tensor in; return its name, which has that of its file where two files of an archive share one."""
        name = tensor.name if tensor.name not in self.tensors else f"{tensor.file}:{tensor.name}"
        self.tensors[name] = replace(tensor, name=name)
        return name

    def content(self, kind: ContentKind, **others: Any) -> StoredContent:
        sizes = {label: file.size for label, file in self.files.items()}
        owner = contextlib.ExitStack()
        for file in self.files.values():
            owner.callback(file.close)
        place = others.pop("place", self.path)
        return StoredContent(
            self.target, kind, place, self.tensors, self.aliases, files=self.files, sizes=sizes, opened=owner, **others
        )


def _file(found: _Found, kind: TargetKind) -> StoredContent:
    if kind is TargetKind.GGUF:
        return found.content(ContentKind.GGUF, metadata=_add_gguf(found))
    metadata = _add_tensors(found, found.path)
    is_index = kind is TargetKind.INDEX
    return found.content(ContentKind.INDEX if is_index else ContentKind.SAFETENSORS, metadata=metadata)


def _folder(found: _Found) -> StoredContent:
    path = found.path
    with refusals(path, "could not be read"):
        names = sorted(each.name for each in filesystem.list_folder(path))
    if CONFIG_FILE not in names:
        if MANIFEST_NAME in names:
            return _archive(found, path)
        newest = newest_complete(path)
        if newest is not None:
            return _archive(found, newest, f"the newest complete checkpoint of the run: {newest.name}")
        gguf = [name for name in names if name.lower().endswith(".gguf")]
        if gguf and not any(name.endswith(".safetensors") for name in names):
            raise refusal(path, expected="a model folder", got=shown(gguf), hint=f"name the file: {path / gguf[0]}")
        return found.content(ContentKind.FOLDER, metadata=_add_tensors(found, path))
    file = path / CONFIG_FILE
    config = read_json_object(file, what="model config")
    others: dict[str, Any] = {"config": config, "config_file": file}
    if not any(name in (SINGLE_FILE_NAME, INDEX_NAME) or NUMBERED_SHARD.fullmatch(name) for name in names):
        return found.content(ContentKind.FOLDER, notes=(without_weights(names),), **others)
    return found.content(ContentKind.FOLDER, metadata=_add_tensors(found, path), **others)


def _archive(found: _Found, path: Path, *notes: str) -> StoredContent:
    """The files of an archive; names of tensors are those in it, which no two of its files share."""
    with ArchiveReader(path):  # the size of every file is checked
        manifest = read_manifest(path)
    config, file = None, None
    for name in sorted(manifest.files):
        if name.endswith(".safetensors"):
            _add_safetensors(found, path / name, name)
        if name == _ARCHIVED_CONFIG:
            file = path / name
            config = read_json_object(file, what="model config")
    metadata = {"mode": manifest.mode.value}
    if manifest.sequence is not None:
        metadata["sequence"] = str(manifest.sequence)
    return found.content(
        ContentKind.ARCHIVE,
        place=path,
        metadata=metadata,
        config=config,
        config_file=file,
        manifest=manifest,
        notes=notes,
    )


def _add_tensors(found: _Found, path: Path) -> Mapping[str, str]:
    """Take in a safetensors file, or all that an index names, once it holds as a whole; return the metadata."""
    source = open_weights(path) if path.is_dir() else open_tensors(path)
    with source:
        place = source.path
        shards = source.shard_names if isinstance(source, ShardedTensors) else ()
        metadata = {key: value for key, value in source.metadata.items() if key != ALIASES_KEY}
    if not isinstance(source, ShardedTensors):
        _add_safetensors(found, place, place.name)
    for shard in shards:
        _add_safetensors(found, place.parent / shard, shard)
    return metadata


def _add_safetensors(found: _Found, path: Path, label: str) -> None:
    file = found.open(label, path)
    with SafetensorsFile(path) as source:
        prefix: Array = np.empty(PREFIX_BYTES, np.uint8)
        file.read_into(0, prefix)
        data_start = PREFIX_BYTES + int.from_bytes(prefix.tobytes(), "little")
        named = {entry.name: found.add(stored_tensor(entry, label, data_start)) for entry in source.tensors.values()}
        found.aliases.update({alias: named[name] for alias, name in source.aliases.items()})
    file.require_unchanged()  # the header that was parsed is that of the file that is open


def _add_gguf(found: _Found) -> Mapping[str, str]:
    label = found.path.name
    file = found.open(label, found.path)
    with GgufSource(found.path) as source:
        for info in source.tensors.values():
            dtype = _GGML_DTYPES.get(info.kind.name)
            name = info.kind.name.lower() if dtype is None else dtype.name
            block = info.kind if dtype is None else None
            found.add(StoredTensor(info.name, name, info.shape, info.nbytes, label, info.begin, dtype, block))
        metadata = {key: _value_text(value) for key, value in source.metadata.items()}
    file.require_unchanged()
    return metadata


def _value_text(value: Value) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]" if len(value) <= _MOST_SHOWN else f"an array of {len(value):,} texts"
    if isinstance(value, np.ndarray):
        if value.size <= _MOST_SHOWN:
            return "[" + ", ".join(map(str, value.tolist())) + "]"
        return f"an array of {value.size:,} numbers of {value.dtype.name}"
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
