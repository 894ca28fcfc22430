"""Saved plans: what the digests cover, and what a changed plan is refused for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

import mila
from mila.network_language import plan_from_json
from tests.network_language.network_cases import CASE_BY_ID, resolve_case

Document = dict[str, Any]


def plan() -> Document:
    document: Document = json.loads(resolve_case(CASE_BY_ID["gt-reference-1"]).to_json())
    return document


def signed(document: Document, name: str, *left_out: str) -> str:
    covered = {key: value for key, value in document.items() if key not in (name, *left_out)}
    text = json.dumps(covered, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_form_of_a_plan() -> None:
    text = resolve_case(CASE_BY_ID["gt-reference-1"]).to_json()
    document = json.loads(text)
    assert text == json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert document["artifact_digest"] == signed(document, "artifact_digest")
    for node in document["nodes"]:
        assert {*node.pop("provenance").values()} <= {"explicit", "operator default", "inferred"}
        assert node.pop("source").keys() == {"argument_origins", "column", "line"}
    assert document["semantic_digest"] == signed(document, "semantic_digest", "artifact_digest", "frontend")


def test_the_semantic_digest_is_that_of_the_meaning() -> None:
    case = dict(CASE_BY_ID["gt-reference-1"])
    network = resolve_case(case)
    case["config"] = (
        "# the same\n\nt = embedding(ids=x, dim=8, num_embeddings=32)\nf = linear(t)\ngather_token(ids=x, x=f)"
    )
    same = resolve_case(case)
    assert same.semantic_digest == network.semantic_digest
    assert same.artifact_digest != network.artifact_digest
    case["config"] = case["config"].replace("linear(t)", "linear(t, bias=False)")
    assert resolve_case(case).semantic_digest != network.semantic_digest


def change(*path: Any, to: Any) -> Callable[[Document], None]:
    def apply(document: Document) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return apply


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (change("dtype", to="bfloat16"), "E_INTEGRITY"),
        (change("semantic_digest", to="0" * 64), "E_INTEGRITY"),
        (change("nodes", 1, "args", to={"bias": True, "spectral_norm": False, "out_features": 8}), "E_INTEGRITY"),
        (change("nodes", 0, "output_shapes", "out", to=["B", 6, 9]), "E_INTEGRITY"),
        (change("nodes", 1, "args", "bias", to=False), "E_INTEGRITY"),
        (change("nodes", 1, "args", "bias", to=0), "E_ARGUMENT"),
        (change("nodes", 1, "args", "gain", to=1), "E_ARGUMENT"),
        (change("nodes", 0, "op", to="embedding@2"), "E_STATE_VERSION"),
        (change("nodes", 0, "initialization", "kind", to="other@1"), "E_STATE_VERSION"),
        (change("schema_version", to=2), "E_STATE_VERSION"),
        (change("resolution_version", to=2), "E_STATE_VERSION"),
        (change("frontend", to="yaml"), "E_SCHEMA"),
        (change("more", to=1), "E_SCHEMA"),
        (change("nodes", 0, "source", "line", to=0), "E_SCHEMA"),
        (change("nodes", 1, "id", to="n0"), "E_NAME"),
        (change("nodes", 1, "inputs", to={"x": "node:n2/out"}), "E_BINDING"),
        (change("nodes", 1, "inputs", to={"y": "node:n0/out"}), "E_BINDING"),
        (change("nodes", 1, "outputs", to=["out", "rest"]), "E_BINDING"),
        (change("output_ref", to="node:n9/out"), "E_BINDING"),
        (change("output_shape", to=["B", 9]), "E_CONSTRAINT"),
        (change("input_dtype", to="float32"), "E_DTYPE"),
    ],
)
def test_a_changed_plan(changed: Callable[[Document], None], code: str) -> None:
    """Unsigned, it is noticed at once; signed anew, the resolution refuses it."""
    document = plan()
    changed(document)
    with pytest.raises(mila.NetworkError) as caught:
        plan_from_json(json.dumps(document))
    assert caught.value.code in ("E_INTEGRITY", "E_SCHEMA", "E_STATE_VERSION")
    document["artifact_digest"] = signed(document, "artifact_digest")
    with pytest.raises(mila.NetworkError) as caught:
        plan_from_json(json.dumps(document))
    assert caught.value.code == code, caught.value


def test_a_missing_field() -> None:
    for name in plan():
        document = plan()
        del document[name]
        with pytest.raises(mila.NetworkError) as caught:
            plan_from_json(json.dumps(document))
        assert (caught.value.code, name in str(caught.value)) == ("E_SCHEMA", True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "the plan is the JSON text of to_json, got NoneType"),
        ({}, "the plan is the JSON text of to_json, got dict"),
        ('{"dtype": "float', "got text that is not JSON: Unterminated string starting at character 10"),
        ("{}", "artifact_digest"),
    ],
)
def test_what_is_no_plan(text: Any, message: str) -> None:
    with pytest.raises(mila.NetworkError, match=message) as caught:
        plan_from_json(text)
    assert caught.value.code == "E_SCHEMA"


def test_a_plan_that_is_too_long() -> None:
    with pytest.raises(mila.NetworkError, match="at most 16,777,216") as caught:
        plan_from_json(" " * (16 * 1024**2 + 1))
    assert caught.value.code == "E_SCHEMA"


def chunked() -> Document:
    document: Document = json.loads(resolve_case(CASE_BY_ID["chunk-batch"]).to_json())
    return document


def many_nodes(document: Document) -> None:
    document["nodes"] = document["nodes"] * 2000


def many_edges(document: Document) -> None:
    first = document["nodes"][0]
    first["args"]["input_count"] = 1024
    first["inputs"] = {f"x{index}": "input:x" for index in range(1024)}
    document["nodes"] = [{**first, "id": f"m{index}"} for index in range(17)]
    document["output_ref"] = "node:m0/out"


def same_names(document: Document) -> None:
    document["inputs"] = [{"name": "x", "shape": ["B", 4], "dtype": "float32"}] * 2


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        (many_nodes, "E_RESOURCE", "4,096 nodes"),
        (many_edges, "E_RESOURCE", "17,408 inputs of nodes"),
        (same_names, "E_SCHEMA", "stands twice"),
        (change("nodes", 0, "args", "input_count", to=10**12), "E_RESOURCE", "1,024 ports"),
        (change("nodes", 2, "args", to={"dim": 0}), "E_ARGUMENT", "chunks is missing"),
    ],
)
def test_a_plan_beyond_the_limits(changed: Callable[[Document], None], code: str, message: str) -> None:
    document = chunked()
    changed(document)
    document["artifact_digest"] = signed(document, "artifact_digest")
    with pytest.raises(mila.NetworkError, match=message) as caught:
        plan_from_json(json.dumps(document))
    assert caught.value.code == code
