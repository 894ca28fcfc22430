"""What every place to read tensors from offers: one file, or the shards that an index holds together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from mila.serialization.header import TensorEntry


class TensorSource(Protocol):
    """Named tensors that can be read; a context manager that closes its files."""

    @property
    def path(self) -> Path:
        """The file, or the index."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the writer noted beside the tensors."""

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """The stored tensors, in the order in which reading is fastest."""

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names of stored tensors; wherever a name is asked for, these serve as well."""

    def entry(self, name: str) -> TensorEntry:
        """Return the stored tensor that a name or an alias stands for."""

    def read(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a read-only view of a tensor."""

    def copy_into(self, name: str, target: np.ndarray[Any, np.dtype[Any]]) -> None:
        """Copy a tensor into an array of the same dtype and shape."""

    def copy_range_into(self, name: str, first_element: int, target: np.ndarray[Any, np.dtype[Any]]) -> None:
        """Copy as many elements as `target` has, from `first_element` of the flat tensor on."""

    def drop_pages(self, name: str) -> None:
        """Let go of the memory that reading a tensor's view has filled."""

    def close(self) -> None:
        """Close the files; views that were returned stay valid."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
