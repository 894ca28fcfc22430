"""How the names of a model folder belong to the parameters of a network: one table for import and export."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mila.core.component import Component
from mila.core.pieces import NameMap, Piece, PieceMap
from mila.core.state import declared_state
from mila.errors import ConfigurationError
from mila.memory.storage import Shape

_LAYER = re.compile(r"(?<=^block_)\d+(?=\.)")
#: Stands for the number of a layer, in Mila's names and in those of files.
LAYER = "{layer}"

#: The head's weight as files call it, and the token table as the network does.
HEAD, TABLE = "lm_head.weight", "embedding.wte"


@dataclass(frozen=True)
class StoredName:
    """How files call one parameter.

    Attributes:
        own: Mila's name, relative to the network.
        alternatives: names in the file, without the prefix; several in one alternative fill the parameter's rows one
            after the other. Exports use the first alternative.
        transposed: the file holds (columns, rows).
        prefixed: whether the prefix stands before the names.
    """

    own: str
    alternatives: tuple[tuple[str, ...], ...]
    transposed: bool = False
    prefixed: bool = True


@dataclass(frozen=True)
class NameTable:
    """The names of one architecture.

    Attributes:
        stored: of every parameter that a network of the architecture may have.
        prefix: what stands before most names; files of the model without its head lack it.
        ignored: regular expressions of names, without the prefix, of buffers that are no parameters.
        sections: from the config, the rows of each piece of a parameter that some alternative holds in pieces; by
            Mila's name of the component.
    """

    stored: tuple[StoredName, ...]
    prefix: str
    ignored: tuple[str, ...]
    sections: Callable[[Any], Mapping[str, Sequence[int]]]

    def canonical(self, network: Component[Any]) -> PieceMap:
        """The names that an export writes."""
        return {own: pieces[0] for own, pieces in self._alternatives(network, self.prefix).items()}

    def resolve(self, network: Component[Any], available: Collection[str]) -> NameMap:
        """The map of a file with these names, and what is wrong with them."""
        prefix, problems = self._prefix(available)
        pieces: dict[str, tuple[Piece, ...]] = {}
        chosen: defaultdict[str, dict[int, str]] = defaultdict(dict)
        for own, alternatives in self._alternatives(network, prefix).items():
            present = [
                index for index, each in enumerate(alternatives) if any(piece.name in available for piece in each)
            ]
            pieces[own] = alternatives[present[0] if present else 0]
            if len(present) > 1:
                both = " and ".join(_listed(alternatives[index]) for index in present)
                problems.append(f"{own} is there twice, as {both}")
            elif present:
                chosen[_pattern(own)].setdefault(present[0], _listed(pieces[own]))
        problems += [f"mixed names: {' and '.join(mixed.values())}" for mixed in chosen.values() if len(mixed) > 1]
        ignored = frozenset(name for name in available if self._is_ignored(name))
        notes = (f"ignored {len(ignored)} buffers such as {min(ignored)}",) if ignored else ()
        return NameMap(pieces, ignored, tuple(problems), notes)

    def _alternatives(self, network: Component[Any], prefix: str) -> dict[str, list[tuple[Piece, ...]]]:
        table = {each.own: each for each in self.stored}
        sections = self.sections(network.config)
        found = {}
        for own, part, declaration in declared_state(network):
            pattern = _pattern(own)
            if pattern not in table:
                raise ConfigurationError(f"{part.path}: model folders have no name for {declaration.name!r}")
            layer = _LAYER.search(own)
            stored = table[pattern]
            start = prefix if stored.prefixed else ""
            rows = sections.get(pattern.rpartition(".")[0], ())
            found[own] = [
                _pieces(
                    [start + name.replace(LAYER, layer[0] if layer else "") for name in names],
                    declaration.shape,
                    rows,
                    stored.transposed,
                )
                for names in stored.alternatives
            ]
        return found

    def _prefix(self, available: Collection[str]) -> tuple[str, list[str]]:
        """The prefix that the file uses; both ways at once are a problem."""
        first_words = {
            name.partition(".")[0]
            for each in self.stored
            if each.prefixed
            for alternative in each.alternatives
            for name in alternative
        }
        bare = [name for name in available if name.partition(".")[0] in first_words]
        prefixed = [name for name in available if name.startswith(self.prefix)]
        if bare and prefixed:
            mixed = f"{min(prefixed)} with and {min(bare)} without the prefix {self.prefix!r}"
            return self.prefix, [f"mixed names: {mixed}"]
        return ("" if bare else self.prefix), []

    def _is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name.removeprefix(self.prefix)) for pattern in self.ignored)


def linear_names(
    own: str, *stored: str, fused: str | None = None, transposed: bool = False
) -> tuple[StoredName, StoredName]:
    """The weight and the bias of a projection, in one or in several pieces; ``fused`` names the other way."""
    ways = (stored,) if fused is None else (stored, (fused,))
    return (
        StoredName(f"{own}.weight", tuple(tuple(f"{name}.weight" for name in way) for way in ways), transposed),
        StoredName(f"{own}.bias", tuple(tuple(f"{name}.bias" for name in way) for way in ways)),
    )


def _pattern(own: str) -> str:
    return _LAYER.sub(LAYER, own)


def _pieces(names: Sequence[str], shape: Shape, rows: Sequence[int], transposed: bool) -> tuple[Piece, ...]:
    if len(names) == 1:
        return (Piece(names[0], shape[::-1] if transposed else shape, transposed=transposed),)
    starts = [sum(rows[:index]) for index in range(len(names))]
    return tuple(
        Piece(name, (count, *shape[1:]), start) for name, count, start in zip(names, rows, starts, strict=True)
    )


def _listed(pieces: Sequence[Piece]) -> str:
    return ", ".join(piece.name for piece in pieces)
