"""The protocol by which tensors are written, to one file or to many: declare all of them, then hand over their data.

Nothing but a part of the tensor at hand has to be in memory, and nothing is visible under its name until `close`.
"""

from __future__ import annotations

import enum
import math
import operator
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mila.errors import LifecycleError
from mila.serialization.blocks import FinishedAfterBlock
from mila.serialization.conversion import FLOATS
from mila.serialization.dtypes import FormatDType, format_dtype
from mila.serialization.failures import refusal, shown
from mila.serialization.header import ALIASES_KEY, METADATA_KEY

Array = np.ndarray[Any, np.dtype[Any]]


class Declared(NamedTuple):
    """A tensor that will be written: its dtype in the file, its shape, whether other floats are converted to it."""

    dtype: FormatDType
    numpy_dtype: np.dtype[Any]
    shape: tuple[int, ...]
    convert: bool

    @property
    def nbytes(self) -> int:
        """The bytes of its data."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize


@dataclass
class Contents:
    """What a file will hold: its tensors in order, the other names of some ``{alias: name}``, and its metadata."""

    tensors: dict[str, Declared] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


class _Stage(enum.Enum):
    DECLARING = "declaring"
    WRITING = "writing"
    CLOSED = "closed"


class TensorWriter(FinishedAfterBlock):
    """Tensors being written; as a context manager it is closed at the end of the block, or aborted.

    ``declare`` and ``set_metadata``, then ``begin``, then ``write`` for every tensor in the order of declaration, then
    ``close``. An exception inside the block, or `abort`, leaves what was there before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._contents = Contents()
        self._missing: list[str] = []
        self._stage = _Stage.DECLARING

    @property
    def path(self) -> Path:
        """The file or the folder, as errors call it."""
        return self._path

    @property
    def is_closed(self) -> bool:
        """Whether the writer was closed or aborted."""
        return self._stage is _Stage.CLOSED

    def declare(self, name: str, dtype: npt.DTypeLike | str, shape: Sequence[int], *, convert: bool = False) -> None:
        """Announce a tensor.

        Args:
            name: its name in the file.
            dtype: a NumPy dtype, or the format's name for one.
            shape: its extents.
            convert: take arrays of another float dtype too (float64, float32, float16, bfloat16) and convert them,
                each value to the nearest.

        Raises:
            LifecycleError: after `begin`.
            DTypeError: a dtype that the format, or NumPy, lacks.
            CheckpointError: a name that is taken or reserved, or a shape that is none.
        """
        self._require(_Stage.DECLARING, "declare")
        self._check_name(name)
        found = format_dtype(dtype)
        if found.numpy_dtype is None:
            raise refusal(self.path, tensor=name, expected="a dtype that NumPy has", got=found.name)
        try:
            extents = tuple(operator.index(extent) for extent in shape)
        except TypeError:
            raise refusal(self.path, tensor=name, expected="a shape of integers", got=shown(shape)) from None
        if any(extent < 0 for extent in extents):
            raise refusal(self.path, tensor=name, expected="a shape without negative extents", got=shown(extents))
        self._contents.tensors[name] = Declared(found, found.numpy_dtype, extents, convert)

    def declare_alias(self, alias: str, name: str) -> None:
        """Announce another name for a declared tensor, which is stored once.

        Raises:
            LifecycleError: after `begin`.
            CheckpointError: an alias that is taken, or a tensor that was not declared.
        """
        self._require(_Stage.DECLARING, "declare_alias")
        self._check_name(alias)
        if name not in self._contents.tensors:
            raise refusal(self.path, tensor=alias, expected="an alias of a declared tensor", got=shown(name))
        self._contents.aliases[alias] = name

    def set_metadata(self, key: str, value: str) -> None:
        """Note a string in the ``__metadata__`` of every file; a later value for the same key counts.

        Raises:
            LifecycleError: after `begin`.
            CheckpointError: something else than strings, or the reserved key ``mila.aliases``.
        """
        self._require(_Stage.DECLARING, "set_metadata")
        if not isinstance(key, str) or not isinstance(value, str):
            raise refusal(self.path, expected="metadata of strings", got=f"{shown(key)}: {shown(value)}")
        if key == ALIASES_KEY:
            raise refusal(self.path, expected="aliases by declare_alias", got=f"metadata {ALIASES_KEY}")
        self._contents.metadata[key] = value

    def begin(self) -> None:
        """End the declarations; from here on, data.

        Raises:
            LifecycleError: called before.
            CheckpointError: a header that its readers would refuse, or the operating system refuses.
        """
        self._require(_Stage.DECLARING, "begin")
        self._begin()
        self._missing = list(reversed(self._contents.tensors))
        self._stage = _Stage.WRITING

    def write(self, name: str, array: Array) -> None:
        """Write the data of the next declared tensor.

        Any layout comes out right: Fortran order, strides, transposes, broadcasts, reversals, either byte order.

        Raises:
            LifecycleError: before `begin`, after `close`, or not the next tensor in the order of declaration.
            CheckpointError: another shape than declared; another dtype, unless both are floats and ``convert`` was
                declared; a finite value that the conversion would make infinite; or the operating system refuses.
        """
        shape = self._next(name).shape
        if array.shape != shape:
            raise refusal(self.path, tensor=name, expected=f"shape {shown(shape)}", got=shown(array.shape))
        self._take(name, [array])

    def write_rows(self, name: str, blocks: Iterable[Array]) -> None:
        """Write the data of the next declared tensor some rows at a time, so that it need never be whole in memory.

        Args:
            name: the tensor; it has at least one axis.
            blocks: consecutive runs of its rows, ``(rows, ...)``, each as `write` takes arrays.

        Raises:
            LifecycleError: as `write`.
            CheckpointError: as `write`; or too few or too many rows.
        """
        shape = self._next(name).shape
        if not shape:
            raise refusal(self.path, tensor=name, expected="a tensor with rows", got="one without axes")
        self._take(name, self._rows(name, shape, blocks))

    def close(self) -> None:
        """Make what was written visible; nothing happens where it was closed or aborted before.

        Raises:
            LifecycleError: before `begin`; nothing is written.
            CheckpointError: a declared tensor was not written, or the operating system refuses; nothing is written.
        """
        if self._stage is _Stage.CLOSED:
            return
        if self._stage is _Stage.DECLARING:
            self.abort()
            raise LifecycleError(f"{self.path}: close before begin")
        if self._missing:
            name, count = self._missing[-1], len(self._missing)
            self.abort()
            got = f"none of {count} tensors from it on"
            raise refusal(self.path, tensor=name, expected="data before close", got=got)
        self._stage = _Stage.CLOSED
        self._commit()

    def abort(self) -> None:
        """Leave what was there before; nothing happens where the writer was closed or aborted before."""
        if self._stage is not _Stage.CLOSED:
            self._stage = _Stage.CLOSED
            self._abort()

    def finish(self) -> None:
        """`close`, at the end of a block."""
        self.close()

    def _next(self, name: str) -> Declared:
        """Return the declaration of a tensor, which has to be the next one."""
        self._require(_Stage.WRITING, "write")
        if not self._missing or self._missing[-1] != name:
            expected = shown(self._missing[-1]) if self._missing else "no more tensors"
            raise LifecycleError(f"{self.path}: expected {expected} next, got {shown(name)}")
        return self._contents.tensors[name]

    def _take(self, name: str, arrays: Iterable[Array]) -> None:
        """Write the parts of a tensor's data, which together have its shape."""
        self._write(name, (self._of_fitting_dtype(name, array) for array in arrays))
        self._missing.pop()

    def _rows(self, name: str, shape: tuple[int, ...], blocks: Iterable[Array]) -> Iterator[Array]:
        count = 0
        for block in blocks:
            if not block.ndim or block.shape[1:] != shape[1:]:
                expected = f"rows of shape {shown(shape[1:])}"
                raise refusal(self.path, tensor=name, expected=expected, got=f"a block of {shown(block.shape)}")
            count += len(block)
            if count > shape[0]:
                raise refusal(self.path, tensor=name, expected=f"{shape[0]} rows", got="more")
            yield block
        if count < shape[0]:
            raise refusal(self.path, tensor=name, expected=f"{shape[0]} rows", got=str(count))

    def _of_fitting_dtype(self, name: str, array: Array) -> Array:
        declared = self._contents.tensors[name]
        dtype, given = declared.numpy_dtype, array.dtype.newbyteorder("<")
        if given == dtype or (declared.convert and given in FLOATS and dtype in FLOATS):
            return array
        never = ", which is never converted to it" if declared.convert else ""
        raise refusal(self.path, tensor=name, expected=f"dtype {dtype}", got=f"{array.dtype}{never}")

    @abstractmethod
    def _begin(self) -> None:
        """Check the contents and write what comes before the data."""

    @abstractmethod
    def _write(self, name: str, arrays: Iterable[Array]) -> None:
        """Write the parts of a tensor's data, in row-major order; taking the next may raise."""

    @abstractmethod
    def _commit(self) -> None:
        """Make everything visible, or abort and raise."""

    @abstractmethod
    def _abort(self) -> None:
        """Remove what was written."""

    def _require(self, stage: _Stage, call: str) -> None:
        if self._stage is not stage:
            raise LifecycleError(f"{self.path}: {call} needs a writer that is {stage.value}, it is {self._stage.value}")

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or name == METADATA_KEY:
            raise refusal(self.path, expected=f"a name other than {METADATA_KEY}", got=shown(name))
        if name in self._contents.tensors or name in self._contents.aliases:
            raise refusal(self.path, tensor=name, expected="a name that is not declared yet", got="a second one")
