"""Shape patterns, declarations that are refused, and operators of a user's own."""

from __future__ import annotations

from typing import Any

import pytest

import mila
from mila.network_language import BUILT_IN, Argument, Example, NodeView, Operator, plan_from_json
from mila.network_language.patterns import parse_pattern

EXAMPLE = Example(source="relu()", input_shape=("B", 6), output_shape=("B", 6))


def declared(**changes: Any) -> Operator:
    return Operator(
        **{
            "alias": "double",
            "identity": "double@1",
            "category": "mine",
            "summary": "Twice as wide.",
            "documentation": "`concatenate([x, x])`.",
            "pattern": "x[B, ..., D] -> out[B, ..., 2*D]",
            "examples": (EXAMPLE,),
            **changes,
        }
    )


def never(view: NodeView) -> None:
    """A relation that says nothing."""


def test_an_operator_of_a_user() -> None:
    registry = BUILT_IN.extended(declared())
    network = mila.resolve("linear()\ndouble()", input_shape=("B", 3), output_shape=("B", 8), registry=registry)
    assert network.nodes[0].arguments["out_features"] == 4
    assert plan_from_json(network.to_json(), registry=registry).to_json() == network.to_json()
    with pytest.raises(mila.NetworkError) as caught:
        plan_from_json(network.to_json())
    assert (caught.value.code, "double@1" in str(caught.value)) == ("E_STATE_VERSION", True)
    with pytest.raises(mila.NetworkError, match=r"axis 1 of out is 7 \(from output_shape\), no multiple of 2"):
        mila.resolve("double()", input_shape=("B", 3), output_shape=("B", 7), registry=registry)


def test_an_argument_that_nothing_says() -> None:
    slots = Argument(name="slots", type="int", inferable=True, help="Slots.")
    registry = BUILT_IN.extended(declared(arguments=(slots,), relation=never))
    with pytest.raises(mila.NetworkError, match="slots follows from nothing") as caught:
        mila.resolve("double()", input_shape=("B", 3), output_shape=("B", 6), registry=registry)
    assert (caught.value.code, caught.value.node, caught.value.line) == ("E_UNRESOLVED", "n0", 1)


def test_a_batch_that_nothing_says() -> None:
    registry = BUILT_IN.extended(declared(relation=never, batch="relation"))
    with pytest.raises(
        mila.NetworkError, match=r"the batch of out \(node:n0/out\) follows from neither side"
    ) as caught:
        mila.resolve("double()\ndouble()", input_shape=("B", 3), output_shape=("B", 12), registry=registry)
    assert caught.value.code == "E_AMBIGUOUS"


def contradicting(view: NodeView) -> None:
    """A relation that infers another number than the one that was given."""
    view.set_argument("slots", 3)


@pytest.mark.parametrize(
    ("changes", "call", "output", "message"),
    [
        ({"relation": contradicting}, "double(2)", ("B", 6), "slots is 2, but 3 is needed"),
        ({"pattern": "x[B, 4] -> out[B, 4]"}, "double()", ("B", 6), r"axis 1 of x is 3 \(from input_shape\), but 4 is"),
        ({"pattern": "x[B, ..., D, E] -> out[B, D]"}, "double()", ("B", 6), "3 or more axes .* has rank 2"),
    ],
)
def test_what_patterns_and_relations_refuse(
    changes: dict[str, Any], call: str, output: tuple[str | int, ...], message: str
) -> None:
    slots = Argument(name="slots", type="int", inferable=True, help="Slots.")
    registry = BUILT_IN.extended(declared(arguments=(slots,), **changes))
    with pytest.raises(mila.NetworkError, match=message) as caught:
        mila.resolve(call, input_shape=("B", 3), output_shape=output, registry=registry)
    assert caught.value.code == "E_CONSTRAINT"


