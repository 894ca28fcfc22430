"""Weights by their headers alone: how many bytes there are, and whether they are those that a config describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from mila.core.loading import LoadPlan
from mila.core.pieces import NameMap
from mila.errors import CheckpointError
from mila.memory.storage import FLOAT32, FLOAT64, DType
from mila.models.hugging_face.architecture import Architecture
from mila.models.hugging_face.names import HEAD, TABLE
from mila.models.hugging_face.weights import require_layers
from mila.models.language_model import LanguageModelConfig
from mila.planning.target import StoredWeights
from mila.serialization import FORMAT_DTYPES, TensorEntry
from mila.serialization.failures import refusal

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class HeaderTensors:
    """The tensors of safetensors files of which only the headers were read: a source that has no values.

    Attributes:
        path: the file, or the index.
        tensors: the stored tensors by name.
        aliases: other names of stored tensors.
        metadata: what the writer noted beside them.
    """

    path: Path
    tensors: Mapping[str, TensorEntry]
    aliases: Mapping[str, str]
    metadata: Mapping[str, str]

    def entry(self, name: str) -> TensorEntry:
        """The stored tensor that a name or an alias stands for; raises :class:`CheckpointError` without one."""
        found = self.tensors.get(self.aliases.get(name, name))
        if found is None:
            raise refusal(self.path, tensor=name, expected="a tensor of this file", got="no such name")
        return found

    def read(self, name: str) -> Array:
        """Raises :class:`CheckpointError`."""
        self._refuse(name)

    def copy_into(self, name: str, target: Array) -> None:
        """Raises :class:`CheckpointError`."""
        self._refuse(name)

    def copy_range_into(self, name: str, first_element: int, target: Array) -> None:
        """Raises :class:`CheckpointError`."""
        self._refuse(name)

    def drop_pages(self, name: str) -> None:
        """Nothing is mapped."""

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _refuse(self, name: str) -> NoReturn:
        raise refusal(self.path, tensor=name, expected="values", got="a header, which is all that planning reads")


def summarize(source: HeaderTensors) -> StoredWeights:
    """The bytes of all stored tensors, by dtype."""
    sizes: Counter[str] = Counter()
    for entry in source.tensors.values():
        dtype = FORMAT_DTYPES[entry.dtype_name].numpy_dtype
        sizes[entry.dtype_name.lower() if dtype is None else dtype.name] += entry.nbytes
    elements = sum(entry.element_count for entry in source.tensors.values())
    return StoredWeights(sum(sizes.values()), dict(sizes.most_common()), elements)


def dtype_to_compare(source: HeaderTensors) -> DType:
    """One that holds every stored float: whether a value fits a narrower one, only values can tell."""
    is_wide = any(entry.dtype_name == "F64" for entry in source.tensors.values())
    return FLOAT64 if is_wide else FLOAT32


def compare(
    source: HeaderTensors,
    architecture: Architecture,
    config: LanguageModelConfig,
    *,
    head_is_decided: bool,
) -> NameMap:
    """Hold stored names, shapes and dtypes against those of a network, as loading does; no values are read.

    Args:
        source: the headers.
        architecture: how the files call the parameters.
        config: of the network.
        head_is_decided: the caller said whether the head is the token table.

    Returns:
        How the names belong to the parameters, with what a user should be told.

    Raises:
        CheckpointError: one message with every missing, unexpected, misshapen and inconvertible tensor.
    """
    require_layers(source, config.num_layers)  # before components are made of whatever a config says
    network = architecture.network_class("model", config, dtype=dtype_to_compare(source))
    names = architecture.names.resolve(network, {*source.tensors, *source.aliases})
    names = _with_head(names, source, config.tie_word_embeddings, head_is_decided)
    LoadPlan(network, source, names)
    return names


def _with_head(names: NameMap, source: HeaderTensors, is_tied: bool, is_decided: bool) -> NameMap:
    """The map, with the head as the config says it; what only values can settle is a note."""
    table = names.pieces[TABLE][0].name
    has_head = HEAD in source.tensors or HEAD in source.aliases
    if has_head is not is_tied:
        return names
    if not has_head:
        if is_decided:
            return names
        problem = f"the config says that the head is not the token table, and the weights have no {HEAD}"
        return replace(names, problems=(*names.problems, problem))
    problems, notes = names.problems, names.notes
    if is_decided:
        notes = (*notes, f"{HEAD} is not used, as tie_word_embeddings=True says")
    elif not _may_be_equal(source, table):
        problems = (*problems, f"the config says that the head is {table}, and the weights have another {HEAD}")
    elif source.aliases.get(HEAD) != table:
        notes = (*notes, f"the config says that the head is {table}, and {HEAD} is stored too: loading compares them")
    return replace(names, ignored=names.ignored | {HEAD}, problems=problems, notes=notes)


def _may_be_equal(source: HeaderTensors, table: str) -> bool:
    try:
        return source.entry(table).shape == source.entry(HEAD).shape
    except CheckpointError:
        return True  # a table that is missing is a problem of its own
