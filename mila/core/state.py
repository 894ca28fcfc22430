"""Parameters in and out: strict loading, conversion between float dtypes, and saving in two passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import ml_dtypes
import numpy as np

from mila.errors import CheckpointError, ConfigurationError, DTypeError, ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration
from mila.memory.storage import DType, Shape
from mila.serialization import (
    ArchiveMode,
    ArchiveReader,
    ArchiveWriter,
    SafetensorsWriter,
    TensorSource,
    format_dtype,
)

if TYPE_CHECKING:
    from mila.core.component import Component

#: Float dtypes that convert to each other, with their largest finite value.
_LARGEST: dict[DType, float] = {
    np.dtype(np.float64): float(np.finfo(np.float64).max),
    np.dtype(np.float32): float(np.finfo(np.float32).max),
    np.dtype(np.float16): 65504.0,
    np.dtype(ml_dtypes.bfloat16): 2.0**127 * (2 - 2.0**-7),
}
_CHUNK = 1 << 18
#: Names under which a component stands in an archive.
CONFIG_FILE = "config"
PARAMETERS_FILE = "parameters"


class TensorSavePass(Enum):
    """Saving declares every tensor first and writes the bytes afterwards, so that nothing is held twice."""

    DECLARE = "declare"
    WRITE = "write"


@dataclass(frozen=True)
class LoadReport:
    """What loading did.

    Attributes:
        loaded: number of tensors.
        converted: names of tensors whose dtype was converted, with the dtype in the file.
    """

    loaded: int
    converted: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------- conversion


def refuse_conversion(source: DType, target: DType) -> str | None:
    """Why values of ``source`` may not be stored as ``target``; ``None`` when they may."""
    if source == target or (source in _LARGEST and target in _LARGEST):
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
    """A tensor in a file; rows are read when they are asked for, and nothing is kept."""

    source: TensorSource
    name: str
    dtype: DType
    shape: Shape

    def __getitem__(self, rows: slice, /) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        array: Array = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        self.source.copy_range_into(self.name, start * math.prod(self.shape[1:]), array.reshape(-1))
        return array


def row_blocks(values: Rows) -> Iterator[tuple[int, Array]]:
    """Some rows of ``values`` at a time, with the index of the first."""
    rows = max(1, _CHUNK // max(1, math.prod(values.shape[1:])))
    for start in range(0, values.shape[0], rows):
        yield start, values[start : start + rows]


def convert_into(target: Array, values: Rows) -> None:
    """Copy ``values`` into ``target``, some rows at a time."""
    target = target.reshape(values.shape)
    for start, block in row_blocks(values):
        target[start : start + len(block)] = block


def overflowing(values: Rows, target: DType) -> bool:
    """Whether a finite value of ``values`` would become infinite as ``target``."""
    if target not in _LARGEST or values.dtype not in _LARGEST:
        return False
    limit = _LARGEST[target]
    if _LARGEST[values.dtype] <= limit:
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
        for declaration in part.parameters():
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
    part.store_parameter(declaration, values)


def load_tensors(component: Component[Any], source: TensorSource, prefix: str = "") -> LoadReport:
    """Fill every parameter below ``component`` from ``source``; everything is checked before anything is written.

    Raises:
        CheckpointError: one message with every missing, unexpected, misshapen and inconvertible tensor.
    """
    component.require_built("load_tensors")
    start = f"{prefix}." if prefix else ""
    known = {start + name: (part, declaration) for name, part, declaration in declared_state(component)}
    available = {*source.tensors, *source.aliases}
    _require_loadable(component, source, known, available)
    converted = {}
    order = {name: position for position, name in enumerate(source.tensors)}
    names = sorted((n for n in known if n in available), key=lambda n: order[source.aliases.get(n, n)])
    for name in names:  # where reading fails half-way, the network says what it lacks
        part, declaration = known[name]
        part._missing[part.state_name(declaration.name)] = None
    for name in names:
        part, declaration = known[name]
        target = part.parameter_array(declaration.name)
        dtype = _stored_dtype(source, name)
        if dtype == target.dtype:  # the bytes go straight to their place
            source.copy_into(name, target)
            part.parameter_stored(declaration)
        else:
            converted[name] = str(dtype)
            part.store_parameter(declaration, _stored_rows(source, name, dtype))
    return LoadReport(len(names), converted)


def _require_loadable(
    component: Component[Any],
    source: TensorSource,
    known: Mapping[str, tuple[Component[Any], Declaration]],
    available: set[str],
) -> None:
    problems: list[str] = []
    for name, (part, declaration) in known.items():
        if name not in available:
            if declaration.companion_of is None:
                problems.append(f"missing {name}: expected {declaration.dtype.name} {declaration.shape}")
            continue
        shape = tuple(source.entry(name).shape)
        if shape != declaration.shape:
            problems.append(f"{name}: expected shape {declaration.shape}, got {shape}")
            continue
        reason = _refuse_stored(part, declaration, source, name, available)
        if reason is not None:
            problems.append(f"{name}: {reason}")
    problems += [f"unexpected {name}" for name in sorted(_unknown(source, known))]
    if problems:
        raise CheckpointError(f"{source.path}: does not fit {component.path}: " + "; ".join(problems))


def _refuse_stored(
    part: Component[Any], declaration: Declaration, source: TensorSource, name: str, available: set[str]
) -> str | None:
    """Why a stored tensor of the right shape cannot be loaded; reads its values only where they may not fit."""
    dtype = _stored_dtype(source, name)
    if dtype is None:
        return f"expected {declaration.dtype.name}, got {source.entry(name).dtype_name}, which is never converted to it"
    prefix = name[: len(name) - len(declaration.name)]
    siblings = (d.name for d in part.parameters() if prefix + d.name in available)
    together = {sibling: _stored_dtype(source, prefix + sibling) for sibling in siblings}
    reason = part.refuse_load(declaration, dtype, together)
    if reason is not None or dtype == declaration.dtype:
        return reason
    return part.refuse_values(declaration, _stored_rows(source, name, dtype))


def _stored_rows(source: TensorSource, name: str, dtype: DType | None) -> StoredRows:
    if dtype is None:
        raise CheckpointError(f"{source.path}: {name} has a dtype that cannot be converted")
    return StoredRows(source, name, dtype, tuple(source.entry(name).shape) or (1,))


def _stored_dtype(source: TensorSource, name: str) -> DType | None:
    """The NumPy dtype of a stored tensor, where there is one."""
    return format_dtype(source.entry(name).dtype_name).numpy_dtype


def _unknown(source: TensorSource, known: Iterable[str]) -> set[str]:
    """Stored tensors that neither by their name nor by an alias are parameters."""
    wanted = {source.aliases.get(name, name) for name in known}
    return {name for name in source.tensors if name not in wanted}


# ---------------------------------------------------------------------- saving


def save_flat_tensors(
    component: Component[Any], writer: SafetensorsWriter, prefix: str, save_pass: TensorSavePass
) -> None:
    """Declare, or write, every parameter below ``component``."""
    component.require_built("save_flat_tensors")
    require_serializable(component)
    start = f"{prefix}." if prefix else ""
    for name, part, declaration in declared_state(component):
        if save_pass is TensorSavePass.DECLARE:
            writer.declare(start + name, declaration.dtype, declaration.shape)
        else:
            writer.write(start + name, part.parameter_array(declaration.name))


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


def load(component: Component[Any], archive: ArchiveReader, mode: ArchiveMode) -> LoadReport:
    """Read what :func:`save` wrote; the recorded architecture must be the component's own.

    Of weights alone the dtype may differ: they are converted.
    """
    recorded, own = archive.read_json(CONFIG_FILE), architecture_of(component)
    if mode is ArchiveMode.WEIGHTS_ONLY:
        own["dtype"] = recorded.get("dtype")
    if recorded != own:
        raise CheckpointError(f"{archive.path}: holds {_shown(recorded)}, and {component.path} is {_shown(own)}")
    if mode is ArchiveMode.ARCHITECTURE:
        return LoadReport(0)
    with archive.open_tensors(PARAMETERS_FILE) as source:
        return load_tensors(component, source)


def architecture_of(component: Component[Any]) -> dict[str, Any]:
    """What a file has to say to construct the component again, its name aside."""
    return {
        "component_type": component.component_type.value,
        "class": type(component).__name__,
        "dtype": component.dtype.name,
        "config": component.config.model_dump(mode="json"),
    }


def _shown(architecture: Any) -> str:
    if not isinstance(architecture, dict):
        return repr(architecture)
    return f"{architecture.get('class')} {architecture.get('dtype')} {architecture.get('config')}"
