"""Every network of the shared cases: tables to the letter, counts, shapes, arguments; or code, node, line, column."""

from __future__ import annotations

import json
from typing import Any

import pytest

import mila
from mila.network_language import plan_from_json
from tests.network_language.network_cases import CASE_BY_ID, CASES, resolve_case

GOOD = [case for case in CASES if case["expect"]["ok"]]
BAD = [case for case in CASES if not case["expect"]["ok"]]
DIGESTS = {
    "gt-reference-1": "5c72441a637e7a9e03131c8d716d748dfde6fc4adbf187e3ed7a21b4d236bd76",
    "gt-reference-2": "08787e987058e2df98ea1e862d0ba4b10f94fda1c35463a08111c62ff2909250",
}


def test_there_are_cases() -> None:
    assert (len(GOOD), len(BAD)) == (33, 37)


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case["id"])
def test_a_good_network(case: dict[str, Any]) -> None:
    expected = case["expect"]
    network = resolve_case(case)
    assert str(network) == expected["table"]
    assert network.network_table() == expected["model_table"]
    assert network.parameter_count() == expected["parameters"]
    assert network.parameters_line == expected["parameters_line"]
    assert network.parameter_counts() == expected["parameter_counts"]
    shapes = {f"nodes.n_{name}": [*shape] for name, shape in network.parameter_shapes().items()}
    assert shapes == expected["parameter_shapes"]
    assert json.loads(json.dumps({node.id: dict(node.arguments) for node in network.nodes})) == expected["args"]
    frozen = {
        f"{node.id}.{name}": False
        for node in network.nodes
        for name in node.parameter_shapes()
        if not node.settings.is_trainable(name)
    }
    assert frozen == expected["trainable"]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case["id"])
def test_a_wrong_network(case: dict[str, Any]) -> None:
    with pytest.raises(mila.NetworkError) as caught:
        resolve_case(case)
    error = caught.value
    found = {"ok": False, "code": error.code, "node": error.node, "line": error.line, "column": error.column}
    assert found == case["expect"], error


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case["id"])
def test_a_saved_plan_is_the_same_network(case: dict[str, Any]) -> None:
    network = resolve_case(case)
    text = network.to_json()
    again = plan_from_json(text)
    assert again.to_json() == text
    assert (str(again), again.network_table()) == (str(network), network.network_table())


@pytest.mark.parametrize("name", DIGESTS)
def test_the_digests_of_the_reference_examples(name: str) -> None:
    assert resolve_case(CASE_BY_ID[name]).semantic_digest == DIGESTS[name]
