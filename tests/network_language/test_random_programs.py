"""Whatever the text says: a resolved network or one `NetworkError`, and what is resolved is saved without a change."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mila
from mila.network_language import plan_from_json
from tests.network_language.network_cases import CASE_BY_ID, resolve_case
from tests.network_language.programs import damaged_texts, programs, valid_programs

LARGEST = 268_435_456


def outcome(arguments: dict[str, Any]) -> str:
    """Resolve; return the code of the error, or check what came and return ``resolved``."""
    try:
        network = mila.resolve(**arguments)
    except mila.NetworkError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        assert (
            error.line is None
            or 1 <= error.line <= arguments["source"].count("\n") + arguments["source"].count("\r") + 1
        )
        return error.code
    text = network.to_json()
    again = plan_from_json(text)
    assert again.to_json() == text
    assert (str(again), again.network_table()) == (str(network), network.network_table())
    assert again.semantic_digest == network.semantic_digest
    for node in network.nodes:
        for shape in (*node.input_shapes.values(), *node.output_shapes.values()):
            elements = 1
            for size in shape[1:]:
                elements *= int(size)
            assert 2 <= len(shape) <= 4 and 1 <= elements <= LARGEST
        assert all(size >= 1 for shape in node.parameter_shapes().values() for size in shape)
    return "resolved"


@settings(max_examples=200)
@given(valid_programs())
def test_valid_programs(program: tuple[dict[str, Any], list[tuple[int, ...]]]) -> None:
    """They resolve, with the shapes that each line makes by itself, and keep them when widths are left to inference."""
    arguments, sizes = program
    assert outcome(arguments) == "resolved"
    network = mila.resolve(**arguments)
    outermost = {node.place.line: node for node in network.nodes}  # the last call of a line is the outermost
    assert [next(iter(node.output_shapes.values()))[1:] for node in outermost.values()] == sizes
    source: str = arguments["source"]
    if source.endswith("linear(h, 5)\nout = h"):
        shorter = mila.resolve(**{**arguments, "source": source.removesuffix(", 5)\nout = h") + ")\nout = h"})
        assert shorter.semantic_digest == network.semantic_digest


@settings(max_examples=400)
@given(damaged_texts())
def test_damaged_texts(arguments: dict[str, Any]) -> None:
    outcome(arguments)


def test_random_programs() -> None:
    """Enough of them resolve, and the errors of the others are of many kinds."""
    codes: Counter[str] = Counter()

    @settings(max_examples=400)
    @given(programs())
    def run(arguments: dict[str, Any]) -> None:
        codes[outcome(arguments)] += 1

    run()
    assert codes["resolved"] > 20
    assert {"E_CONSTRAINT", "E_BINDING", "E_ARGUMENT", "E_DTYPE"} <= {*codes}


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1,
        2,
        1.5,
        10**12,
        "",
        "x",
        "B",
        "9*B",
        "node:n0/out",
        "input:x",
        [],
        [1],
        ["B", 6],
        {},
        {"x": 1},
    ]
)


@st.composite
def changed_plans(draw: st.DrawFn) -> str:
    """A saved plan with values changed at random places; half of the time its digest is right again."""
    case = CASE_BY_ID[draw(st.sampled_from(["gt-reference-2", "chunk-batch", "con-multi-out", "reshape-prefix"]))]
    document = json.loads(resolve_case(case).to_json())
    for _ in range(draw(st.integers(1, 2))):
        place: Any = document
        while True:
            keys = [*place] if isinstance(place, dict) else [*range(len(place))]
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or not place[key] or draw(st.integers(0, 5)) == 0:
                break
            place = place[key]
        if draw(st.integers(0, 4)):
            place[key] = copy.deepcopy(draw(VALUES))
        else:
            del place[key]
        if not document.get("nodes"):
            break
    if draw(st.booleans()):
        document.pop("artifact_digest", None)
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        document["artifact_digest"] = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps(document)


@settings(max_examples=400)
@given(changed_plans())
def test_changed_plans(text: str) -> None:
    try:
        network = plan_from_json(text)
    except mila.NetworkError:
        return
    assert json.loads(network.to_json()) == json.loads(text)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "{}", "null", '{"nodes": NaN}', "\ud800", "[" * 10_000, '{"a":1,"a":1}']
)
def test_what_is_no_plan(text: str) -> None:
    with pytest.raises(mila.NetworkError) as caught:
        plan_from_json(text)
    assert caught.value.code == "E_SCHEMA"
