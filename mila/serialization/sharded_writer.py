"""Writing tensors as one safetensors file, or as the shards of an index where they are too many for one.

The names and the split are those of the Hugging Face libraries: ``model.safetensors``, or
``model-00001-of-0000N.safetensors`` with ``model.safetensors.index.json``. The index is written last, when every
shard is whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mila.serialization import filesystem
from mila.serialization.atomic import write_file_atomically
from mila.serialization.failures import refusal, refusals, shown
from mila.serialization.header import DEFAULT_HEADER_LIMIT
from mila.serialization.manifest import format_json
from mila.serialization.paths import checked_path
from mila.serialization.safetensors_writer import SafetensorsWriter, build_header
from mila.serialization.sharded import INDEX_NAME, SINGLE_FILE_NAME
from mila.serialization.sizes import parse_size
from mila.serialization.tensor_writer import Contents, TensorWriter

Array = np.ndarray[Any, np.dtype[Any]]


class ShardedWriter(TensorWriter):
    """The weights of a folder being written; see `TensorWriter` for the calls and their order.

    A tensor goes into the current shard while the shard's data stay within the limit, and into a new one otherwise; a
    tensor beyond the limit has a shard of its own, and the current one goes on. Other names of a tensor stay with it.
    At most two files are open at a time.

    Args:
        folder: an existing folder without weights, such as that of an `AtomicFolder`. Only the renaming of the
            whole folder replaces older weights: no order of writing files does that in one step.
        max_shard_bytes: the most bytes of tensor data in a shard; a number or a text for `parse_size`.
        header_limit: the longest header, in bytes, that the readers of the files accept.
        named: what errors call the folder, where it has another name in the end.

    Raises:
        ConfigurationError: a size that is none.
        CheckpointError: the folder holds weights, or cannot be listed.
    """

    def __init__(
        self,
        folder: Path | str,
        max_shard_bytes: int | str,
        header_limit: int = DEFAULT_HEADER_LIMIT,
        *,
        named: Path | None = None,
    ) -> None:
        self._folder = checked_path(folder)
        super().__init__(named or self._folder)
        self._max_shard_bytes = parse_size(max_shard_bytes)
        self._header_limit = header_limit
        self._shard_of: dict[str, str] = {}
        self._unwritten: dict[str, Contents] = {}
        self._remaining: dict[str, int] = {}
        self._open: dict[str, SafetensorsWriter] = {}
        self._done: list[str] = []
        with refusals(self.path, "could not be listed"):
            names = [each.name for each in filesystem.list_folder(self._folder)]
        present = [name for name in names if name.endswith((".safetensors", ".safetensors.index.json"))]
        if present:
            raise refusal(self.path, expected="a folder without weights", got=shown(present))

    def _begin(self) -> None:
        self._unwritten = split_into_shards(self._contents, self._max_shard_bytes)
        for shard, contents in self._unwritten.items():
            build_header(contents, self.path / shard, self._header_limit)  # refuses before any file exists
            self._shard_of.update(dict.fromkeys(contents.tensors, shard))
            self._remaining[shard] = len(contents.tensors)
        if not self._contents.tensors:
            self._finish_shard(SINGLE_FILE_NAME)

    def _write(self, name: str, arrays: Iterable[Array]) -> None:
        shard = self._shard_of[name]
        self._writer(shard)._take(name, arrays)
        self._remaining[shard] -= 1
        if not self._remaining[shard]:
            self._finish_shard(shard)

    def _commit(self) -> None:
        if self._done == [SINGLE_FILE_NAME]:
            self._done = []
            return
        total_size = sum(tensor.nbytes for tensor in self._contents.tensors.values())
        index = {"metadata": {"total_size": total_size}, "weight_map": self._shard_of}
        path, named = self._folder / INDEX_NAME, self.path / INDEX_NAME
        try:
            content = format_json(index, named)
            write_file_atomically(path, lambda file: filesystem.write(file, content), named=named)
        except BaseException:
            self._abort()
            raise
        self._done = []

    def _abort(self) -> None:
        for writer in self._open.values():
            writer.abort()
        self._open = {}
        for shard in self._done:
            with contextlib.suppress(OSError):
                filesystem.remove_file(self._folder / shard)
        self._done = []

    def _writer(self, shard: str) -> SafetensorsWriter:
        if shard not in self._open:
            writer = SafetensorsWriter(self._folder / shard, self._header_limit, named=self.path / shard)
            self._open[shard] = writer
            contents = self._unwritten.pop(shard)
            for name, tensor in contents.tensors.items():
                writer.declare(name, tensor.dtype.name, tensor.shape, convert=tensor.convert)
            for alias, name in contents.aliases.items():
                writer.declare_alias(alias, name)
            for key, value in contents.metadata.items():
                writer.set_metadata(key, value)
            writer.begin()
        return self._open[shard]

    def _finish_shard(self, shard: str) -> None:
        self._writer(shard).close()
        del self._open[shard]
        self._done.append(shard)


def split_into_shards(contents: Contents, max_shard_bytes: int) -> dict[str, Contents]:
    """Return what each file holds, by its name; one file where the limit allows, also where there are no tensors.

    The split of `huggingface_hub` (``split_state_dict_into_shards_factory``), which never goes back to a shard that
    is full.
    """
    shards: list[list[str]] = []
    current: list[str] = []
    current_bytes = 0
    for name, tensor in contents.tensors.items():
        if tensor.nbytes > max_shard_bytes:
            shards.append([name])
            continue
        if current_bytes + tensor.nbytes > max_shard_bytes:
            shards.append(current)
            current, current_bytes = [], 0
        current.append(name)
        current_bytes += tensor.nbytes
    if current or not shards:
        shards.append(current)
    if len(shards) == 1:
        return {SINGLE_FILE_NAME: contents}
    return {
        f"model-{number:05d}-of-{len(shards):05d}.safetensors": _part(contents, names)
        for number, names in enumerate(shards, 1)
    }


def _part(contents: Contents, names: list[str]) -> Contents:
    tensors = {name: contents.tensors[name] for name in names}
    aliases = {alias: name for alias, name in contents.aliases.items() if name in tensors}
    return Contents(tensors, aliases, contents.metadata)
