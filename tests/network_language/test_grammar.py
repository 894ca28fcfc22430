"""What the text may say: names, the current tensor, ports, outputs, places."""

from __future__ import annotations

from typing import Any

import pytest

import mila


def resolve(source: str, **contracts: Any) -> mila.ResolvedNetwork:
    return mila.resolve(source, **{"input_shape": ("B", 6), "output_shape": ("B", 6), **contracts})


def sources(network: mila.ResolvedNetwork) -> list[tuple[str, ...]]:
    return [tuple(ref.removeprefix("node:") for ref in node.inputs.values()) for node in network.nodes]


@pytest.mark.parametrize(
    ("source", "expected", "output"),
    [
        ("relu()\nsilu()", [("input:x",), ("n0/out",)], "n1/out"),
        ("relu(); silu() # both", [("input:x",), ("n0/out",)], "n1/out"),
        ("relu(\n    x,\n)", [("input:x",)], "n0/out"),
        ("h = relu()\nx = silu(x)\nadd(h, x)", [("input:x",), ("input:x",), ("n0/out", "n1/out")], "n2/out"),
        ("h = x\nrelu()\nh = h\nadd(h, silu())", [("input:x",), ("n0/out",), ("input:x", "n1/out")], "n2/out"),
        ("add(b=relu(), a=silu())", [("input:x",), ("n0/out",), ("n1/out", "n0/out")], "n2/out"),
        ("add(relu(), b=x)", [("input:x",), ("n0/out", "input:x")], "n1/out"),
        ("parts = split(3)\na, b = parts\nconcat(b, a)", [("input:x",), ("n0/rest", "n0/first")], "n1/out"),
        ("[a, b] = split(3)\nconcat(x1=b, x0=a)", [("input:x",), ("n0/first", "n0/rest")], "n1/out"),
        ("a, = chunk(1)\nrelu(a)", [("input:x",), ("n0/out0",)], "n1/out"),
        ("a, b = relu(), x\nadd(a, b)", [("input:x",), ("n0/out", "input:x")], "n1/out"),
        ("pair = x, x\na, b = pair\nadd(a, b)", [("input:x", "input:x")], "n0/out"),
        ("out = relu()\nadd(out, out)\nout = silu()", [("input:x",), ("n0/out",) * 2, ("n1/out",)], "n2/out"),
        ("relu()\nout = x\nout = silu()", [("input:x",), ("n0/out",)], "n1/out"),
        ("", [], "input:x"),
        ("\n\n   # nothing\n", [], "input:x"),
    ],
)
def test_what_reads_what(source: str, expected: list[tuple[str, ...]], output: str) -> None:
    network = resolve(source)
    assert sources(network) == expected
    assert network.outputs[0].ref.removeprefix("node:") == output


def test_arguments_by_position_and_by_name_are_the_same() -> None:
    calls = (
        "linear(8)",
        "linear(x, 8)",
        "linear(out_features=8)",
        "linear(x=x, out_features=+8)",
        'linear(8, name="n" "0")',
    )
    digests = {resolve(call, output_shape=("B", 8)).semantic_digest for call in calls}
    assert len(digests) == 1


@pytest.mark.parametrize(
    "calls",
    [
        ("reshape(2, 3)", "reshape([2, 3])", "reshape((2, 3))", "reshape(x, [2, 3])", "reshape(shape=[2, 3])"),
        ("reshape(2, 3); permute(2, 1); permute(2, 1)", "reshape(2, 3); permute([2, 1]); permute(dims=(2, 1))"),
        ("linear(3); reshape(1, 3); pad(0, 0, 1, 0)", "linear(3); reshape(1, 3); pad([0, 0, 1, 0])"),
        ("linear(6); reshape()", "linear(6); reshape([])"),
    ],
)
def test_integers_by_position_and_as_a_list_are_the_same(calls: tuple[str, ...]) -> None:
    assert len({resolve(call, output_shape=("B", 2, 3)).semantic_digest for call in calls}) == 1


def test_an_integer_is_stored_as_a_float_where_one_is_meant() -> None:
    value = resolve("scale(2)").nodes[0].arguments["factor"]
    assert (value, type(value)) == (2.0, float)


def test_named_inputs_and_outputs_keep_their_order() -> None:
    network = resolve(
        "b = linear(y, 4)\na = relu(x)",
        input_shape={"y": (3, 2), "x": (3, 6)},
        output_shape={"b": (3, 4), "a": (3, 6)},
        dtype="bfloat16",
    )
    header = "Network: y=[3, 2], x=[3, 6] -> b=[3, 4], a=[3, 6]  dtype=bfloat16"
    assert str(network).splitlines()[0] == network.network_table().splitlines()[0] == header
    assert [tensor.dtype for tensor in (*network.inputs, *network.outputs)] == ["bfloat16"] * 4
    assert repr(network) == "<ResolvedNetwork y=[3, 2], x=[3, 6] -> b=[3, 4], a=[3, 6]: 2 nodes, Parameters: 12>"


def test_a_named_output_has_to_be_bound_even_where_it_is_called_output() -> None:
    with pytest.raises(mila.NetworkError, match="names output") as caught:
        resolve("relu()", output_shape={"output": ("B", 6)})
    assert caught.value.code == "E_OUTPUT"
    assert resolve("output = relu()", output_shape={"output": ("B", 6)}).outputs[0].ref == "node:n0/out"


@pytest.mark.parametrize(
    ("source", "line", "column"),
    [
        ("  relu()\n  liner()", 2, 3),
        ("\trelu()\n\tliner()", 2, 2),
        ("é = relu(); liner()", 1, 13),
        ("relu()\r\nliner()", 2, 1),
        ("relu()\rliner()", 2, 1),
        ("add(relu(),\n    liner())", 2, 5),
        ("    relu(", 1, 9),
    ],
)
def test_a_column_counts_the_characters_of_the_line_as_it_was_given(source: str, line: int, column: int) -> None:
    with pytest.raises(mila.NetworkError) as caught:
        resolve(source)
    assert (caught.value.code, caught.value.line, caught.value.column) == ("E_SYNTAX", line, column)


def test_nothing_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not where Python would: in an f-string, a default, a decorator, a comprehension."""
    called: list[str] = []
    monkeypatch.setattr("builtins.relu", lambda *_: called.append("relu"), raising=False)
    for source in ("relu()", "f'{relu()}'", "def f(a=relu()): pass", "@relu\ndef f(): pass", "[relu() for _ in x]"):
        try:
            resolve(source)
        except mila.NetworkError as error:
            assert error.code == "E_SYNTAX"
    assert not called
