"""Parameters by name: conversion between float dtypes, loading one of them, and saving in two passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from mila.core.pieces import Piece, PieceMap
from mila.devices.device import Device
from mila.errors import CheckpointError, ConfigurationError, DTypeError, ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration
from mila.memory.storage import DType, Shape
from mila.serialization import (
    ArchiveMode,
    ArchiveWriter,
    TensorSource,
    TensorWriter,
    format_dtype,
)
from mila.serialization.conversion import FLOATS

if TYPE_CHECKING:
    from mila.core.component import Component

_CHUNK = 1 << 18
_READ = 1 << 22
#: Names under which a component stands in an archive.
CONFIG_FILE = "config"
PARAMETERS_FILE = "parameters"


class TensorSavePass(Enum):
    """Saving declares every tensor first and writes the bytes afterwards, so that nothing is held twice."""

    DECLARE = "declare"
    WRITE = "write"


# ---------------------------------------------------------------------- conversion


def refuse_conversion(source: DType, target: DType) -> str | None:
    """Why values of ``source`` may not be stored as ``target``; ``None`` when they may."""
    if source == target or (source in FLOATS and target in FLOATS):
        return None
    return f"expected {target.name}, got {source.name}, which is never converted to it"


class Rows(Protocol):
    """An array, or a tensor in a file that is read some rows at a time: what conversions take."""

    @property
    def dtype(self) -> DType:
        """Dtype of the values."""

    @property
    def shape(self) -> Shape:
        """At least one axis."""

    def __getitem__(self, rows: slice, /) -> Array: ...


@dataclass(frozen=True)
class StoredRows:
    """A tensor in a file; rows are read when they are asked for, and nothing is kept.

    Attributes:
        source: the file.
        name: of the tensor.
        dtype: of its values.
        shape: at least one axis.
        on_read: called with the number of bytes of every read.
    """

    source: TensorSource
    name: str
    dtype: DType
    shape: Shape
    on_read: Callable[[int], None] | None = None

    @classmethod
    def of(cls, source: TensorSource, name: str, on_read: Callable[[int], None] | None = None) -> Self:
        """Those of a tensor of any shape.

        Raises:
            CheckpointError: no such tensor, or a dtype that NumPy lacks.
        """
        entry = source.entry(name)
        dtype = format_dtype(entry.dtype_name).numpy_dtype
        if dtype is None:
            raise CheckpointError(f"{source.path}: {name}: expected a dtype that NumPy has, got {entry.dtype_name}")
        return cls(source, name, dtype, tuple(entry.shape) or (1,), on_read)

    def __getitem__(self, rows: slice, /) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        array: Array = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        self._read(start * math.prod(self.shape[1:]), array.reshape(-1))
        return array

    def copy_into(self, target: Array) -> None:
        """Copy all of it into a contiguous array of its own dtype and size, by tiles but without memory of its own."""
        flat = target.reshape(-1)
        for start in range(0, flat.size, _READ):
            self._read(start, flat[start : start + _READ])

    def _read(self, start: int, target: Array) -> None:
        self.source.copy_range_into(self.name, start, target)
        if self.on_read is not None:
            self.on_read(target.nbytes)


def row_blocks(values: Rows) -> Iterator[tuple[int, Array]]:
    """Some rows of ``values`` at a time, with the index of the first."""
    rows = max(1, _CHUNK // max(1, math.prod(values.shape[1:])))
    for start in range(0, values.shape[0], rows):
        yield start, values[start : start + rows]


def convert_into(device: Device, target: Array, values: Rows) -> None:
    """Copy ``values`` into ``target``, an array of ``device`` or a transposed one, some rows at a time."""
    if not device.is_host and not target.flags.c_contiguous:
        columns = np.empty(target.T.shape, target.dtype)  # the device takes whole rows of its own
        for start, block in row_blocks(values):
            columns.T[start : start + len(block)] = block
        device.upload(target.T, columns)
        return
    target = target.reshape(values.shape)
    for start, block in row_blocks(values):
        device.upload(target[start : start + len(block)], block)


def write_array(device: Device, writer: TensorWriter, name: str, array: Array) -> None:
    """Write an array of ``device``, or a transposed one; what is not on the host comes some rows at a time."""
    if device.is_host:
        writer.write(name, array)
    elif array.ndim and array.flags.c_contiguous:
        writer.write_rows(name, (device.download(rows) for _, rows in row_blocks(array)))
    else:
        writer.write(name, device.download(array.T).T)


def overflowing(values: Rows, target: DType) -> bool:
    """Whether a finite value of ``values`` would become infinite as ``target``."""
    if target not in FLOATS or values.dtype not in FLOATS:
        return False
    limit = FLOATS[target]
    if FLOATS[values.dtype] <= limit:
        return False
    for _, block in row_blocks(values):
        magnitudes = np.abs(block.astype(np.float64))
        if bool(np.any((magnitudes > limit) & np.isfinite(magnitudes))):
            return True
    return False


# ---------------------------------------------------------------------- names


def declared_state(component: Component[Any]) -> Iterator[tuple[str, Component[Any], Declaration]]:
    """Every parameter, companions included, by its name relative to ``component``."""
    prefix = component.state_path
    for part in component.walk():
        for declaration in part.declared_parameters():
            name = part.state_name(declaration.name)
            yield (name[len(prefix) + 1 :] if prefix else name), part, declaration


def require_serializable(component: Component[Any]) -> None:
    """Raise :class:`ConfigurationError` where two parameters have one name."""
    seen: set[str] = set()
    for name, part, _ in declared_state(component):
        if name in seen:
            raise ConfigurationError(f"{part.path}: two parameters are called {name!r}")
        seen.add(name)


# ---------------------------------------------------------------------- loading


def load_parameter(component: Component[Any], name: str, array: Array) -> None:
    """Store one array; see :meth:`Component.load_parameter`."""
    component.require_built("load_parameter")
    known = {key: (part, declaration) for key, part, declaration in declared_state(component)}
    if name not in known:
        raise CheckpointError(f"{component.path}: no parameter {name!r}; there are {', '.join(known) or 'none'}")
    part, declaration = known[name]
    array = np.asarray(array)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    where = f"{part.path}: parameter {declaration.name!r}"
    if array.shape != declaration.shape:
        raise ShapeError(f"{where}: expected shape {declaration.shape}, got {array.shape}")
    values = np.atleast_1d(array)
    reason = part.refuse_load(declaration, array.dtype, None) or part.refuse_values(declaration, values)
    if reason is not None:
        raise DTypeError(f"{where}: {reason}")
    count_load(component)
    part.store_parameter(declaration, values)


def count_load(component: Component[Any]) -> None:
    """Tell what depends on the parameters, such as a cache, that they are about to change."""
    execution = component.root._execution
    if execution is not None:
        execution.parameter_loads += 1


# ---------------------------------------------------------------------- saving


def save_flat_tensors(
    component: Component[Any],
    writer: TensorWriter,
    prefix: str,
    save_pass: TensorSavePass,
    *,
    pieces: PieceMap | None = None,
    dtype: DType | None = None,
) -> None:
    """Declare, or write, every parameter below ``component``.

    Args:
        component: built.
        writer: where to.
        prefix: what stands before the parameters' own names.
        save_pass: whether to declare or to write.
        pieces: how the file calls them, where it does not call them by their own names.
        dtype: in the file; floats are converted to it. By default each parameter's own.
    """
    component.require_built("saving")
    require_serializable(component)
    start = f"{prefix}." if prefix else ""
    for name, part, declaration in declared_state(component):
        for piece in (Piece(start + name, declaration.shape),) if pieces is None else pieces[name]:
            if save_pass is TensorSavePass.WRITE:
                stored = piece.of(part.stored_parameter(declaration.name))
                write_array(component.device, writer, piece.name, stored)
            else:
                writer.declare(piece.name, dtype or declaration.dtype, piece.shape, convert=dtype is not None)


def save(component: Component[Any], archive: ArchiveWriter, mode: ArchiveMode) -> None:
    """Write the config, and the parameters unless only the architecture is asked for."""
    archive.write_json(CONFIG_FILE, architecture_of(component))
    if mode is ArchiveMode.ARCHITECTURE:
        return
    component.require_built("save_")
    archive.write_tensors(
        PARAMETERS_FILE,
        [(name, d.dtype, d.shape) for name, _, d in declared_state(component)],
        lambda writer: save_flat_tensors(component, writer, "", TensorSavePass.WRITE),
    )


def architecture_of(component: Component[Any]) -> dict[str, Any]:
    """What a file has to say to construct the component again, its name aside."""
    return {
        "component_type": component.component_type.value,
        "class": type(component).__name__,
        "dtype": component.dtype.name,
        "config": component.config.model_dump(mode="json"),
    }
