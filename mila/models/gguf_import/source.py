"""An open GGUF file: its metadata by key and kind, and its tensors' bytes by plain reads."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mila.errors import CheckpointError
from mila.models.gguf_import.ggml_types import to_float32
from mila.models.gguf_import.header import TensorInfo, Value, parse_header
from mila.serialization.blocks import ClosedAfterBlock
from mila.serialization.failures import operating_system_refusal, refusal, shown
from mila.serialization.paths import checked_path
from mila.serialization.regular_file import FileIdentity, fill, open_regular_file

Array = np.ndarray[Any, np.dtype[Any]]

_READ_BYTES = 1 << 22
_Kind = TypeVar("_Kind", bool, str, list[str])


class GgufSource(ClosedAfterBlock):
    """A GGUF file open for reading, its header checked; as a context manager it is closed at the end of the block.

    Tensors are read, not mapped: a file that is truncated meanwhile is an error instead of a signal, and no page stays.

    Raises:
        CheckpointError: the file cannot be opened, or a rule of the format does not hold.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = checked_path(path)
        self._absolute_path = self.path.absolute()
        self._file = open_regular_file(self.path)
        try:
            self._identity = FileIdentity.of(os.fstat(self._file.fileno()))
            buffered = io.BufferedReader(self._file)
            header = parse_header(buffered, self._identity.size, self.path)
            buffered.detach()
        except OSError as error:
            self._file.close()
            raise operating_system_refusal(path, "could not be read", error) from error
        except BaseException:
            self._file.close()
            raise
        self.metadata: Mapping[str, Value] = header.metadata
        self.tensors: Mapping[str, TensorInfo] = header.tensors

    def has(self, key: str) -> bool:
        """Whether the metadata has the key."""
        return key in self.metadata

    def integer(self, key: str, *, minimum: int = 0, maximum: int | None = None) -> int:
        """Return a whole number of the metadata.

        Raises:
            CheckpointError: the key is missing, or its value is something else or out of range.
        """
        value = self._required(key)
        if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
            upper = "" if maximum is None else f" to {maximum}"
            raise self.refuse(key, f"a whole number from {minimum}{upper}", shown(_short(value)))
        return value

    def number(self, key: str) -> float:
        """Return a finite number above 0 of the metadata.

        Raises:
            CheckpointError: the key is missing, or its value is something else.
        """
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.refuse(key, "a number above 0", shown(_short(value)))
        return float(value)

    def text(self, key: str) -> str:
        """Return a text of the metadata.

        Raises:
            CheckpointError: the key is missing, or its value is something else.
        """
        return self._of_type(key, str, "a text")

    def flag(self, key: str) -> bool:
        """Return a truth value of the metadata.

        Raises:
            CheckpointError: the key is missing, or its value is something else.
        """
        return self._of_type(key, bool, "a truth value")

    def texts(self, key: str) -> list[str]:
        """Return an array of texts of the metadata.

        Raises:
            CheckpointError: the key is missing, or its value is something else.
        """
        return self._of_type(key, list, "an array of texts")

    def numbers(self, key: str, count: int) -> Array:
        """Return an array of `count` numbers of the metadata.

        Raises:
            CheckpointError: the key is missing, or its value is something else.
        """
        value = self._required(key)
        if not isinstance(value, np.ndarray) or value.size != count:
            raise self.refuse(key, f"an array of {count} numbers", shown(_short(value)))
        return value

    def refuse(self, key: str, expected: str, got: str, hint: str | None = None) -> CheckpointError:
        """Return the error for an entry of the metadata."""
        return refusal(f"{self.path}: metadata {key}", expected=expected, got=got, hint=hint)

    def raw_rows(self, tensor: TensorInfo, first: int, last: int) -> Array:
        """Return the stored bytes of the rows from `first` to before `last`: uint8 (rows, bytes of a row)."""
        width = tensor.row_bytes
        return self._bytes(tensor, first * width, (last - first) * width).reshape(last - first, width)

    def rows(self, tensor: TensorInfo, first: int, last: int) -> Array:
        """Return the rows from `first` to before `last` of a tensor with one or two axes: float32 (rows, columns).

        A row runs along the last axis; a tensor with one axis has one row.

        Raises:
            CheckpointError: the file is shorter than it was, or cannot be read.
        """
        return to_float32(self.raw_rows(tensor, first, last), tensor.kind)

    def columns(self, tensor: TensorInfo, first: int, last: int) -> Array:
        """Return the columns from `first` to before `last`, both multiples of a block: float32 (all rows, columns).

        Raises:
            CheckpointError: the file is shorter than it was, or cannot be read.
        """
        kind = tensor.kind
        begin = first // kind.block_elements * kind.block_bytes
        width = (last - first) // kind.block_elements * kind.block_bytes
        rows = tensor.shape[0]
        content = np.empty((rows, width), np.uint8)
        # Whole rows and what is needed of them: far fewer reads than one for each row.
        step = max(1, _READ_BYTES // tensor.row_bytes)
        for top in range(0, rows, step):
            bottom = min(top + step, rows)
            content[top:bottom] = self.raw_rows(tensor, top, bottom)[:, begin : begin + width]
        return to_float32(content, kind)

    def check_unchanged(self) -> None:
        """Check that the file is still the one that was opened.

        Raises:
            CheckpointError: it was replaced, changed or removed.
        """
        self._identity.require_at(self._absolute_path, self.path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _required(self, key: str) -> Value:
        if key not in self.metadata:
            raise refusal(self.path, expected=f"metadata {key}", got="none")
        return self.metadata[key]

    def _of_type(self, key: str, kind: type[_Kind], expected: str) -> _Kind:
        value = self._required(key)
        if not isinstance(value, kind):
            raise self.refuse(key, expected, shown(_short(value)))
        return value

    def _bytes(self, tensor: TensorInfo, begin: int, count: int) -> Array:
        content = np.empty(count, np.uint8)
        try:
            lacking = fill(self._file, tensor.begin + begin, content.data)
        except OSError as error:
            raise operating_system_refusal(self.path, f"tensor {shown(tensor.name)} not read", error) from error
        if lacking:
            got = f"{lacking} fewer: the file was truncated since it was opened"
            raise refusal(self.path, tensor=tensor.name, expected=f"{count} bytes", got=got)
        return content


def _short(value: Value) -> object:
    return f"an array of {len(value)}" if isinstance(value, np.ndarray | list) else value
