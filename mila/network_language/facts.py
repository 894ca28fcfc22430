"""What is known about shapes while they are resolved: it only grows, and every value remembers where it came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from mila.errors import NetworkError
from mila.network_language import limits
from mila.network_language.shapes import Entry, NetworkShape, rows_of


@dataclass(frozen=True)
class Known:
    """A value and what it follows from, in words."""

    value: Entry
    origin: str

    def __str__(self) -> str:
        return f"{self.value} (from {self.origin})"


@dataclass
class PartialShape:
    """The shape of one tensor, as far as it is known.

    Attributes:
        batch: axis 0.
        rank: the number of axes, the batch among them.
        sizes: the axes after the batch; empty while the rank is unknown.
    """

    batch: Known | None = None
    rank: Known | None = None
    sizes: list[Known | None] = field(default_factory=list)

    def complete(self) -> NetworkShape | None:
        """Return the shape, or ``None`` while a part of it is unknown."""
        values = [known.value for known in (self.batch, *self.sizes) if known is not None]
        return tuple(values) if self.rank is not None and len(values) == self.rank.value else None

    def first_gap(self) -> str:
        """Return the first thing that is not known, in words."""
        if self.rank is None:
            return "the rank"
        if self.batch is None:
            return "the batch"
        return f"axis {self.sizes.index(None) + 1}"


class Facts:
    """What is known about every tensor.

    Attributes:
        shapes: the shapes by reference.
        changed: the references that something became known about; whoever reads it clears it.
    """

    def __init__(self) -> None:
        self.shapes: dict[str, PartialShape] = {}
        self.changed: set[str] = set()

    def shape(self, ref: str) -> PartialShape:
        """Return what is known about a tensor."""
        return self.shapes.setdefault(ref, PartialShape())

    def set_rank(self, ref: str, rank: int, origin: str) -> None:
        """Fix the rank of a tensor.

        Raises:
            NetworkError: without a place: ``E_CONSTRAINT``.
        """
        shape = self.shape(ref)
        if shape.rank is None:
            if not limits.LOWEST_RANK <= rank <= limits.HIGHEST_RANK:
                supported = f"a tensor has {limits.LOWEST_RANK} to {limits.HIGHEST_RANK}"
                raise NetworkError("E_CONSTRAINT", f"{ref} would have {rank} axes (from {origin}); {supported}")
            shape.rank = Known(rank, origin)
            shape.sizes = [None] * (rank - 1)
            self.changed.add(ref)
        elif shape.rank.value != rank:
            raise NetworkError("E_CONSTRAINT", f"{ref} has rank {shape.rank}, but rank {Known(rank, origin)} is needed")

    def set_batch(self, ref: str, batch: Entry, origin: str) -> None:
        """Fix axis 0 of a tensor.

        Raises:
            NetworkError: without a place: ``E_CONSTRAINT``, ``E_RESOURCE``.
        """
        shape = self.shape(ref)
        if shape.batch is None:
            rows, free = rows_of(batch)
            most = limits.LARGEST_BATCH_MULTIPLE if free else limits.LARGEST_DIMENSION
            if rows > most:
                unit = " times B" if free else ""
                raise NetworkError("E_RESOURCE", f"the batch of {ref} would be {batch}; at most {most:,}{unit}")
            shape.batch = Known(batch, origin)
            self.changed.add(ref)
        elif shape.batch.value != batch:
            message = f"{ref} has the batch {shape.batch}, but the batch {Known(batch, origin)} is needed"
            raise NetworkError("E_CONSTRAINT", message)

    def set_size(self, ref: str, axis: int, size: int, origin: str) -> None:
        """Fix an axis after the batch of a tensor whose rank is known.

        Raises:
            NetworkError: without a place: ``E_CONSTRAINT``, ``E_RESOURCE``.
        """
        shape = self.shape(ref)
        known = shape.sizes[axis - 1]
        if known is not None and known.value != size:
            message = f"axis {axis} of {ref} is {known}, but {Known(size, origin)} is needed"
            raise NetworkError("E_CONSTRAINT", message)
        if known is not None:
            return
        if size < 1:
            raise NetworkError(
                "E_CONSTRAINT", f"axis {axis} of {ref} would be {size} (from {origin}); it is at least 1"
            )
        if size > limits.LARGEST_DIMENSION:
            message = f"axis {axis} of {ref} would be {size:,} (from {origin}); at most {limits.LARGEST_DIMENSION:,}"
            raise NetworkError("E_RESOURCE", message)
        shape.sizes[axis - 1] = Known(size, origin)
        self.changed.add(ref)

    def set_shape(self, ref: str, shape: NetworkShape, origin: str) -> None:
        """Fix a whole shape.

        Raises:
            NetworkError: without a place: ``E_CONSTRAINT``, ``E_RESOURCE``.
        """
        self.set_rank(ref, len(shape), origin)
        self.set_batch(ref, shape[0], origin)
        for axis, size in enumerate(shape[1:], start=1):
            self.set_size(ref, axis, int(size), origin)
