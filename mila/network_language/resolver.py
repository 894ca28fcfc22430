"""From nodes and contracts to complete shapes: the order of the graph, dtypes, and inference to a fixed point."""

from __future__ import annotations

from collections import defaultdict

from mila.errors import NetworkError
from mila.network_language import limits
from mila.network_language.capture import Captured
from mila.network_language.contracts import NETWORK_DTYPES, Contracts
from mila.network_language.facts import Facts
from mila.network_language.relations import NodeView
from mila.network_language.shapes import NetworkShape, row_elements, shape_text


def check_graph(captured: Captured, contracts: Contracts) -> None:
    """Raise unless every node leads to an output and every input is read.

    Raises:
        NetworkError: without a place: ``E_BINDING``, ``E_RESOURCE``.
    """
    edges = sum(len(node.inputs) for node in captured.nodes)
    if edges > limits.MOST_EDGES:
        raise NetworkError("E_RESOURCE", f"{edges:,} inputs of nodes; at most {limits.MOST_EDGES:,}")
    read = {*captured.outputs.values()}
    dead = []
    for node in reversed(captured.nodes):
        if read.isdisjoint(node.outputs().values()):
            dead.append(node)
        read.update(node.inputs.values())
    if dead:
        nodes = ", ".join(node.label for node in reversed(dead))
        raise NetworkError("E_BINDING", f"no output depends on {nodes}; use their results, or remove them")
    unread = [name for name in contracts.inputs if f"input:{name}" not in read]
    if unread:
        raise NetworkError("E_BINDING", f"nothing reads the inputs {', '.join(unread)}; use them, or remove them")


def check_dtypes(captured: Captured, contracts: Contracts) -> dict[str, str]:
    """Return the dtype of every tensor.

    Raises:
        NetworkError: ``E_DTYPE``, with the node: a port that takes another dtype.
    """
    dtypes = {f"input:{name}": dtype for name, dtype in contracts.input_dtypes.items()}
    for node in captured.nodes:
        for port, pattern in node.operator.input_ports(node.arguments):
            expected = contracts.dtype if pattern.dtype == "compute" else pattern.dtype
            ref = node.inputs[port]
            if expected not in ("any", dtypes[ref]):
                message = f"{node.label}: {port} takes {expected}, but {ref} is {dtypes[ref]}"
                raise NetworkError("E_DTYPE", f"{message}{_dtype_advice(ref, expected)}", node=node.id)
        references = node.outputs()
        for port, pattern in node.operator.output_ports(node.arguments):
            carried = contracts.dtype if pattern.dtype in ("compute", "any") else pattern.dtype
            dtypes[references[port]] = carried
    return dtypes


def _dtype_advice(ref: str, expected: str) -> str:
    if expected in NETWORK_DTYPES:
        return "; embedding(...) makes vectors of ids"
    if not ref.startswith("input:"):
        return "; activations are no ids"
    return f'; say input_dtype={{"{ref.removeprefix("input:")}": "{expected}"}} if it holds {expected}'


def solve(captured: Captured, contracts: Contracts) -> tuple[Facts, list[NodeView]]:
    """Return all that follows from contracts, patterns, relations and arguments, in both directions.

    Raises:
        NetworkError: ``E_CONSTRAINT``, ``E_RESHAPE``, ``E_ARGUMENT``, ``E_RESOURCE``.
    """
    facts = Facts()
    for name, shape in contracts.inputs.items():
        facts.set_shape(f"input:{name}", shape, "input_shape" if [*contracts.inputs] == ["x"] else f"input {name}")
    for name, shape in contracts.outputs.items():
        default = [*contracts.outputs] == ["output"]
        facts.set_shape(captured.outputs[name], shape, "output_shape" if default else f"output {name}")
    views = [NodeView(node, facts) for node in captured.nodes]
    users: defaultdict[str, list[int]] = defaultdict(list)
    for index, view in enumerate(views):
        for name in (*view.refs.values(), view.node.id):
            users[name].append(index)
    order = (*range(len(views)), *reversed(range(len(views))))
    stale = [True] * len(views)
    for _ in range(limits.MOST_SWEEPS):
        for index in order:
            if stale[index]:
                stale[index] = False
                facts.changed.clear()
                _apply(views[index])
                for name in facts.changed:
                    for user in users[name]:
                        stale[user] = True
        if not any(stale):
            return facts, views
    raise NetworkError("E_RESOURCE", f"the shapes are not settled after {limits.MOST_SWEEPS} passes over the network")


def _apply(view: NodeView) -> None:
    node = view.node
    try:
        view.apply()
    except NetworkError as error:
        raise node.place.error(error.code, error.message, node=node.id) from None


def complete_shapes(facts: Facts, views: list[NodeView]) -> dict[str, NetworkShape]:
    """Return the shape of every tensor at a port of a node.

    Raises:
        NetworkError: ``E_AMBIGUOUS`` or ``E_UNRESOLVED`` where something is unknown, ``E_RESOURCE``.
    """
    shapes: dict[str, NetworkShape] = {}
    for view in views:
        node = view.node
        for port, ref in view.refs.items():
            shape = facts.shape(ref).complete()
            if shape is None:
                gap = facts.shape(ref).first_gap()
                message = f"{gap} of {port} ({ref}) follows from neither side{_inference_advice(views, ref)}"
                raise node.place.error("E_AMBIGUOUS", message, node=node.id)
            if row_elements(shape) > limits.MOST_ELEMENTS:
                message = f"{port} {shape_text(shape)} has {row_elements(shape):,} elements"
                raise node.place.error("E_RESOURCE", f"{message}; at most {limits.MOST_ELEMENTS:,}", node=node.id)
            shapes[ref] = shape
    for view in views:
        missing = [name for name in _open_arguments(view) if name != view.node.operator.stores_shape]
        if missing:
            message = f"{view.node.operator.alias}: {', '.join(missing)} follows from nothing; give a value"
            raise view.node.place.error("E_UNRESOLVED", message, node=view.node.id)
    return shapes


def _inference_advice(views: list[NodeView], ref: str) -> str:
    """Return what would say it: arguments left open by the node that makes the tensor, else the tensor's use."""
    for view in views:
        missing = _open_arguments(view) if ref in view.node.outputs().values() else []
        if missing:
            return f"; give {' or '.join(missing)} of {view.node.label}"
    return "; an operator that reads it with a fixed number of axes (attention, pool_tokens, mean) would say it"


def _open_arguments(view: NodeView) -> list[str]:
    return [item.name for item in view.node.operator.arguments if view.argument(item.name) is None]