def test_a_size_of_the_pattern_is_inferred() -> None:
    registry = BUILT_IN.extended(declared(pattern="x[B, 4] -> out[B, 2]"))
    network = mila.resolve("linear()\ndouble()", input_shape=("B", 3), output_shape=("B", 2), registry=registry)
    assert network.nodes[0].arguments["out_features"] == 4


def test_an_operator_that_is_not_there() -> None:
    with pytest.raises(mila.NetworkError, match="did you mean linear") as caught:
        BUILT_IN["liner"]
    assert caught.value.code == "E_OPERATOR"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"alias": "Double"}, "cannot be called"),
        ({"alias": "init"}, "cannot be called"),
        ({"identity": "double"}, "name and a version"),
        ({"examples": ()}, "an example"),
        ({"summary": ""}, "summary"),
        ({"arguments": (Argument(name="x", type="int", help="A port's name."),)}, "different names"),
        ({"pattern": "x[B, D] -> x[B, D]"}, "different names"),
        ({"arguments": (Argument(name="n", type="int", help="A size.", dimension="E"),)}, "a symbol of the pattern"),
        ({"pattern": "x* -> out"}, "the argument that counts them"),
        ({"stores_shape": "shape"}, "stores_shape names an argument"),
    ],
)
def test_a_wrong_declaration(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(mila.NetworkError, match=reason) as caught:
        declared(**changes)
    assert caught.value.code == "E_REGISTRY"


@pytest.mark.parametrize("changes", [{"alias": "relu"}, {"identity": "relu@1"}])
def test_a_name_that_is_taken(changes: dict[str, Any]) -> None:
    with pytest.raises(mila.NetworkError, match="is taken") as caught:
        BUILT_IN.extended(declared(**changes))
    assert caught.value.code == "E_REGISTRY"


@pytest.mark.parametrize(
    "argument",
    [
        {"name": "init", "type": "int", "help": "Reserved."},
        {"name": "n", "type": "int", "help": ""},
        {"name": "n", "type": "float", "help": "A size.", "dimension": "D"},
        {"name": "n", "type": "int", "help": "A number.", "default": 0, "minimum": 1},
        {"name": "n", "type": "int", "help": "A number.", "stored": True},
    ],
)
def test_a_wrong_argument(argument: dict[str, Any]) -> None:
    with pytest.raises(mila.NetworkError) as caught:
        Argument(**argument)
    assert caught.value.code == "E_REGISTRY"


def test_a_pattern() -> None:
    pattern = parse_pattern("x[B, T, 2*D_in], ids[B,16]:int64 -> out[B, ...]:any, rest")
    assert [port.name for port in (*pattern.inputs, *pattern.outputs)] == ["x", "ids", "out", "rest"]
    assert [port.shape_text() for port in pattern.inputs] == ["[B, T, 2*D_in]", "[B, 16]"]
    assert [port.dtype for port in (*pattern.inputs, *pattern.outputs)] == ["compute", "int64", "any", "compute"]
    assert pattern.symbols() == {"T", "D_in"}


@pytest.mark.parametrize(
    "pattern",
    [
        "x[B, D]",
        "x[B, D] -> out[B, D] -> out[B, D]",
        "x[D, B] -> out[B, D]",
        "x[B, B] -> out[B, D]",
        "x[B] -> out[B, D]",
        "x[B, A, C, D, E] -> out[B, D]",
        "x[B, ..., D, ...] -> out[B, D]",
        "x[B, 0*D] -> out[B, D]",
        "x[B, D*2] -> out[B, D]",
        "x[B, D]:int8 -> out[B, D]",
        "x[B, D], x[B, D] -> out[B, D]",
        "x*, y -> out",
        "x -> out*[B, D]",
        "name[B, D] -> out[B, D]",
        "if[B, D] -> out[B, D]",
        "X[B, D] -> out[B, D]",
        " -> out[B, D]",
        "",
    ],
)
def test_a_wrong_pattern(pattern: str) -> None:
    with pytest.raises(mila.NetworkError, match="shape pattern") as caught:
        parse_pattern(pattern)
    assert caught.value.code == "E_REGISTRY"
