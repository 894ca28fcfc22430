"""The components of a report as a tree in which repeated layers are one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from mila.planning.report import TreeRow

_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})")
_FEWEST_REPEATED = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes by what they are for; ``transient`` are declared, ``fullest`` alive at the fullest step."""

    parameters: int = 0
    gradients: int = 0
    state: int = 0
    fullest: int = 0
    transient: int = 0

    @property
    def all(self) -> int:
        """What is alive at the fullest step, with all that lives as long as the network."""
        return self.persistent + self.fullest

    @property
    def persistent(self) -> int:
        """What lives as long as the network."""
        return self.parameters + self.gradients + self.state

    @property
    def largest(self) -> str:
        """The name of the largest part of ``all``."""
        return max(("parameters", "gradients", "state", "fullest"), key=lambda name: int(getattr(self, name)))

    @classmethod
    def total(cls, sizes: Sequence[Sizes]) -> Sizes:
        """Their sum."""
        return cls(*(sum(getattr(each, field.name) for each in sizes) for field in fields(cls)))

    def without(self, other: Sizes) -> Sizes:
        """What is left when ``other`` is taken away."""
        return Sizes(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(Sizes)))


@dataclass(frozen=True, slots=True)
class Component:
    """A component, or ``count`` of them that repeat, added up.

    Attributes:
        name: ``mlp``, or ``block_0 … block_31``.
        kind: the class.
        count: how many there are.
        sizes: their bytes, children included.
        children: each likewise added up.
        each_persistent: what lives as long as the network of each of them; ``None`` where that differs.
    """

    name: str
    kind: str
    count: int
    sizes: Sizes
    children: tuple[Component, ...]
    each_persistent: int | None

    @property
    def title(self) -> str:
        """The name, and how many there are of it."""
        return self.name if self.count == 1 else f"{self.name} \N{MULTIPLICATION SIGN}{self.count}"

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Component]]:
        """This one and all below, parents first, with their depths."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


@dataclass(slots=True)
class _Node:
    name: str
    kind: str
    sizes: Sizes
    children: list[_Node]


def sizes_of(row: TreeRow) -> Sizes:
    """The bytes of a row."""
    return Sizes(row.parameter_bytes, row.gradient_bytes, row.state_bytes, row.fullest_bytes, row.transient_bytes)


def component_tree(rows: Sequence[TreeRow]) -> Component | None:
    """The tree of the rows, parents before children; siblings that repeat (``block_0``, ``block_1``, …) are one.

    What a component holds beside its children becomes a child ``(itself)``. ``None`` where there are no rows.
    """
    roots: list[_Node] = []
    above: list[_Node] = []
    for row in rows:
        node = _Node(row.path.rpartition(".")[2], row.component, sizes_of(row), [])
        del above[row.depth :]
        (above[-1].children if above else roots).append(node)
        above.append(node)
    if not roots:
        return None
    return _merged(roots[:1]) if len(roots) == 1 else _merged([_Node("all", "", _total(roots), roots)])


def _total(nodes: Sequence[_Node]) -> Sizes:
    return Sizes.total([node.sizes for node in nodes])


def _merged(nodes: Sequence[_Node]) -> Component:
    """Peers as one component."""
    named: dict[str, list[_Node]] = {}
    for node in nodes:
        for child in node.children:
            named.setdefault(child.name, []).append(child)
    children = [_merged(peers) for peers in _runs(named)]
    first, last, sizes = nodes[0], nodes[-1], _total(nodes)
    rest = sizes.without(Sizes.total([child.sizes for child in children]))
    if children and rest.all:
        children.append(Component("(itself)", "", len(nodes), rest, (), _each([_own_bytes(node) for node in nodes])))
    name = first.name if first.name == last.name else f"{first.name} … {last.name}"
    each = _each([node.sizes.persistent for node in nodes])
    return Component(name, first.kind, len(nodes), sizes, tuple(children), each)


def _own_bytes(node: _Node) -> int:
    """What lives as long as the network, without that of the children."""
    return node.sizes.persistent - sum(child.sizes.persistent for child in node.children)


def _each(sizes: Sequence[int]) -> int | None:
    """The size of each, where all are equal."""
    return sizes[0] if len(set(sizes)) == 1 else None


def _runs(named: dict[str, list[_Node]]) -> Iterator[list[_Node]]:
    """Siblings by name; of those that are numbered without a gap and of one class, three or more together."""
    run: list[list[_Node]] = []
    key: tuple[str, str, int] | None = None
    for name, peers in named.items():
        numbered = _NUMBERED.fullmatch(name)
        new = (numbered[1], peers[0].kind, int(numbered[2])) if numbered else None
        if run and not (key and new and new == (*key[:2], key[2] + 1)):
            yield from _together(run)
            run = []
        run.append(peers)
        key = new
    yield from _together(run)


def _together(run: list[list[_Node]]) -> Iterator[list[_Node]]:
    if len(run) < _FEWEST_REPEATED:
        yield from run
    else:
        yield [node for peers in run for node in peers]
