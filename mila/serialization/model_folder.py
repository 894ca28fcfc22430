"""Finding the weights that a path leads to: a file, an index, or the folder of a model."""

from __future__ import annotations

import re
from pathlib import Path

from mila.errors import CheckpointError
from mila.serialization import filesystem
from mila.serialization.atomic_folder import recover_folder
from mila.serialization.failures import refusal, refusals, shown
from mila.serialization.foreign_content import CONVERT_GGUF, CONVERT_PICKLES, INCOMPLETE
from mila.serialization.header import DEFAULT_HEADER_LIMIT
from mila.serialization.paths import checked_path
from mila.serialization.safetensors_reader import SafetensorsFile
from mila.serialization.sharded import (
    INDEX_NAME,
    NUMBERED_SHARD,
    SINGLE_FILE_NAME,
    ShardedTensors,
    leads_to_folder,
)
from mila.serialization.tensor_source import TensorSource

_INDEX_ENDING = ".index.json"
_PICKLES = re.compile(r"(?!(training_args|optimizer|scheduler|scaler|rng_state)).*\.(bin|pt|pth|ckpt)")
"""What PyTorch writes, apart from the states of a training run."""


def open_tensors(
    path: Path | str, header_limit: int = DEFAULT_HEADER_LIMIT, *, follow_links: bool = False
) -> TensorSource:
    """Open a safetensors file, an index, or a folder that holds ``model.safetensors`` or its index.

    In a folder nothing else is read, and nothing is guessed: other safetensors files beside these are ignored.

    Raises:
        CheckpointError: a folder with both or with neither, or what `SafetensorsFile` and `ShardedTensors` refuse. A
            folder of weights in another form, such as ``pytorch_model.bin``, is told how to be converted.
    """
    given = checked_path(path)
    recover_folder(given)
    if not leads_to_folder(given):
        if given.name.endswith(_INDEX_ENDING):
            return ShardedTensors(given, header_limit, follow_links=follow_links)
        return SafetensorsFile(given, header_limit)
    with refusals(given, "could not be read"):
        names = [each.name for each in filesystem.list_folder(given)]
    if SINGLE_FILE_NAME in names and INDEX_NAME not in names:
        return SafetensorsFile(given / SINGLE_FILE_NAME, header_limit)
    if INDEX_NAME in names and SINGLE_FILE_NAME not in names:
        return ShardedTensors(given / INDEX_NAME, header_limit, follow_links=follow_links)
    raise _undecided(given, names)


def _undecided(folder: Path, names: list[str]) -> CheckpointError:
    safetensors = [name for name in names if name.endswith(".safetensors")]
    pickles = [name for name in names if _PICKLES.fullmatch(name)]
    gguf = [name for name in names if name.endswith(".gguf")]
    hint = None
    if SINGLE_FILE_NAME in names:
        got, hint = "both", "remove one of them, or name the file to open"
    elif any(NUMBERED_SHARD.fullmatch(name) for name in safetensors):
        got, hint = f"shards without an index: {shown(safetensors)}", INCOMPLETE
    elif safetensors:
        got, hint = f"neither, but {shown(safetensors)}", "name the file to open"
    elif pickles:
        got, hint = f"neither, but {shown(pickles)}", CONVERT_PICKLES
    elif gguf:
        got, hint = f"neither, but {shown(gguf)}", CONVERT_GGUF
    else:
        got = "neither"
    return refusal(folder, expected=f"either {SINGLE_FILE_NAME} or {INDEX_NAME}", got=got, hint=hint)
