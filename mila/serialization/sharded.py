"""Reading tensors that an index spreads over several safetensors files.

An index, ``model.safetensors.index.json``, maps every tensor's name to the file, in the same folder, that holds it.
Everything it says is checked against the files before any tensor is handed out. Files that it does not name are no
part of it, whatever they are called: folders of published models hold the same weights twice.
"""

from __future__ import annotations

import contextlib
import re
import stat
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np

from mila.serialization.blocks import ClosedAfterBlock
from mila.serialization.failures import operating_system_refusal, refusal, shown
from mila.serialization.foreign_content import INCOMPLETE
from mila.serialization.header import DEFAULT_HEADER_LIMIT, TensorEntry
from mila.serialization.paths import checked_path
from mila.serialization.safetensors_reader import SafetensorsFile
from mila.serialization.strict_json import read_json_object

Array = np.ndarray[Any, np.dtype[Any]]

SINGLE_FILE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
NUMBERED_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5,9})-of-(?P<count>\d{5,9})(?P<ending>\.safetensors)")


class ShardedTensors(ClosedAfterBlock):
    """The tensors of an index, read like those of one file, shard by shard in the order of the shards' names.

    `metadata` holds the entries on which all shards agree.

    Args:
        path: the index, or the folder that holds ``model.safetensors.index.json``.
        header_limit: the longest header that is accepted of a shard, in bytes.
        follow_links: accept shards that are links to anywhere; links from a snapshot of the Hugging Face cache to the
            blobs of its repository are accepted without it.

    Raises:
        CheckpointError: a malformed index or shard; a shard outside the folder, or missing; a tensor that is not in
            its shard, in two, or not in the index; a numbered family of shards with a hole.
    """

    def __init__(
        self, path: Path | str, header_limit: int = DEFAULT_HEADER_LIMIT, *, follow_links: bool = False
    ) -> None:
        given = checked_path(path)
        self._path = given / INDEX_NAME if leads_to_folder(given) else given
        shard_of = _read_index(self._path, header_limit)
        shard_names = sorted(set(shard_of.values()))
        _check_numbering(shard_names, self._path)
        locations = [_shard_path(self._path, name, follow_links) for name in shard_names]
        with contextlib.ExitStack() as opened:
            self._shards = {
                name: opened.enter_context(SafetensorsFile(location, header_limit))
                for name, location in zip(shard_names, locations, strict=True)
            }
            self._source = _match(self._path, shard_of, self._shards)
            self._opened = opened.pop_all()
        self._tensors = MappingProxyType(
            {name: entry for shard in self._shards.values() for name, entry in shard.tensors.items()}
        )
        self._aliases = MappingProxyType(
            {alias: name for shard in self._shards.values() for alias, name in shard.aliases.items()}
        )
        self._metadata = MappingProxyType(_common_entries([shard.metadata for shard in self._shards.values()]))

    @property
    def path(self) -> Path:
        """The index."""
        return self._path

    @property
    def shard_names(self) -> tuple[str, ...]:
        """The files that the index names, relative to its folder."""
        return tuple(self._shards)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata on which all shards agree."""
        return self._metadata

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """The stored tensors, shard by shard, in the order of their data; offsets count within their shard."""
        return self._tensors

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names of stored tensors: ``{alias: name}``."""
        return self._aliases

    def entry(self, name: str) -> TensorEntry:
        """Return the stored tensor that a name or an alias stands for; `CheckpointError` where there is none."""
        return self._shard(name).entry(name)

    def read(self, name: str) -> Array:
        """Return a read-only array of a tensor; see `SafetensorsFile.read`."""
        return self._shard(name).read(name)

    def copy_into(self, name: str, target: Array) -> None:
        """Copy a tensor into an array of the same dtype and shape; see `SafetensorsFile.copy_into`."""
        self._shard(name).copy_into(name, target)

    def copy_range_into(self, name: str, first_element: int, target: Array) -> None:
        """Copy a part of a tensor; see `SafetensorsFile.copy_range_into`."""
        self._shard(name).copy_range_into(name, first_element, target)

    def drop_pages(self, name: str) -> None:
        """Give the mapped pages of a tensor back to the system."""
        self._shard(name).drop_pages(name)

    def close(self) -> None:
        """Close all shards."""
        self._opened.close()

    def _shard(self, name: str) -> SafetensorsFile:
        shard = self._source.get(name)
        if shard is None:
            raise refusal(self.path, tensor=name, expected="a tensor of this index", got="no such name")
        return shard


