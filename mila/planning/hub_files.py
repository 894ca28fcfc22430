"""Models on the Hugging Face hub: what a name means, and what the headers of their weights say."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from mila.core.loading import Progress
from mila.errors import ConfigurationError
from mila.models.hugging_face.folder import CONFIG_FILE
from mila.planning.hub_requests import HubRepository
from mila.planning.target_files import INDEX_ENDING
from mila.planning.targets import HUB_PREFIX
from mila.serialization.failures import refusal, shown
from mila.serialization.header import ALIASES_KEY, PREFIX_BYTES, Header, TensorEntry, header_length, parse_header
from mila.serialization.sharded import INDEX_NAME, SINGLE_FILE_NAME
from mila.serialization.strict_json import parse_json_object

_NAME = re.compile(r"(?P<name>[\w.-]{1,96}(/[\w.-]{1,96})?)(@(?P<revision>[^\s@]{1,250}))?")
#: A revision before a file has no slashes of its own, or is one of those that the hub makes.
_FILE = re.compile(
    r"(?P<name>[\w.-]{1,96}/[\w.-]{1,96})(@(?P<revision>refs/(pr|convert)/[\w.-]{1,96}|[^\s@/]{1,250}))?"
    r"/(?P<file>[^\s@]{1,500}\.(safetensors|json|gguf))"
)
#: What can only be meant as a file, whatever its ending.
_ANY_FILE = re.compile(r"[\w.-]+/[\w.-]+(@[^\s@/]+)?/(?P<file>[^\s@]+)")
_LARGEST_INFORMATION, _LARGEST_CONFIG, _LARGEST_INDEX = 16_000_000, 1_000_000, 16_000_000
#: Of a shard, fewer than a million bytes are read: first what nearly every header fits in, then the rest of it.
_FIRST_BYTES, _LARGEST_HEADER = 1 << 16, 900_000
#: Of all shards together.
_LARGEST_HEADERS = 100_000_000
_LONGEST_INTEGER = 1000
_MOST_SHARDS, _REQUESTS_AT_ONCE = 1000, 8


@dataclass(frozen=True)
class HubName:
    """What ``hf://owner/name[@revision][/file]`` says."""

    repository: str
    revision: str
    file: str | None = None


def parse_name(target: str, *, with_file: bool = False) -> HubName:
    """The parts of a name; raises :class:`ConfigurationError` where it is none.

    Args:
        target: as it was given.
        with_file: whether it may name a file.
    """
    name = target.removeprefix(HUB_PREFIX)
    found = (_FILE.fullmatch(name) if with_file else None) or _NAME.fullmatch(name)
    if found is None:
        unread = _ANY_FILE.fullmatch(name) if with_file else None
        if unread is not None:
            expected = "a file whose name ends in .safetensors or .json"
            raise ConfigurationError(f"{shown(target)}: expected {expected}, got {shown(unread['file'])}")
        forms = "hf://owner/name or hf://owner/name@revision" + (", and /file behind it" if with_file else "")
        raise ConfigurationError(f"{shown(target)}: expected {forms}")
    return HubName(found["name"], found["revision"] or "main", found.groupdict().get("file"))


def cached_file(package: ModuleType, name: HubName, file: str) -> Path | None:
    """With ``HF_HUB_OFFLINE``, the copy of a file in the hub's cache; ``None`` where the hub is asked, or has to be."""
    if not package.constants.HF_HUB_OFFLINE:
        return None
    found = package.try_to_load_from_cache(name.repository, file, revision=name.revision)
    return Path(found) if isinstance(found, str) else None


