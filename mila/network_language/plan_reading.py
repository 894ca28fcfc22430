"""A saved plan, read without trust: its form, its digests, and then the whole resolution again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from mila.errors import CheckpointError, NetworkError
from mila.network_language import limits, plan_json
from mila.network_language.capture import (
    EXPLICIT,
    NODE_NAME,
    Captured,
    Node,
    Ref,
    normalized_arguments,
)
from mila.network_language.contracts import contract_names, read_contracts
from mila.network_language.operator import Operator
from mila.network_language.operators import BUILT_IN
from mila.network_language.registry import Registry
from mila.network_language.resolved import ResolvedNetwork, ResolvedNode
from mila.network_language.resolving import resolve_captured
from mila.network_language.settings import Settings, read_settings
from mila.network_language.source import Place
from mila.network_language.wording import shown
from mila.serialization.strict_json import parse_json_object

_PLAN = "the plan"
_Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Shape = list[int | str]
_Origins = dict[str, Literal["explicit", "operator default", "inferred"]]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Initialization(_Model):
    kind: str
    overrides: dict[str, float]


class _Trainability(_Model):
    default: bool | None
    overrides: dict[str, bool]


class _Source(_Model):
    argument_origins: _Origins
    column: int = Field(ge=1)
    line: int = Field(ge=1)


class _Node(_Model):
    args: dict[str, Any]
    id: str
    initialization: _Initialization
    input_shapes: dict[str, _Shape]
    inputs: dict[str, str]
    op: str
    output_shapes: dict[str, _Shape]
    outputs: list[str]
    provenance: _Origins
    source: _Source
    trainability: _Trainability


class _Input(_Model):
    name: str
    shape: _Shape
    dtype: str


class _Output(_Model):
    name: str
    ref: str
    shape: _Shape


class _Plan(_Model):
    artifact_digest: _Digest
    dtype: str
    frontend: Literal["python_config@1"]
    input_dtype: str
    input_shape: _Shape
    inputs: list[_Input] | None = Field(default=None, min_length=1)
    nodes: list[_Node]
    output_ref: str
    output_shape: _Shape
    outputs: list[_Output] | None = Field(default=None, min_length=1)
    resolution_version: int
    schema_version: int
    semantic_digest: _Digest


def plan_from_json(text: str | bytes, *, registry: Registry | None = None) -> ResolvedNetwork:
    """Return the network of a saved plan: everything is resolved again and compared with what was saved.

    Args:
        text: what ``ResolvedNetwork.to_json`` gave.
        registry: the operators; by default those of Mila.

    Raises:
        NetworkError: ``E_SCHEMA`` for another form, ``E_STATE_VERSION`` for operators or versions that are not known
            here, ``E_INTEGRITY`` for a plan that was changed, and all that a definition can be refused for.
    """
    if not isinstance(text, str | bytes):
        raise NetworkError("E_SCHEMA", f"{_PLAN} is the JSON text of to_json, got {type(text).__name__}")
    document = _read(text)
    for name in ("schema_version", "resolution_version"):
        if document.get(name, 1) != 1:
            raise NetworkError("E_STATE_VERSION", f"{_PLAN}: {name} is 1 here, got {shown(document[name])}")
    try:
        plan = _Plan.model_validate(document)
    except ValidationError as error:
        raise NetworkError("E_SCHEMA", f"{_PLAN}: {_first_fault(error)}") from None
    _check_digest(document, "artifact_digest", plan.artifact_digest)
    operators = BUILT_IN if registry is None else registry
    nodes = _nodes(plan, operators)
    network = resolve_captured(*_captured(plan, nodes, operators))
    network = replace(network, nodes=tuple(map(_with_origins, network.nodes, plan.nodes)))
    if network.semantic_digest != plan.semantic_digest or network.to_json() != plan_json.canonical(document):
        raise NetworkError("E_INTEGRITY", f"{_PLAN}: resolved again it is another network than the one saved")
    return network


def _read(text: str | bytes) -> dict[str, Any]:
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if len(data) > limits.LARGEST_PLAN_BYTES:
        raise NetworkError("E_SCHEMA", f"{_PLAN} has {len(data):,} bytes; at most {limits.LARGEST_PLAN_BYTES:,}")
    try:
        return parse_json_object(data, _PLAN, what="plan")
    except CheckpointError as error:
        raise NetworkError("E_SCHEMA", str(error)) from None


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']}"


def _check_digest(document: Mapping[str, Any], name: str, expected: str) -> None:
    covered = {key: value for key, value in document.items() if key != name}
    if hashlib.sha256(plan_json.canonical(covered).encode()).hexdigest() != expected:
        raise NetworkError("E_INTEGRITY", f"{_PLAN}: it is not what its {name} was computed from; it was changed")


def _captured(plan: _Plan, nodes: list[Node], registry: Registry) -> tuple[Captured, Any]:
    inputs = plan.inputs or [_Input(name="x", shape=plan.input_shape, dtype=plan.input_dtype)]
    outputs = plan.outputs or [_Output(name="output", ref=plan.output_ref, shape=plan.output_shape)]
    input_shapes = contract_names(_unique([(item.name, item.shape) for item in inputs]), "x", registry)
    output_shapes = contract_names(_unique([(item.name, item.shape) for item in outputs]), "output", registry)
    known = {f"input:{name}" for name in input_shapes}
    for node in nodes:
        _check_refs(node.inputs.values(), known, node.id)
        known.update(node.outputs().values())
    refs = {item.name: item.ref for item in outputs}
    _check_refs(refs.values(), known, None)
    contracts = read_contracts(input_shapes, output_shapes, plan.dtype, {item.name: item.dtype for item in inputs})
    return Captured(nodes, refs), contracts


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise NetworkError("E_SCHEMA", f"{_PLAN}: a name of an input or output stands twice")
    return dict(pairs)


def _check_refs(refs: Any, known: set[Ref], node: str | None) -> None:
    for ref in refs:
        if ref not in known:
            raise NetworkError(
                "E_BINDING", f"{_PLAN}: {shown(ref)} is nothing that exists before it is read", node=node
            )


def _nodes(plan: _Plan, registry: Registry) -> list[Node]:
    if len(plan.nodes) > limits.MOST_NODES:
        raise NetworkError("E_RESOURCE", f"{_PLAN}: more than {limits.MOST_NODES:,} nodes")
    seen: set[str] = set()
    nodes = []
    for data in plan.nodes:
        if not NODE_NAME.fullmatch(data.id) or len(data.id) > limits.LONGEST_NAME or data.id in seen:
            raise NetworkError("E_NAME", f"{_PLAN}: {shown(data.id)} is no name of a node, or stands twice")
        seen.add(data.id)
        nodes.append(_restored(data, registry.with_identity(data.op)))
    return nodes


def _restored(data: _Node, operator: Operator) -> Node:
    place = Place(data.source.line, data.source.column)
    if data.initialization.kind != plan_json.INITIALIZATION:
        message = f"{_PLAN}: no initialization {shown(data.initialization.kind)} here"
        raise NetworkError("E_STATE_VERSION", message, node=data.id)
    unknown = [name for name in data.args if name not in (argument.name for argument in operator.arguments)]
    if unknown:
        raise NetworkError("E_ARGUMENT", f"{_PLAN}: {operator.alias} has no argument {shown(unknown[0])}", node=data.id)
    if operator.count is not None and operator.count not in data.args:
        raise NetworkError("E_ARGUMENT", f"{_PLAN}: {operator.count} is missing", node=data.id)
    arguments, _ = normalized_arguments(operator, data.args, place)
    if operator.count is not None and int(data.args[operator.count]) > limits.MOST_ITEMS:
        raise NetworkError("E_RESOURCE", f"{_PLAN}: more than {limits.MOST_ITEMS:,} ports", node=data.id)
    inputs = {port: data.inputs.get(port, "") for port, _ in operator.input_ports(arguments)}
    settings = _settings(data, operator.alias)
    node = Node(data.id, operator, inputs, arguments, dict.fromkeys(arguments, EXPLICIT), settings, place)
    if len(inputs) != len(data.inputs) or "" in inputs.values() or list(node.outputs()) != data.outputs:
        raise NetworkError("E_BINDING", f"{_PLAN}: its ports are not those of {operator.alias}", node=data.id)
    return node


def _settings(data: _Node, alias: str) -> Settings:
    given: dict[str, object] = {"init": data.initialization.overrides, "trainable": data.trainability.overrides}
    return replace(read_settings(alias, given), trainable=data.trainability.default)


def _with_origins(node: ResolvedNode, data: _Node) -> ResolvedNode:
    """Return the node with the origins that were saved: in this resolution every argument was given."""
    return replace(node, given=data.source.argument_origins, provenance=data.provenance)
