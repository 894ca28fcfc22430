"""A node while shapes are resolved: what its relation may ask and add, and what the shape pattern adds by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from mila.errors import NetworkError, NetworkErrorCode
from mila.network_language.capture import Node
from mila.network_language.facts import Facts, Known
from mila.network_language.patterns import RUN, Axis, PortPattern
from mila.network_language.shapes import Entry


class NodeView:
    """A node and what is known about the shapes at its ports.

    Attributes:
        inputs: the names of its inputs.
        outputs: the names of its outputs.
    """

    def __init__(self, node: Node, facts: Facts) -> None:
        self.node = node
        self._facts = facts
        outputs = node.outputs()
        self.refs = {**node.inputs, **outputs}
        self.inputs = tuple(node.inputs)
        self.outputs = tuple(outputs)
        self.inferred: dict[str, Known] = {}
        operator = node.operator
        self._patterns = [*operator.input_ports(node.arguments), *operator.output_ports(node.arguments)]

    def argument(self, name: str) -> Any:
        """Return an argument; ``None`` while it is unknown."""
        if name in self.node.arguments:
            return self.node.arguments[name]
        return self.inferred[name].value if name in self.inferred else None

    def set_argument(self, name: str, value: int, origin: str | None = None) -> None:
        """Fix an integer argument that was left to inference; refuse one that was given as another."""
        known = self.argument(name)
        if known is None:
            argument = next(item for item in self.node.operator.arguments if item.name == name)
            argument.checked(value, lambda message: NetworkError("E_CONSTRAINT", f"{message} ({origin or 'inferred'})"))
            self.inferred[name] = Known(value, origin or self.node.label)
            self._facts.changed.add(self.node.id)
        elif known != value:
            needed = f"{value} is needed (from {origin})" if origin else f"{value} is needed"
            self.refuse(f"{name} is {known}, but {needed}")

    def rank(self, port: str) -> int | None:
        """Return the number of axes at a port, the batch among them."""
        rank = self._facts.shape(self.refs[port]).rank
        return None if rank is None else int(rank.value)

    def set_rank(self, port: str, rank: int) -> None:
        """Fix the number of axes at a port."""
        self._facts.set_rank(self.refs[port], rank, self.node.label)

    def sizes(self, port: str) -> list[int | None]:
        """Return the axes after the batch; empty while the rank is unknown."""
        sizes = self._facts.shape(self.refs[port]).sizes
        return [None if known is None else int(known.value) for known in sizes]

    def size(self, port: str, axis: int) -> int | None:
        """Return an axis after the batch, counted with the batch; ``None`` while it is unknown."""
        known = self.known(port, axis)
        return None if known is None else int(known.value)

    def known(self, port: str, axis: int) -> Known | None:
        """Return an axis after the batch together with what it follows from."""
        sizes = self._facts.shape(self.refs[port]).sizes
        return sizes[axis - 1] if sizes else None

    def set_size(self, port: str, axis: int, size: int, origin: str | None = None) -> None:
        """Fix an axis after the batch of a port whose rank is known."""
        self._facts.set_size(self.refs[port], axis, size, origin or self.node.label)

    def batch(self, port: str) -> Known | None:
        """Return axis 0 of a port together with what it follows from; ``None`` while it is unknown."""
        return self._facts.shape(self.refs[port]).batch

    def set_batch(self, port: str, batch: Entry) -> None:
        """Fix axis 0 of a port."""
        self._facts.set_batch(self.refs[port], batch, self.node.label)

    def equal_ranks(self, ports: Iterable[str]) -> int | None:
        """Give several ports one rank; return it once it is known."""
        ports = tuple(ports)
        rank = next((rank for port in ports if (rank := self.rank(port)) is not None), None)
        if rank is not None:
            for port in ports:
                self.set_rank(port, rank)
        return rank

    def equal_sizes(self, places: Iterable[tuple[str, int]]) -> None:
        """Make axes of ports one size; the ranks are known."""
        places = tuple(places)
        first: tuple[str, int, Known] | None = None
        for port, axis in places:
            known = self.known(port, axis)
            if known is None:
                continue
            if first is None:
                first = (port, axis, known)
            elif known.value != first[2].value:
                one, other = f"axis {first[1]} of {first[0]}", f"axis {axis} of {port}"
                self.refuse(f"{one} is {first[2]}, but {other} is {known}; they have to be equal")
        if first is not None:
            for port, axis in places:
                self.set_size(port, axis, int(first[2].value), first[2].origin)

    def equal_batches(self, ports: Iterable[str]) -> None:
        """Give several ports one batch."""
        ports = tuple(ports)
        first: tuple[str, Known] | None = None
        for port in ports:
            known = self._facts.shape(self.refs[port]).batch
            if known is None:
                continue
            if first is None:
                first = (port, known)
            elif known.value != first[1].value:
                both = f"the batch of {first[0]} is {first[1]}, but that of {port} is {known}"
                self.refuse(f"{both}; they have to be equal")
        if first is not None:
            for port in ports:
                self._facts.set_batch(self.refs[port], first[1].value, first[1].origin)

    def refuse(self, message: str, code: NetworkErrorCode = "E_CONSTRAINT") -> NoReturn:
        """Raise the error of this node; its place is added."""
        raise NetworkError(code, f"{self.node.operator.alias}: {message}")

    def apply(self) -> None:
        """Add all that follows from the node for the shapes at its ports, in both directions."""
        operator = self.node.operator
        shared = self.refs if operator.batch == "shared" else ()
        self.equal_batches(shared)
        self._apply_pattern()
        if operator.relation is not None:
            operator.relation(self)
            self.equal_batches(shared)

    def _apply_pattern(self) -> None:
        run = self._run_length()
        places = [
            (port, axis, dimension)
            for port, pattern in self._patterns
            if pattern.axes is not None and (run is not None or not pattern.has_run)
            for axis, dimension in self._expanded(port, pattern, run)
        ]
        values = self._symbol_values(places)
        for port, axis, dimension in places:
            if dimension.symbol in values:
                known = values[dimension.symbol][0]
                self.set_size(port, axis, int(known.value) * dimension.scale, known.origin)
        for argument in self.node.operator.arguments:
            if argument.dimension in values:
                known = values[argument.dimension][0]
                self.set_argument(argument.name, int(known.value), known.origin)

    def _run_length(self) -> tuple[int, str] | None:
        """Return how many axes the run stands for, and the port that says so."""
        for port, pattern in self._patterns:
            rank = self.rank(port) if pattern.has_run else None
            if rank is not None and pattern.axes is not None:
                length = rank - (len(pattern.axes) - 1)
                if length < 0:
                    needed = f"{len(pattern.axes) - 1} or more axes {pattern.shape_text()}"
                    self.refuse(f"{port} needs {needed}, but {self.refs[port]} has rank {self._rank_text(port)}")
                return length, port
        return None

    def _expanded(self, port: str, pattern: PortPattern, run: tuple[int, str] | None) -> list[tuple[int, Axis]]:
        """Return the axes after the batch with their places, and fix the rank that they make."""
        length, witness = run or (0, port)
        expanded: list[Axis] = []
        for axis in (pattern.axes or ())[1:]:
            expanded.extend([Axis(1, f"{RUN}{index}") for index in range(length)] if axis.symbol == RUN else [axis])
        rank = self.rank(port)
        if rank is not None and rank != len(expanded) + 1:
            needed = f"{port} is {pattern.shape_text()} of rank {len(expanded) + 1}"
            reason = f", as {witness} has rank {self._rank_text(witness)}" if pattern.has_run else ""
            self.refuse(f"{self.refs[port]} has rank {self._rank_text(port)}, but {needed}{reason}")
        self.set_rank(port, len(expanded) + 1)
        return list(enumerate(expanded, start=1))

    def _rank_text(self, port: str) -> str:
        return str(self._facts.shape(self.refs[port]).rank)

    def _symbol_values(self, places: list[tuple[str, int, Axis]]) -> dict[str | None, tuple[Known, str]]:
        """Return the value of each symbol and where it was seen first; literal sizes are compared and written."""
        values: dict[str | None, tuple[Known, str]] = {}
        for argument in self.node.operator.arguments:
            value = None if argument.dimension is None else self.argument(argument.name)
            if value is not None:
                given = Known(value, f"{argument.name}={value} of {self.node.label}")
                values[argument.dimension] = (
                    self.inferred.get(argument.name, given),
                    f"the argument {argument.name}",
                )
        for port, axis, dimension in places:
            known = self.known(port, axis)
            where = f"axis {axis} of {port}"
            if dimension.symbol is None:
                if known is not None and known.value != dimension.scale:
                    self.refuse(f"{where} is {known}, but {dimension.scale} is needed")
                self.set_size(port, axis, dimension.scale)
            elif known is not None:
                value, rest = divmod(int(known.value), dimension.scale)
                if rest:
                    self.refuse(f"{where} is {known}, no multiple of {dimension.scale} as {dimension} says")
                first = values.setdefault(dimension.symbol, (Known(value, known.origin), where))
                if first[0].value != value:
                    name = dimension.symbol
                    self.refuse(f"{name} is {first[0]} in {first[1]}, but {Known(value, known.origin)} in {where}")
        return values