class HubModel:
    """A model on the hub, held to the commit that its revision is now.

    Attributes:
        repository: answers all further requests.
        names: of its files.
    """

    def __init__(self, package: ModuleType, name: HubName) -> None:
        self.repository = HubRepository(name.repository, name.revision, package)
        self.names = self._pin()

    @property
    def place(self) -> str:
        """What errors call it."""
        return self.repository.place

    def read_config(self, file: str = CONFIG_FILE) -> dict[str, Any]:
        """The content of a ``config.json`` that is there."""
        content = self.repository.read_file(file, _LARGEST_CONFIG)
        place = self.repository.place_of(file)
        return parse_json_object(content, place, what="model config", longest_integer=_LONGEST_INTEGER)

    def weights_file(self) -> str | None:
        """The one file with weights, or the index of several; ``None`` without safetensors, or with both."""
        found = [name for name in (SINGLE_FILE_NAME, INDEX_NAME) if name in self.names]
        return found[0] if len(found) == 1 else None

    def read_weights(self, file: str, on_header: Progress | None = None) -> HubWeights:
        """The headers of a safetensors file, or of all that an index names.

        Args:
            file: one of the model's files.
            on_header: called with the headers that were read, and with those to read.
        """
        place = self.repository.place_of(file)
        if not file.endswith(INDEX_ENDING):
            weights = HubWeights(place, None)
            weights.add(file.rpartition("/")[2], _read_header(self.repository, file))
            return weights
        shard_of = self._read_index(file, place)
        folder = file[: file.rfind("/") + 1]
        shards = sorted(set(shard_of.values()))
        if len(shards) > _MOST_SHARDS:
            raise refusal(place, expected=f"at most {_MOST_SHARDS} shards", got=str(len(shards)))
        missing = next((shard for shard in shards if f"{folder}{shard}" not in self.names), None)
        if missing is not None:
            raise refusal(place, expected=f"the shard {shown(missing)}", got="no such file on the hub")
        weights = HubWeights(place, shard_of)
        with closing(self._headers(folder, shards)) as headers:
            for number, (shard, header) in enumerate(headers, 1):
                weights.add(shard, header)
                if on_header is not None:
                    on_header(number, len(shards))
        weights.require_all()
        return weights

    def _pin(self) -> list[str]:
        hub = self.repository
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

    def _read_index(self, file: str, place: str) -> dict[str, str]:
        content = self.repository.read_file(file, _LARGEST_INDEX)
        said = parse_json_object(content, place, what="index", longest_integer=_LONGEST_INTEGER)
        shard_of: Any = said.get("weight_map")
        if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
            raise refusal(place, expected="a weight_map that maps tensors to files", got=shown(shard_of))
        return shard_of

    def _headers(self, folder: str, shards: list[str]) -> Generator[tuple[str, FileHeader]]:
        """The headers in order; of those that are asked for ahead, no more are held than are asked for at once."""
        waiting: deque[tuple[str, Future[FileHeader]]] = deque()
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as requests:
            try:
                for shard in shards:
                    waiting.append((shard, requests.submit(_read_header, self.repository, f"{folder}{shard}")))
                    if len(waiting) == _REQUESTS_AT_ONCE:
                        name, first = waiting.popleft()
                        yield name, first.result()
                while waiting:
                    name, first = waiting.popleft()
                    yield name, first.result()
            finally:
                requests.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class FileHeader:
    """The header of a file, where its data begin, and the bytes of the whole file."""

    header: Header
    data_start: int
    file_size: int


def _read_header(hub: HubRepository, file: str) -> FileHeader:
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
    return FileHeader(parse_header(content, start.file_size - end, place), end, start.file_size)


@dataclass
class HubWeights:
    """What the headers of the weights say, file by file as they come; nothing else of a header is kept.

    Attributes:
        place: the file, or the index.
        shard_of: the file of every tensor, as the index says; ``None`` where there is one file.
        tensors: the stored tensors by name, in the order of their data, file by file.
        aliases: other names of stored tensors.
        metadata: entries on which all files agree.
        file_of: the file of every tensor and alias.
        data_starts: where the data of each file begin.
        sizes: the bytes of each file.
    """

    place: str
    shard_of: Mapping[str, str] | None
    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    file_of: dict[str, str] = field(default_factory=dict)
    data_starts: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, file: str, found: FileHeader) -> None:
        """Take a header in, once it agrees with the index and with all before it."""
        header, shard_of = found.header, self.shard_of
        for name in (*header.tensors, *header.aliases):
            if name in self.file_of:
                both = f"it in {shown(self.file_of[name])} and {shown(file)}"
                raise refusal(self.place, tensor=name, expected="one shard", got=both)
            if shard_of is not None and name not in shard_of and name in header.tensors:
                raise refusal(self.place, tensor=name, expected="an entry in the index", got=f"one in {shown(file)}")
            self.file_of[name] = file
        said = {key: value for key, value in header.metadata.items() if key != ALIASES_KEY}
        agreed = {key: value for key, value in self.metadata.items() if said.get(key) == value}
        self.metadata = agreed if self.sizes else said
        self.tensors |= header.tensors
        self.aliases |= header.aliases
        self.data_starts[file], self.sizes[file] = found.data_start, found.file_size
        headers = sum(self.data_starts.values())
        if headers > _LARGEST_HEADERS:
            raise refusal(self.place, expected=f"headers of at most {_LARGEST_HEADERS} bytes together", got="more")

    def require_all(self) -> None:
        """Raise :class:`CheckpointError` where the index names a tensor that is not where it says."""
        for name, shard in (self.shard_of or {}).items():
            if self.file_of.get(name) != shard:
                got = f"it in {shown(self.file_of[name])}" if name in self.file_of else "no such tensor there"
                raise refusal(self.place, tensor=name, expected=f"it in {shown(shard)}", got=got)
