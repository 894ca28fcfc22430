"""Filling parameters from files: everything is checked before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mila.core import state
from mila.core.pieces import NameMap, Piece
from mila.errors import CheckpointError, ConfigurationError
from mila.memory.declarations import Declaration
from mila.memory.storage import DType
from mila.serialization import ArchiveMode, ArchiveReader, TensorSource, format_dtype

if TYPE_CHECKING:
    from mila.core.component import Component

#: Called with the bytes of the file that were read so far, and with how many there are.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LoadReport:
    """What loading did.

    Attributes:
        loaded: number of tensors.
        converted: names of tensors whose dtype was converted, with the dtype in the file.
        notes: what a user should be told, such as tensors that were ignored.
    """

    loaded: int
    converted: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    """One stored tensor on its way into its place."""

    component: Component[Any]
    declaration: Declaration
    piece: Piece
    is_whole: bool


class _Meter:
    """Counts the bytes that were read, and tells whoever wants to know."""

    def __init__(self, total: int, on_progress: Progress | None) -> None:
        self._done, self._total, self._on_progress = 0, total, on_progress

    def add(self, size: int) -> None:
        self._done += size
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


class LoadPlan:
    """What loading a file into a component will do; made only where all of it fits.

    Args:
        component: built or not.
        source: the file; it must stay open until :meth:`run` has returned.
        names: how the file's names belong to the parameters; the parameters' own names by default.

    Raises:
        CheckpointError: one message with every missing, unexpected, misshapen and inconvertible tensor.
    """

    def __init__(self, component: Component[Any], source: TensorSource, names: NameMap | None = None) -> None:
        self._component = component
        self._source = source
        self._names = names or identity_map(component)
        self._available = {*source.tensors, *source.aliases}
        parts, problems = self._match()
        problems += [f"unexpected {name}" for name in self._unknown()]
        problems += self._names.problems
        if problems:
            raise CheckpointError(f"{source.path}: does not fit {component.path}: " + "; ".join(problems))
        order = {name: position for position, name in enumerate(source.tensors)}
        self._parts = sorted(parts, key=lambda part: order[source.aliases.get(part.piece.name, part.piece.name)])

    def run(self, on_progress: Progress | None = None) -> LoadReport:
        """Fill the parameters, in the order of the file's bytes.

        Where that fails half-way, the component says what it lacks and does not run.

        Raises:
            LifecycleError: the component is not built.
            CheckpointError: the file changed, or can no longer be read.
        """
        self._component.require_built("loading")
        state.count_load(self._component)
        remaining: Counter[tuple[Component[Any], str]] = Counter()
        for part in self._parts:
            part.component._missing[part.component.state_name(part.declaration.name)] = None
            remaining[part.component, part.declaration.name] += 1
        meter = _Meter(sum(self._source.entry(part.piece.name).nbytes for part in self._parts), on_progress)
        converted = {}
        for part in self._parts:
            rows = state.StoredRows.of(self._source, part.piece.name, meter.add)
            if rows.dtype != part.component.stored_parameter(part.declaration.name).dtype:
                converted[part.piece.name] = str(rows.dtype)
            remaining[part.component, part.declaration.name] -= 1
            _store(part, rows, is_last=not remaining[part.component, part.declaration.name])
        return LoadReport(len(self._parts), converted, self._names.notes)

    def _match(self) -> tuple[list[_Part], list[str]]:
        parts: list[_Part] = []
        problems: list[str] = []
        for name, component, declaration in state.declared_state(self._component):
            pieces = self._names.pieces.get(name, ())
            _require_filled(component, declaration, pieces)
            for piece in pieces:
                if piece.name not in self._available:
                    if declaration.companion_of is None:
                        problems.append(f"missing {piece.name}: expected {declaration.dtype.name} {piece.shape}")
                    continue
                part = _Part(component, declaration, piece, len(pieces) == 1 and not piece.transposed)
                reason = self._refuse(part)
                if reason is None:
                    parts.append(part)
                else:
                    problems.append(f"{piece.name}: {reason}")
        return parts, problems

    def _refuse(self, part: _Part) -> str | None:
        """Why a stored tensor cannot be loaded; reads its values only where they may not fit."""
        component, declaration, piece = part.component, part.declaration, part.piece
        entry = self._source.entry(piece.name)
        if tuple(entry.shape) != piece.shape:
            return f"expected shape {piece.shape}, got {tuple(entry.shape)}"
        dtype = self._dtype(piece.name)
        if dtype is None:
            return f"expected {declaration.dtype.name}, got {entry.dtype_name}, which is never converted to it"
        reason = component.refuse_load(declaration, dtype, self._loaded_together(component))
        if reason is not None or dtype == declaration.dtype:
            return reason
        return component.refuse_values(declaration, state.StoredRows.of(self._source, piece.name))

    def _loaded_together(self, component: Component[Any]) -> dict[str, DType | None]:
        """The dtypes in the file of all parameters of one component that are there."""
        prefix = self._component.state_path
        found = {}
        for declaration in component.declared_parameters():
            name = component.state_name(declaration.name)
            pieces = self._names.pieces.get(name[len(prefix) + 1 :] if prefix else name, ())
            if pieces and all(piece.name in self._available for piece in pieces):
                found[declaration.name] = self._dtype(pieces[0].name)
        return found

    def _dtype(self, name: str) -> DType | None:
        """The NumPy dtype of a stored tensor, where there is one."""
        return format_dtype(self._source.entry(name).dtype_name).numpy_dtype

    def _unknown(self) -> Iterator[str]:
        """Stored tensors that neither by their name nor by an alias belong to a parameter."""
        aliases = self._source.aliases
        wanted = {aliases.get(piece.name, piece.name) for pieces in self._names.pieces.values() for piece in pieces}
        wanted |= self._names.ignored
        yield from sorted(name for name in self._source.tensors if name not in wanted)


def identity_map(component: Component[Any]) -> NameMap:
    """The map of a file that calls parameters by their own names."""
    declared = state.declared_state(component)
    return NameMap({name: (Piece(name, declaration.shape),) for name, _, declaration in declared})


def load_tensors(component: Component[Any], source: TensorSource) -> LoadReport:
    """Fill every parameter below ``component`` from ``source``; everything is checked before anything is written.

    Args:
        component: built.
        source: the file, which calls parameters by their own names.

    Raises:
        CheckpointError: one message with every missing, unexpected, misshapen and inconvertible tensor.
    """
    component.require_built("loading")
    return LoadPlan(component, source).run()


def load(component: Component[Any], archive: ArchiveReader, mode: ArchiveMode) -> LoadReport:
    """Read what :func:`mila.core.state.save` wrote; the recorded architecture must be the component's own.

    Of weights alone the dtype may differ: they are converted.
    """
    recorded, own = archive.read_json(state.CONFIG_FILE), state.architecture_of(component)
    if mode is ArchiveMode.WEIGHTS_ONLY:
        own["dtype"] = recorded.get("dtype")
    if recorded != own:
        raise CheckpointError(f"{archive.path}: holds {_shown(recorded)}, and {component.path} is {_shown(own)}")
    if mode is ArchiveMode.ARCHITECTURE:
        return LoadReport(0)
    with archive.open_tensors(state.PARAMETERS_FILE) as source:
        return load_tensors(component, source)


def _store(part: _Part, rows: state.StoredRows, *, is_last: bool) -> None:
    component, declaration = part.component, part.declaration
    target = component.stored_parameter(declaration.name)
    if part.is_whole and rows.dtype != target.dtype:
        component.store_parameter(declaration, rows)
        return
    place = part.piece.of(target)
    device = component.device
    if device.is_host and rows.dtype == place.dtype and place.flags.c_contiguous:
        rows.copy_into(place)  # the bytes go straight to their place
    else:
        state.convert_into(device, place, rows)
    if is_last:
        component.parameter_stored(declaration)


def _require_filled(component: Component[Any], declaration: Declaration, pieces: tuple[Piece, ...]) -> None:
    """A map whose pieces leave a part of a parameter as it was is a mistake of whoever wrote it."""
    if len(pieces) == 1 and pieces[0].shape == declaration.shape and not pieces[0].transposed:
        return
    row = 0
    for piece in pieces:
        columns = piece.shape[:-1] if piece.transposed else piece.shape[1:]
        if piece.first_row != row or columns != declaration.shape[1:]:
            break
        row += piece.rows
    if not pieces or row != declaration.shape[0]:
        raise ConfigurationError(
            f"{component.path}: the name map does not fill {declaration.name!r} of shape {declaration.shape}: {pieces}"
        )


def _shown(architecture: Any) -> str:
    if not isinstance(architecture, dict):
        return repr(architecture)
    return f"{architecture.get('class')} {architecture.get('dtype')} {architecture.get('config')}"
