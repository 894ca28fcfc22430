"""The resolved network: every node with its arguments and shapes; its tables, its parameters, its saved form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from pydantic import ValidationError

from mila.core import Component
from mila.core.parameters import ParameterOverride
from mila.core.state import declared_state
from mila.errors import ConfigurationError, MilaError, NetworkError, NetworkErrorCode
from mila.memory.storage import Shape
from mila.network_language import plan_json, tables
from mila.network_language.arguments import Value
from mila.network_language.operator import NodeShapes, Operator
from mila.network_language.settings import Settings
from mila.network_language.shapes import NetworkShape
from mila.network_language.source import Place


@dataclass(frozen=True)
class ExternalTensor:
    """An input or an output of the network.

    Attributes:
        name: its name in the contract.
        ref: what it is inside: ``input:x``, ``node:n0/out``.
        shape: the batch first.
        dtype: of its elements.
    """

    name: str
    ref: str
    shape: NetworkShape
    dtype: str


@dataclass(frozen=True)
class ResolvedNode:
    """One call with everything known.

    Attributes:
        id: the name of the node.
        operator: what it applies.
        arguments: all of them.
        given: where each argument that the call settled comes from: ``explicit`` or ``operator default``.
        provenance: where each argument comes from in the end; ``inferred`` too.
        inputs: where each input comes from, in order of declaration.
        input_shapes: the shape at each input.
        output_shapes: the shape at each output.
        integer_inputs: the inputs that carry integers or booleans.
        settings: what the call says about its parameters.
        place: where the call stands.
    """

    id: str
    operator: Operator
    arguments: Mapping[str, Value]
    given: Mapping[str, str]
    provenance: Mapping[str, str]
    inputs: Mapping[str, str]
    input_shapes: Mapping[str, NetworkShape]
    output_shapes: Mapping[str, NetworkShape]
    integer_inputs: frozenset[str]
    settings: Settings
    place: Place

    def parameter_shapes(self) -> dict[str, Shape]:
        """Return names and shapes of its parameters."""
        return self._parameter_shapes

    @cached_property
    def _parameter_shapes(self) -> dict[str, Shape]:
        if self.operator.component is None:
            return {}
        return {name: declaration.shape for name, _, declaration in declared_state(self.component())}

    @property
    def _shapes(self) -> NodeShapes:
        return NodeShapes(self.arguments, self.input_shapes, self.output_shapes, self.integer_inputs)

    def component(self) -> Component[Any]:
        """Construct what computes the node; nothing is allocated.

        Raises:
            NetworkError: ``E_OPERATOR``: the operator has no component. ``E_ARGUMENT``: the component refuses the
                arguments. ``E_REGISTRY``: it has other inputs or outputs than the operator, another name than the node,
                or not the parameters that the operator names.
        """
        if self.operator.component is None:
            raise self._error("E_OPERATOR", f"{self.operator.alias} names no component, so it cannot be built")
        try:
            component = self.operator.component(self.id, self._shapes)
        except ValidationError as error:
            first = error.errors()[0]
            raise self._error("E_ARGUMENT", f"{self.operator.alias}: {first['msg']}") from None
        except MilaError as error:
            raise self._error("E_ARGUMENT", f"{self.operator.alias}: {error}") from None
        if not isinstance(component, Component) or component.name != self.id:
            got = f"{type(component).__name__} {getattr(component, 'name', '')}".rstrip()
            raise self._error("E_REGISTRY", f"{self.operator.alias}: expected a component called {self.id}, got {got}")
        ports = len(component.ports), len(component.output_names)
        if ports != (len(self.input_shapes), len(self.output_shapes)):
            expected = f"{len(self.input_shapes)} inputs and {len(self.output_shapes)} outputs"
            got = f"{type(component).__name__} with {ports[0]} and {ports[1]}"
            raise self._error("E_REGISTRY", f"{self.operator.alias}: expected a component of {expected}, got {got}")
        try:
            component.override_parameters(
                {own: ParameterOverride(state_name=name) for own, name in self.operator.parameter_names.items()}
            )
        except ConfigurationError as error:
            raise self._error("E_REGISTRY", f"{self.operator.alias}: parameter_names: {error}") from None
        return component

    def _error(self, code: NetworkErrorCode, message: str) -> NetworkError:
        return self.place.error(code, message, node=self.id)


@dataclass(frozen=True, repr=False)
class ResolvedNetwork:
    """A definition whose every shape is known; nothing is constructed or allocated yet.

    ``print(network)`` shows its nodes in order, one a line.

    Attributes:
        inputs: in the author's order.
        outputs: in the author's order.
        nodes: in the order of the calls.
        dtype: the dtype in which it is stored.
    """

    inputs: tuple[ExternalTensor, ...]
    outputs: tuple[ExternalTensor, ...]
    nodes: tuple[ResolvedNode, ...]
    dtype: str

    def __str__(self) -> str:
        return tables.plan_table(self)

    def __repr__(self) -> str:
        return f"<ResolvedNetwork {tables.signature(self)}: {len(self.nodes)} nodes, {self.parameters_line}>"

    def network_table(self) -> str:
        """Return the table of the network: a chain with its shapes, any other with the source of every input."""
        return tables.network_table(self)

    def parameter_shapes(self) -> dict[str, Shape]:
        """Return the shape of every parameter by ``<node id>.<name>``."""
        return {f"{node.id}.{name}": shape for node in self.nodes for name, shape in node.parameter_shapes().items()}

    def parameter_counts(self) -> dict[str, int]:
        """Return the elements of the parameters of every node."""
        return {node.id: sum(map(prod, node.parameter_shapes().values())) for node in self.nodes}

    def parameter_count(self) -> int:
        """Return the elements of all parameters."""
        return sum(self.parameter_counts().values())

    @property
    def parameters_line(self) -> str:
        """The count in words: ``Parameters: 5,020``."""
        return f"Parameters: {self.parameter_count():,}"

    @cached_property
    def semantic_digest(self) -> str:
        """SHA-256 of what the network computes: the same for every text that says the same."""
        return plan_json.semantic_digest(self)

    @cached_property
    def artifact_digest(self) -> str:
        """SHA-256 of the whole saved plan, with the places of the calls in their text."""
        return plan_json.artifact_digest(self)

    def to_json(self) -> str:
        """Return the plan as canonical JSON; ``plan_from_json`` and this again give the same bytes."""
        return plan_json.to_json(self)
