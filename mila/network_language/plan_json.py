"""The saved form of a resolved network: canonical JSON with a digest of its meaning and one of the whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mila.network_language.resolved import ResolvedNetwork, ResolvedNode

SCHEMA_VERSION = 1
RESOLUTION_VERSION = 1
FRONTEND = "python_config@1"
INITIALIZATION = "torch_default@1"


def to_json(network: ResolvedNetwork) -> str:
    """Return the plan, both digests in it."""
    document = _document(network)
    document["artifact_digest"] = _digest(document)
    return canonical(document)


def semantic_digest(network: ResolvedNetwork) -> str:
    """Return the digest of the plan without what only describes the text: places, origins of arguments, frontend."""
    return str(_document(network)["semantic_digest"])


def artifact_digest(network: ResolvedNetwork) -> str:
    """Return the digest of all but this digest."""
    return _digest(_document(network))


def _document(network: ResolvedNetwork) -> dict[str, Any]:
    document = _meaning(network)
    document["semantic_digest"] = _digest(document)
    document["frontend"] = FRONTEND
    for data, node in zip(document["nodes"], network.nodes, strict=True):
        data["provenance"] = dict(node.provenance)
        data["source"] = {
            "argument_origins": dict(node.given),
            "column": node.place.column,
            "line": node.place.line,
        }
    return document


def _meaning(network: ResolvedNetwork) -> dict[str, Any]:
    first_input, first_output = network.inputs[0], network.outputs[0]
    document: dict[str, Any] = {
        "dtype": network.dtype,
        "input_dtype": first_input.dtype,
        "input_shape": first_input.shape,
        "nodes": [_node(node) for node in network.nodes],
        "output_ref": first_output.ref,
        "output_shape": first_output.shape,
        "resolution_version": RESOLUTION_VERSION,
        "schema_version": SCHEMA_VERSION,
    }
    if [tensor.name for tensor in network.inputs] != ["x"]:
        document["inputs"] = [
            {"name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype} for tensor in network.inputs
        ]
    if [tensor.name for tensor in network.outputs] != ["output"]:
        document["outputs"] = [
            {"name": tensor.name, "ref": tensor.ref, "shape": tensor.shape} for tensor in network.outputs
        ]
    return document


def _node(node: ResolvedNode) -> dict[str, Any]:
    return {
        "args": dict(node.arguments),
        "id": node.id,
        "initialization": {"kind": INITIALIZATION, "overrides": dict(node.settings.initialization)},
        "input_shapes": dict(node.input_shapes),
        "inputs": dict(node.inputs),
        "op": node.operator.identity,
        "output_shapes": dict(node.output_shapes),
        "outputs": list(node.output_shapes),
        "trainability": {
            "default": node.settings.trainable,
            "overrides": dict(node.settings.trainable_overrides),
        },
    }


def canonical(document: Mapping[str, Any]) -> str:
    """Return the one text of a document: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(document).encode()).hexdigest()
