"""The declaration of an operator: all that the language, the resolver and the documentation know of it."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from mila.core import Component
from mila.errors import NetworkError
from mila.network_language.arguments import RESERVED, Argument
from mila.network_language.patterns import PortPattern, ShapePattern, parse_pattern
from mila.network_language.shapes import NetworkShape
from mila.network_language.wording import shown

if TYPE_CHECKING:
    from mila.network_language.relations import NodeView

_ALIAS = re.compile(r"[a-z][a-z0-9_]{0,63}")
_IDENTITY = re.compile(r"[a-z][a-z0-9_.]*@[1-9][0-9]*")


@dataclass(frozen=True)
class NodeShapes:
    """A resolved call: its arguments and the shapes at its ports; what its component follows from.

    Attributes:
        arguments: all arguments, defaults and inferred ones too.
        inputs: the shape at each input.
        outputs: the shape at each output.
        integer_inputs: the inputs that carry integers or booleans.
    """

    arguments: Mapping[str, Any]
    inputs: Mapping[str, NetworkShape]
    outputs: Mapping[str, NetworkShape]
    integer_inputs: frozenset[str] = frozenset()

    @property
    def width(self) -> int:
        """The last axis of the first input."""
        return int(next(iter(self.inputs.values()))[-1])


#: Constructs the component of a resolved call, under the name of its node.
ComponentFactory = Callable[[str, NodeShapes], Component[Any]]


@dataclass(frozen=True, kw_only=True)
class Example:
    """A small network that shows an operator; it runs as a test and is printed with its table.

    Attributes:
        source: the definition.
        input_shape: the input contract.
        output_shape: the output contract.
        input_dtype: the dtype of inputs that are not of the network's dtype.
        note: what it shows.
    """

    source: str
    input_shape: Any
    output_shape: Any
    input_dtype: str | Mapping[str, str] | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator of the language.

    Attributes:
        alias: its name in the text.
        identity: name and version in saved plans, such as ``"gather_token@1"``: it always computes the same.
        category: the family it is listed under.
        summary: one line.
        documentation: what it computes.
        pattern: ports and shapes, such as ``"x[B, T, D] -> out[B, D]"``.
        examples: at least one.
        arguments: in the order of positions.
        component: constructs what computes a resolved call; its inputs and outputs come in the order of the pattern.
            Without one, networks with the operator can be resolved, not built.
        parameter_names: what parameters of the component are called in networks, where that is not their own name.
        relation: what the pattern cannot say about the shapes; called until nothing changes, adds what follows from
            what is known, refuses what contradicts it.
        validate: refuses arguments that contradict each other: returns the message, or ``None``.
        batch: ``"shared"``: all ports have one batch; ``"relation"``: the relation says.
        count: the argument that holds the number of variadic ports.
        stores_shape: the argument that ends up with the sizes of the output, all but the batch.
    """

    alias: str
    identity: str
    category: str
    summary: str
    documentation: str
    pattern: str
    examples: tuple[Example, ...]
    arguments: tuple[Argument, ...] = ()
    component: ComponentFactory | None = None
    parameter_names: Mapping[str, str] = field(default_factory=dict)
    relation: Callable[[NodeView], None] | None = None
    validate: Callable[[Mapping[str, Any]], str | None] | None = None
    batch: Literal["shared", "relation"] = "shared"
    count: str | None = None
    stores_shape: str | None = None

    def __post_init__(self) -> None:
        if not _ALIAS.fullmatch(self.alias) or keyword.iskeyword(self.alias) or self.alias in (*RESERVED, "out"):
            self._refuse(f"an operator cannot be called {shown(self.alias)}")
        if not _IDENTITY.fullmatch(self.identity):
            self._refuse(f"the identity is a name and a version such as {self.alias}@1, got {shown(self.identity)}")
        if not (self.category and self.summary and self.documentation and self.examples):
            self._refuse("category, summary, documentation and an example are needed")
        names = [argument.name for argument in self.arguments]
        ports = [*self.ports.inputs, *self.ports.outputs]
        taken = [*names, *(port.name for port in ports)]
        numbered = [f"{port.name}[0-9]+" for port in ports if port.variadic]
        if len(set(taken)) != len(taken) or any(re.fullmatch(stem, name) for stem in numbered for name in taken):
            self._refuse("arguments, inputs and outputs all have different names")
        symbols = [argument.dimension for argument in self.arguments if argument.dimension is not None]
        if len(set(symbols)) != len(symbols) or not self.ports.symbols().issuperset(symbols):
            self._refuse("an argument stands for a symbol of the pattern, and one argument for each")
        variadic = self.ports.inputs[0].variadic or self.ports.outputs[0].variadic
        if variadic != (self.count is not None) or not {self.count, self.stores_shape} - {None} <= {*names}:
            self._refuse("variadic ports need the argument that counts them, and stores_shape names an argument")

    @cached_property
    def ports(self) -> ShapePattern:
        """The pattern, parsed."""
        return parse_pattern(self.pattern)

    def input_ports(self, arguments: Mapping[str, Any]) -> tuple[tuple[str, PortPattern], ...]:
        """Return the inputs of a call, in order of declaration."""
        return tuple(self._expanded(self.ports.inputs, arguments))

    def output_ports(self, arguments: Mapping[str, Any]) -> tuple[tuple[str, PortPattern], ...]:
        """Return the outputs of a call, in order of declaration."""
        return tuple(self._expanded(self.ports.outputs, arguments))

    def _expanded(
        self, ports: tuple[PortPattern, ...], arguments: Mapping[str, Any]
    ) -> Iterable[tuple[str, PortPattern]]:
        for port in ports:
            if port.variadic and self.count is not None:
                yield from ((f"{port.name}{index}", port) for index in range(arguments[self.count]))
            else:
                yield port.name, port

    def _refuse(self, reason: str) -> None:
        raise NetworkError("E_REGISTRY", f"operator {shown(self.alias)}: {reason}")