def _read_index(path: Path, limit: int) -> dict[str, str]:
    shard_of = read_json_object(path, what="index", limit=limit).get("weight_map")
    if not isinstance(shard_of, dict):
        raise refusal(path, expected="a weight_map that maps tensors to files", got=shown(shard_of))
    for name, shard in shard_of.items():
        if not isinstance(shard, str):
            raise refusal(path, tensor=name, expected="the name of a file", got=shown(shard))
    return shard_of


def _check_numbering(shard_names: list[str], path: Path) -> None:
    """Check that of a family ``model-00001-of-0000N.safetensors`` every number is there, and no other family."""
    families: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for name in shard_names:
        match = NUMBERED_SHARD.fullmatch(name)
        if match is not None:
            families[match["stem"], match["count"]].add(int(match["number"]))
    for (stem, count), numbers in families.items():
        if len(numbers) != int(count) or max(numbers) != int(count) or min(numbers) != 1:
            expected = f"the shards 1 to {int(count)} of {shown(stem)}"
            raise refusal(path, expected=expected, got=shown(sorted(numbers)), hint=INCOMPLETE)
    if len(families) > 1:
        raise refusal(path, expected="one family of shards", got=shown(sorted(stem for stem, _ in families)))


def _shard_path(index: Path, name: str, follow_links: bool) -> Path:
    parts = PurePosixPath(name).parts
    if not parts or any(part in ("..", "/", "//") or set(part) & set("\\:\0") for part in parts):
        raise refusal(index, expected="a shard inside the index's folder", got=shown(name))
    path = index.parent.joinpath(*parts)
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except PermissionError as error:
        raise operating_system_refusal(path, "could not be opened", error) from error
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        raise refusal(index, expected=f"the shard {shown(name)}", got="no such file", hint=INCOMPLETE)
    if not follow_links and not _may_lead_to(index.parent.resolve(), path.resolve()):
        hint = "pass follow_links=True to accept it"
        raise refusal(index, expected="a shard inside the index's folder", got=f"the link {shown(name)}", hint=hint)
    return path


def _may_lead_to(folder: Path, file: Path) -> bool:
    """Whether a file belongs to a folder: inside it, or among the blobs of the cached repository it is a snapshot of.

    The Hugging Face cache has ``REPOSITORY/snapshots/REVISION/[SUBFOLDER/]FILE``, a link into ``REPOSITORY/blobs``.
    """
    if file.is_relative_to(folder):
        return True
    snapshots = (parent for parent in folder.parents if parent.name == "snapshots")
    return any(file.parent == (each.parent / "blobs").resolve() for each in snapshots)


def leads_to_folder(path: Path) -> bool:
    """Whether a path leads to a folder; a name the system cannot take leads nowhere."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _match(
    index: Path, shard_of: Mapping[str, str], shards: Mapping[str, SafetensorsFile]
) -> dict[str, SafetensorsFile]:
    """Return the shard of every tensor and alias, once the index and the files agree about all of them."""
    source: dict[str, SafetensorsFile] = {}
    for shard_name, shard in shards.items():
        for name in (*shard.tensors, *shard.aliases):
            if name in source:
                got = f"it in {shown(source[name].path.name)} and {shown(shard_name)}"
                raise refusal(index, tensor=name, expected="one shard", got=got)
            source[name] = shard
            if shard_of.get(name, shard_name) != shard_name:
                got = f"it in {shown(shard_name)}"
                raise refusal(index, tensor=name, expected=f"it in {shown(shard_of[name])}", got=got)
        unlisted = next((name for name in shard.tensors if name not in shard_of), None)
        if unlisted is not None:
            raise refusal(index, tensor=unlisted, expected="an entry in the index", got=f"one in {shown(shard_name)}")
    for name, shard_name in shard_of.items():
        if name not in source:
            raise refusal(index, tensor=name, expected=f"it in {shown(shard_name)}", got="no such tensor there")
    return source


def _common_entries(records: list[Mapping[str, str]]) -> dict[str, str]:
    if not records:
        return {}
    return {key: value for key, value in records[0].items() if all(record.get(key) == value for record in records[1:])}
