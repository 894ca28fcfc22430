"""Reading one safetensors file without trust.

The whole header is validated before anything is mapped or any tensor's memory is allocated. Tensors are then either
looked at in place (`SafetensorsFile.read`) or copied by plain reads into memory that somebody else owns (`copy_into`),
which a file truncated meanwhile turns into an error instead of a signal.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mila.errors import LifecycleError
from mila.serialization.blocks import ClosedAfterBlock
from mila.serialization.dtypes import FORMAT_DTYPES
from mila.serialization.failures import operating_system_refusal, refusal, shown
from mila.serialization.header import (
    DEFAULT_HEADER_LIMIT,
    PREFIX_BYTES,
    Header,
    TensorEntry,
    header_length,
    parse_header,
)
from mila.serialization.paths import checked_path
from mila.serialization.regular_file import FileIdentity, fill, open_regular_file

Array = np.ndarray[Any, np.dtype[Any]]

_START_BYTES = 64
_TILE_BYTES = 1 << 24


class SafetensorsFile(ClosedAfterBlock):
    """A safetensors file open for reading; as a context manager it is closed at the end of the block.

    Every read first checks that the path still leads to the file that was opened, unchanged. Views stay valid after
    `close`, and after the path was given to another file; a file that is changed in place changes them too.

    Args:
        path: the file.
        header_limit: the longest header that is accepted, in bytes.

    Raises:
        CheckpointError: the file cannot be opened, or a rule of the format does not hold.
    """

    def __init__(self, path: Path | str, header_limit: int = DEFAULT_HEADER_LIMIT) -> None:
        self._path = checked_path(path)
        self._absolute_path = self._path.absolute()
        self._lock = threading.Lock()
        self._map: mmap.mmap | None = None
        self._file = open_regular_file(self._path)
        try:
            self._identity = FileIdentity.of(os.fstat(self._file.fileno()))
            self._header = self._read_header(header_limit)
        except OSError as error:
            self._file.close()
            raise operating_system_refusal(path, "could not be read", error) from error
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> Path:
        """The file, as it was named."""
        return self._path

    @property
    def metadata(self) -> Mapping[str, str]:
        """The file's ``__metadata__``; empty where it has none."""
        return self._header.metadata

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """The stored tensors in the order of their data, aliases not among them."""
        return self._header.tensors

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names of stored tensors: ``{alias: name}``."""
        return self._header.aliases

    def entry(self, name: str) -> TensorEntry:
        """Return the stored tensor that a name or an alias stands for.

        Raises:
            CheckpointError: the file has neither.
        """
        found = self.tensors.get(self.aliases.get(name, name))
        if found is None:
            raise refusal(self.path, tensor=name, expected="a tensor of this file", got="no such name")
        return found

    def read(self, name: str) -> Array:
        """Return a read-only array of a tensor, in place where its data is aligned for its dtype, else a copy.

        Raises:
            LifecycleError: the file was closed.
            CheckpointError: no such tensor, a dtype that NumPy lacks, or a file that changed since it was opened.
        """
        entry = self.entry(name)
        dtype = self._numpy_dtype(entry)
        self._check_unchanged()
        start = self._data_start + entry.begin
        if entry.nbytes and start % dtype.alignment == 0:
            content = np.frombuffer(self._mapped(), np.uint8, count=entry.nbytes, offset=start)
        else:
            content = np.empty(entry.nbytes, np.uint8)
            self._fill(entry, start, content)
        _check_booleans(self.path, entry, content)
        content.flags.writeable = False
        return content.view(dtype).reshape(entry.shape)

    def copy_into(self, name: str, target: Array) -> None:
        """Copy a tensor into a contiguous array of the same dtype and shape, without memory of its own.

        Raises:
            LifecycleError: the file was closed.
            CheckpointError: no such tensor, another dtype or shape, or a file that changed since it was opened; a
                file that changes during the copy leaves a part of it in `target`.
        """
        entry = self.entry(name)
        if target.shape != entry.shape:
            raise refusal(self.path, tensor=name, expected=f"shape {shown(target.shape)}", got=shown(entry.shape))
        self._copy(entry, 0, target)
        self.drop_pages(name)

    def copy_range_into(self, name: str, first_element: int, target: Array) -> None:
        """Copy a part of a tensor: as many elements as `target` has, counted in row-major order.

        With a small `target` this reads a tensor of any size by tiles, to convert it on the way.

        Raises:
            LifecycleError: the file was closed.
            CheckpointError: no such tensor, another dtype, elements that it does not have, or a changed file.
        """
        entry = self.entry(name)
        if not 0 <= first_element <= entry.element_count - target.size:
            got = f"{target.size} from {first_element} on"
            raise refusal(self.path, tensor=name, expected=f"a part of {entry.element_count} elements", got=got)
        self._copy(entry, first_element, target)

    def drop_pages(self, name: str) -> None:
        """Give the mapped pages of a tensor back to the system; a view of it reads them from the file again."""
        entry = self.entry(name)
        if self._map is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        begin = self._data_start + entry.begin
        first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (begin + entry.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first, length)

    def close(self) -> None:
        """Close the file. Views keep the mapping alive for as long as they live."""
        self._map = None
        self._file.close()

    def _read_header(self, header_limit: int) -> Header:
        start = bytearray(min(_START_BYTES, self._identity.size))
        self._read_exactly(0, start)
        length = header_length(bytes(start), self._identity.size, self.path, header_limit)
        text = bytearray(length)
        self._read_exactly(PREFIX_BYTES, text)
        self._data_start = PREFIX_BYTES + length
        return parse_header(bytes(text), self._identity.size - self._data_start, self.path)

    def _copy(self, entry: TensorEntry, first_element: int, target: Array) -> None:
        dtype = self._numpy_dtype(entry)
        if target.dtype != dtype:
            raise refusal(self.path, tensor=entry.name, expected=f"dtype {target.dtype}", got=str(dtype))
        if not target.flags.c_contiguous or not target.flags.writeable:
            got = "one that is not contiguous or not writable"
            raise refusal(self.path, tensor=entry.name, expected="a contiguous, writable target", got=got)
        self._check_unchanged()
        start = self._data_start + entry.begin + first_element * dtype.itemsize
        self._fill(entry, start, target.reshape(-1).view(np.uint8))
        self._check_unchanged()

    def _fill(self, entry: TensorEntry, start: int, content: Array) -> None:
        for first in range(0, content.size, _TILE_BYTES):
            tile = content[first : first + _TILE_BYTES]
            try:
                self._read_exactly(start + first, tile.data)
            except OSError as error:
                raise operating_system_refusal(self.path, f"tensor {shown(entry.name)} not read", error) from error
            _check_booleans(self.path, entry, tile)

    def _read_exactly(self, offset: int, buffer: bytearray | memoryview) -> None:
        with self._lock:
            lacking = fill(self._file, offset, memoryview(buffer))
        if lacking:
            got = f"{lacking} bytes fewer: it was truncated since it was opened"
            raise refusal(self.path, expected=f"{self._identity.size} bytes", got=got)

    def _mapped(self) -> mmap.mmap:
        with self._lock:
            if self._map is None:
                try:
                    self._map = mmap.mmap(self._file.fileno(), self._identity.size, access=mmap.ACCESS_READ)
                except (OSError, ValueError) as error:
                    raise refusal(self.path, expected="a file that can be mapped", got=str(error)) from error
            return self._map

    def _check_unchanged(self) -> None:
        if self._file.closed:
            raise LifecycleError(f"{self.path}: read of a file that was closed")
        self._identity.require_at(self._absolute_path, self.path)

    def _numpy_dtype(self, entry: TensorEntry) -> np.dtype[Any]:
        dtype = FORMAT_DTYPES[entry.dtype_name].numpy_dtype
        if dtype is None:
            got = f"{entry.dtype_name}, which packs its elements below a byte"
            raise refusal(self.path, tensor=entry.name, expected="a dtype that NumPy has", got=got)
        return dtype


def _check_booleans(path: Path, entry: TensorEntry, content: Array) -> None:
    """Check that truth values are stored as 0 or 1: NumPy's answers for any other byte contradict each other."""
    if entry.dtype_name == "BOOL" and content.size and content.max() > 1:
        raise refusal(path, tensor=entry.name, expected="truth values of 0 and 1", got=f"a byte of {content.max()}")
