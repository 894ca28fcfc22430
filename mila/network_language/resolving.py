"""``resolve``: from the text of a definition, or from its saved nodes, to a resolved network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from mila.errors import NetworkError
from mila.memory.storage import network_dtype
from mila.network_language import limits
from mila.network_language.arguments import Value
from mila.network_language.capture import INFERRED, Capture, Captured
from mila.network_language.contracts import INTEGER_DTYPES, Contracts, contract_names, read_contracts
from mila.network_language.operators import BUILT_IN
from mila.network_language.registry import Registry
from mila.network_language.relations import NodeView
from mila.network_language.resolved import ExternalTensor, ResolvedNetwork, ResolvedNode
from mila.network_language.resolver import check_dtypes, check_graph, complete_shapes, solve
from mila.network_language.settings import check_targets
from mila.network_language.shapes import Entry, NetworkShape
from mila.network_language.source import parse
from mila.serialization.conversion import FLOATS

ShapeContract = Sequence[Entry] | Mapping[str, Sequence[Entry]]


def resolve(
    source: str,
    *,
    input_shape: ShapeContract,
    output_shape: ShapeContract,
    dtype: str = "float32",
    input_dtype: str | Mapping[str, str] | None = None,
    registry: Registry | None = None,
    most_parameter_bytes: int | None = limits.MOST_STATE_BYTES,
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
        most_parameter_bytes: what all parameters take together at most; ``None`` leaves that to the build, for texts
            that are no stranger's.

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
    return resolve_captured(Captured(capture.nodes, refs), contracts, most_parameter_bytes)


def resolve_captured(
    captured: Captured, contracts: Contracts, most_parameter_bytes: int | None = limits.MOST_STATE_BYTES
) -> ResolvedNetwork:
    """Return the resolved network of nodes and contracts.

    Raises:
        NetworkError: see ``resolve``.
    """
    check_graph(captured, contracts)
    dtypes = check_dtypes(captured, contracts)
    facts, views = solve(captured, contracts)
    shapes = complete_shapes(facts, views)
    integers = frozenset(f"input:{name}" for name, dtype in contracts.input_dtypes.items() if dtype in INTEGER_DTYPES)
    nodes = tuple(_resolved(view, shapes, integers) for view in views)
    inputs = tuple(
        ExternalTensor(name, f"input:{name}", shape, contracts.input_dtypes[name])
        for name, shape in contracts.inputs.items()
    )
    outputs = tuple(
        ExternalTensor(name, ref, contracts.outputs[name], dtypes[ref]) for name, ref in captured.outputs.items()
    )
    _check_parameters(nodes, contracts.dtype, most_parameter_bytes)
    return ResolvedNetwork(inputs, outputs, nodes, contracts.dtype)


def _resolved(view: NodeView, by_ref: Mapping[str, NetworkShape], integers: frozenset[str]) -> ResolvedNode:
    node = view.node
    shapes = {port: by_ref[ref] for port, ref in view.refs.items()}
    arguments: dict[str, Value] = dict(node.arguments)
    provenance = dict(node.origins)
    for name, known in view.inferred.items():
        arguments[name], provenance[name] = int(known.value), INFERRED
    stored = node.operator.stores_shape
    if stored is not None:
        sizes = tuple(int(size) for size in shapes[view.outputs[0]][1:])
        if arguments.get(stored) != sizes:
            arguments[stored], provenance[stored] = sizes, INFERRED
    return ResolvedNode(
        node.id,
        node.operator,
        arguments,
        node.origins,
        provenance,
        node.inputs,
        {port: shapes[port] for port in view.inputs},
        {port: shapes[port] for port in view.outputs},
        frozenset(port for port, ref in node.inputs.items() if ref in integers),
        node.settings,
        node.place,
    )


def _check_stored(node: ResolvedNode, dtype: str) -> None:
    """Raise unless tensors of the network's dtype hold the values that the node writes into them."""
    for argument in node.operator.arguments:
        value = node.arguments[argument.name]
        if argument.stored and isinstance(value, float) and abs(value) > FLOATS[network_dtype(dtype)]:
            message = f"{node.operator.alias}: {argument.name} is a number that {dtype} holds, got {value}"
            raise node.place.error("E_ARGUMENT", message, node=node.id)


def _check_parameters(nodes: Iterable[ResolvedNode], dtype: str, most_bytes: int | None) -> None:
    """Raise for values and settings that parameters cannot have, and for more state than a network may have."""
    tensors = size = 0
    for node in nodes:
        _check_stored(node, dtype)
        shapes = node.parameter_shapes()
        try:
            check_targets(node.settings, shapes, dtype)
        except NetworkError as error:
            raise node.place.error(error.code, error.message, node=node.id) from None
        tensors += len(shapes)
        size += sum(map(prod, shapes.values())) * (4 if dtype == "float32" else 2)
        for count, most, what in (
            (tensors, limits.MOST_PARAMETERS, "parameters"),
            (size, most_bytes, "bytes of parameters"),
        ):
            if most is not None and count > most:
                message = f"up to here the network has {count:,} {what}; at most {most:,}"
                raise node.place.error("E_RESOURCE", message, node=node.id)
