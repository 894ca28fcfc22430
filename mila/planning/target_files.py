"""Targets that are files here: model folders, configs, safetensors, GGUF."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import MappingProxyType

from mila.errors import CheckpointError, ConfigurationError
from mila.models.gguf_import.architectures import describe_model
from mila.models.gguf_import.placements import HEAD
from mila.models.gguf_import.source import GgufSource
from mila.models.hugging_face.folder import CONFIG_FILE, read_raw_config
from mila.models.hugging_face.weights import open_weights
from mila.planning.interpreted import target_of
from mila.planning.report import TargetKind
from mila.planning.stored_weights import HeaderTensors
from mila.planning.target import Reading, StoredWeights, Target
from mila.serialization import TensorSource, filesystem, open_tensors, read_json_object
from mila.serialization.failures import refusal, refusals, shown, with_hint
from mila.serialization.sharded import INDEX_NAME, NUMBERED_SHARD, SINGLE_FILE_NAME

INDEX_ENDING = ".index.json"
_GGUF_MAGIC = b"GGUF"


def read_local(reading: Reading, path: Path) -> Target:
    """The target of a path that exists; ``reading.kind`` is what :func:`kind_of` says.

    Raises:
        CheckpointError: malformed or incomplete files, or a model that Mila does not have.
    """
    return _READERS[reading.kind](reading, path)


def kind_of(path: Path) -> TargetKind:
    """What a path that exists leads to: by the first bytes for GGUF, by the ending for all else.

    Raises:
        ConfigurationError: something that is no target.
        CheckpointError: the file cannot be opened.
    """
    with refusals(path, "could not be opened"):
        if path.is_dir():
            return TargetKind.FOLDER
    ending = path.name.lower()
    if path.name.endswith(INDEX_ENDING):
        return TargetKind.INDEX
    for kind, end in (
        (TargetKind.SAFETENSORS, ".safetensors"),
        (TargetKind.CONFIG, ".json"),
        (TargetKind.GGUF, ".gguf"),
    ):
        if ending.endswith(end):
            return kind
    if path.is_file():
        with refusals(path, "could not be opened"), path.open("rb") as file:
            if file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC:
                return TargetKind.GGUF
    expected = "a model folder, a config.json, a .safetensors file, its index, or a GGUF file"
    got = "a file of another kind" if path.is_file() else "a pipe or a device"
    raise ConfigurationError(f"{path}: expected {expected}, got {got}")


def read_folder(reading: Reading, path: Path) -> Target:
    """The target of a model folder; errors as for :func:`read_local`."""
    with refusals(path, "could not be read"):
        names = sorted(each.name for each in filesystem.list_folder(path))
    gguf = [name for name in names if name.lower().endswith(".gguf")]
    if CONFIG_FILE not in names and gguf:
        hint = f"name the file, such as {path / gguf[0]}"
        got = f"GGUF files: {shown(gguf)}"
        raise ConfigurationError(f"{path}: expected a model folder with {CONFIG_FILE}, got {got}; {hint}")
    try:
        place, raw = read_raw_config(path)
    except CheckpointError as error:
        if CONFIG_FILE in names:
            raise
        raise ConfigurationError(str(error)) from error  # nothing here is malformed
    if not any(name in (SINGLE_FILE_NAME, INDEX_NAME) or NUMBERED_SHARD.fullmatch(name) for name in names):
        return target_of(reading, place / CONFIG_FILE, raw, notes=(planned_without_weights(names),))
    try:
        with open_weights(place) as source:
            weights = _headers(source)
    except CheckpointError as error:
        hint = f"to plan without the weights name {place / CONFIG_FILE}"
        raise CheckpointError(with_hint(str(error), hint)) from error
    return target_of(reading, place / CONFIG_FILE, raw, weights=weights)


def planned_without_weights(names: list[str]) -> str:
    """A note on a plan of a model, none of whose files are weights that Mila reads."""
    return f"{without_weights(names)}: planned from the config alone"


def without_weights(names: list[str]) -> str:
    """What a model has that has no weights which Mila reads."""
    others = [name for name in names if name.endswith((".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf"))]
    found = f"{shown(others)} not read" if others else "no weights"
    return f"neither {SINGLE_FILE_NAME} nor its index, {found}"


def _read_config(reading: Reading, path: Path) -> Target:
    raw = read_json_object(path, what="model config")
    if "weight_map" in raw and "model_type" not in raw:
        raise refusal(path, expected="a model's config", got=f"an index, whose name ends in {INDEX_ENDING}")
    note = "planned from the config alone: no weights were looked at"
    return target_of(reading, path, raw, notes=(note,))


def _read_weights(reading: Reading, path: Path) -> Target:
    shard = NUMBERED_SHARD.fullmatch(path.name)
    if shard is not None and int(shard["count"]) > 1:
        hint = f"name the index, {path.parent / INDEX_NAME}, or the folder"
        got = f"shard {int(shard['number'])} of {int(shard['count'])}"
        raise ConfigurationError(f"{path}: expected all the weights of a model, got {got}; {hint}")
    with open_tensors(path) as source:  # what is wrong with the file itself is said first
        weights = _headers(source)
    config = path.parent / CONFIG_FILE
    if not config.exists():
        hint = "the number of heads and the longest sequence are in no header"
        raise ConfigurationError(f"{path}: expected a {CONFIG_FILE} beside it, got none; {hint}")
    raw = read_json_object(config, what="model config")
    return target_of(reading, config, raw, weights=weights)


def _headers(source: TensorSource) -> HeaderTensors:
    return HeaderTensors(source.path, source.tensors, source.aliases, source.metadata)


def _read_gguf(reading: Reading, path: Path) -> Target:
    with GgufSource(path) as source:
        model = describe_model(source)
        tensors = source.tensors.values()
        sizes: Counter[str] = Counter()
        for tensor in tensors:
            sizes[_GGML_FLOATS.get(tensor.kind.name, tensor.kind.name.lower())] += tensor.nbytes
        elements = sum(math.prod(tensor.shape) for tensor in tensors)
        stored = StoredWeights(sum(sizes.values()), dict(sizes.most_common()), elements)
    tied = _tied_otherwise(path, is_tied=bool(model.config["tie_word_embeddings"]), asked=reading.tie_word_embeddings)
    absent = (f"a GGUF file has no field {shown(name)} to ignore" for name in reading.ignore_fields)
    notes = (
        *model.notes,
        *tied,
        *absent,
        "planned as `mila import` makes it: Mila computes with the weights as floats",
    )
    return target_of(reading, path, model.config, stored=stored, notes=notes)


def _tied_otherwise(path: Path, *, is_tied: bool, asked: bool | None) -> tuple[str, ...]:
    """What a head that is asked for otherwise than the file has it means; one that is not there cannot be had."""
    if asked is None or asked is is_tied:
        return ()
    if asked:
        return (f"{HEAD} is not used, as tie_word_embeddings=True says",)
    got = "none but the table"
    raise ConfigurationError(f"{path}: expected a head of its own, as tie_word_embeddings=False says, got {got}")


_GGML_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
_READERS = MappingProxyType(
    {
        TargetKind.FOLDER: read_folder,
        TargetKind.CONFIG: _read_config,
        TargetKind.SAFETENSORS: _read_weights,
        TargetKind.INDEX: _read_weights,
        TargetKind.GGUF: _read_gguf,
    }
)
