"""The static dataflow graph of a composite: named children, each with the references it reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mila.errors import ConfigurationError

if TYPE_CHECKING:
    from mila.core.component import Component

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}", re.ASCII)


def check_name(name: str) -> str:
    """A component name: 1 to 128 characters, a letter first, then letters, digits, ``_`` and ``-``."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"component name {name!r}: expected 1 to 128 characters, a letter first, then letters, digits, '_' or '-'"
        )
    return name


@dataclass(frozen=True, slots=True)
class Port:
    """An input.

    Attributes:
        name: among the inputs.
        is_ids: whether it carries integers, int32 or int64, instead of activations in the network's dtype.
        is_mask: of an input of ids: whether it carries booleans.
    """

    name: str
    is_ids: bool = False
    is_mask: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """A value of one graph, without a shape."""

    graph: Graph
    index: int


@dataclass(frozen=True, slots=True)
class Node:
    """A child, the values it reads and the values it makes."""

    child: Component[Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Graph:
    """Filled by ``compose``, once; then read by everything else."""

    __slots__ = ("_names", "_owner", "nodes", "value_count")

    def __init__(self, owner: Component[Any], inputs: int) -> None:
        self._owner: Component[Any] | None = owner
        self.nodes: list[Node] = []
        self.value_count = inputs
        self._names: set[str] = set()

    def add(self, child: Component[Any], *inputs: Reference) -> Reference:
        """Add a child that reads ``inputs``; returns its only output.

        Raises:
            ConfigurationError: the name is taken, the child has a parent, a device or a seed of its own, the number of
                inputs is wrong, a reference is of another graph, or the child has several outputs.
        """
        outputs = self.add_many(child, *inputs)
        if len(outputs) != 1:
            raise ConfigurationError(f"{child.path}: has {len(outputs)} outputs; use add_many")
        return outputs[0]

    def add_many(self, child: Component[Any], *inputs: Reference) -> tuple[Reference, ...]:
        """As :meth:`add`, for a child with any number of outputs."""
        if self._owner is None:
            raise ConfigurationError(f"{child.name}: a graph takes children only while its component is constructed")
        where = f"{self._owner.path}.{child.name}"
        if child.name in self._names:
            raise ConfigurationError(f"{where}: a child of this name exists already")
        if len(inputs) != len(child.ports):
            raise ConfigurationError(f"{where}: expected {len(child.ports)} inputs, got {len(inputs)}")
        if any(reference.graph is not self for reference in inputs):
            raise ConfigurationError(f"{where}: reads a value of another graph")
        child.adopt(self._owner)
        self._names.add(child.name)
        outputs = tuple(range(self.value_count, self.value_count + len(child.output_names)))
        self.value_count += len(outputs)
        self.nodes.append(Node(child, tuple(reference.index for reference in inputs), outputs))
        return tuple(Reference(self, index) for index in outputs)

    def seal(self) -> None:
        """Take no more children, and let go of the owner: parents own children, never the other way round."""
        self._owner = None
