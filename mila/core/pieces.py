"""Where the parameters of a component stand in a file: under which names, in which rows, in which orientation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mila.kernels.signatures import Array
from mila.memory.storage import Shape


@dataclass(frozen=True)
class Piece:
    """A stored tensor that holds some rows of a parameter.

    Attributes:
        name: its name in the file.
        shape: its shape in the file.
        first_row: the first row (axis 0) of the parameter that it fills.
        transposed: the file holds it as (columns, rows).
    """

    name: str
    shape: Shape
    first_row: int = 0
    transposed: bool = False

    @property
    def rows(self) -> int:
        """How many rows of the parameter it fills."""
        return self.shape[-1] if self.transposed else self.shape[0]

    def of(self, parameter: Array) -> Array:
        """Its part of the parameter, a view in the file's shape."""
        if parameter.shape == self.shape and not self.transposed:
            return parameter
        part = parameter[self.first_row : self.first_row + self.rows]
        return part.T if self.transposed else part


#: The pieces of every parameter, by its name relative to the component; in order they fill it completely.
PieceMap = Mapping[str, tuple[Piece, ...]]


@dataclass(frozen=True)
class NameMap:
    """How the names of one file belong to the parameters of one component.

    Attributes:
        pieces: of every parameter.
        ignored: tensors of the file that are known and that no parameter is made of.
        problems: what is wrong with the file's names, beyond missing and unexpected ones.
        notes: what a user should be told about them.
    """

    pieces: PieceMap
    ignored: frozenset[str] = field(default_factory=frozenset)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
