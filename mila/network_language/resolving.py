"""``resolve``: from the text of a definition, or from its saved nodes, to a resolved network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mila.errors import NetworkError
from mila.network_language.arguments import Value
from mila.network_language.capture import INFERRED, Capture, Captured
from mila.network_language.contracts import Contracts, contract_names, read_contracts
from mila.network_language.facts import Facts
from mila.network_language.operators import BUILT_IN
from mila.network_language.registry import Registry
from mila.network_language.relations import NodeView
from mila.network_language.resolved import ExternalTensor, ResolvedNetwork, ResolvedNode
from mila.network_language.resolver import check_complete, check_dtypes, check_graph, check_state, solve
from mila.network_language.settings import check_targets
from mila.network_language.shapes import Entry, NetworkShape
from mila.network_language.source import parse

ShapeContract = Sequence[Entry] | Mapping[str, Sequence[Entry]]


def resolve(
    source: str,
    *,
    input_shape: ShapeContract,
    output_shape: ShapeContract,
    dtype: str = "float32",
    input_dtype: str | Mapping[str, str] | None = None,
    registry: Registry | None = None,
) -> ResolvedNetwork:
    """Return a network definition with every shape and argument worked out; nothing is allocated.

    Args:
        source: the definition; it is parsed, never executed.
        input_shape: the shape of the input ``x``, such as ``("B", 6)``, or shapes by name. Axis 0 is the batch: free
            (``"B"``) or fixed.
        output_shape: the shape of the output, or shapes by name.
        dtype: float32, float16 or bfloat16: the stored dtype of the network.
        input_dtype: int64, int32 or bool where an input is not of the network's dtype, for all inputs or by name.
        registry: the operators; by default those of Mila.

    Raises:
        NetworkError: anything that the text or the contracts get wrong, with a code and, where there is one, node, line
            and column.
        TypeError: a source that is not a string.
    """
    operators = BUILT_IN if registry is None else registry
    statements = parse(source, operators)
    inputs = contract_names(input_shape, "x", operators)
    outputs = contract_names(output_shape, "output", operators)
    capture = Capture.of_inputs(operators, inputs)
    capture.run(statements)
    named = isinstance(output_shape, Mapping)
    refs = capture.named_outputs(outputs) if named else {"output": capture.output()}
    contracts = read_contracts(inputs, outputs, dtype, input_dtype)
    return resolve_captured(Captured(capture.nodes, refs), contracts)


def resolve_captured(captured: Captured, contracts: Contracts) -> ResolvedNetwork:
    """Return the resolved network of nodes and contracts.

    Raises:
        NetworkError: see ``resolve``.
    """
    check_graph(captured, contracts)
    dtypes = check_dtypes(captured, contracts)
    facts, views = solve(captured, contracts)
    check_complete(facts, views)
    nodes = tuple(_resolved(view, facts) for view in views)
    inputs = tuple(
        ExternalTensor(name, f"input:{name}", shape, contracts.input_dtypes[name])
        for name, shape in contracts.inputs.items()
    )
    outputs = tuple(
        ExternalTensor(name, ref, contracts.outputs[name], dtypes[ref]) for name, ref in captured.outputs.items()
    )
    network = ResolvedNetwork(inputs, outputs, nodes, contracts.dtype)
    check_state(captured, network.parameter_counts(), contracts.dtype)
    return network


def _resolved(view: NodeView, facts: Facts) -> ResolvedNode:
    node = view.node
    shapes = {port: _complete(facts, ref) for port, ref in view.refs.items()}
    arguments: dict[str, Value] = dict(node.arguments)
    provenance = dict(node.origins)
    for name, known in view.inferred.items():
        arguments[name], provenance[name] = int(known.value), INFERRED
    stored = node.operator.stores_shape
    if stored is not None:
        sizes = tuple(int(size) for size in shapes[view.outputs[0]][1:])
        if arguments.get(stored) != sizes:
            arguments[stored], provenance[stored] = sizes, INFERRED
    resolved = ResolvedNode(
        node.id,
        node.operator,
        arguments,
        node.origins,
        provenance,
        node.inputs,
        {port: shapes[port] for port in view.inputs},
        {port: shapes[port] for port in view.outputs},
        node.settings,
        node.place,
    )
    try:
        check_targets(node.settings, resolved.parameter_shapes())
    except NetworkError as error:
        raise node.place.error(error.code, error.message, node=node.id) from None
    return resolved


def _complete(facts: Facts, ref: str) -> NetworkShape:
    shape = facts.shape(ref).complete()
    assert shape is not None  # check_complete has seen it
    return shape


