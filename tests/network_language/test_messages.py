"""Every code is reached, at its place, and the message names what contradicts what, and where each came from."""

from __future__ import annotations

from typing import Any, get_args

import pytest

import mila
from mila.errors import NetworkErrorCode

#: code, source, contracts; then what the message says, and node, line and column.
Case = tuple[str, str, dict[str, Any], tuple[str, ...], tuple[str | None, int | None, int | None]]
IDS = {"input_shape": ("B", 6), "input_dtype": "int64"}
SAME = {"output_shape": ("B", 6)}
DOUBLED = "h = concat(h, h, axis=0);"
TOKENS = {"input_shape": ("B", 2, 2), "output_shape": ("B", 2, 2)}
WIDE = {"input_shape": {"x": ("B", 6, 3), "y": ("B", 6, 2)}, "output_shape": ("B", 6, 3)}
HALF = {"output_shape": ("B", 6), "dtype": "float16"}
GAMMAS = "transformer_block(2, layer_scale=True, layer_scale_init=1e5)"
HUGE = {"input_shape": ("B", 10_000, 1), "output_shape": ("B", 10_000, 1)}


def zigzag(links: int) -> str:
    """Widths that are equal one after the other, in an order in which every pass settles two of them."""
    order = [link for pair in zip(range(links), reversed(range(links)), strict=True) for link in pair][:links]
    places = {link: place for place, link in enumerate(order)}
    calls = [f"t{link} = add(s{places[link]}, s{places[link] + 1})" for link in range(links)]
    first = "s0 = x"
    sources = [f"s{index} = linear(x)" for index in range(1, links + 1)]
    return "\n".join([first, *sources, *calls, f"concat({', '.join(f't{link}' for link in range(links))})"])


ZIGZAG = zigzag(530)
CASES: list[Case] = [
    ("E_SYNTAX", "x.relu()", {}, ("by its name", "an attribute"), (None, 1, 1)),
    ("E_SYNTAX", "for i in x: relu()", {}, ("a loop", "outside the language"), (None, 1, 1)),
    ("E_SYNTAX", "'text'", {}, ("a call of an operator or an assignment",), (None, 1, 1)),
    ("E_SYNTAX", "h = 3", {}, ("a tensor or a call", "a literal"), (None, 1, 5)),
    ("E_SYNTAX", "a = b = relu()", {}, ("one target",), (None, 1, 1)),
    ("E_SYNTAX", "a, a = split(2)", {}, ("'a' is bound twice",), (None, 1, 4)),
    ("E_SYNTAX", "relu()\nrelu(*x)", {}, ("a starred item",), (None, 2, 6)),
    ("E_SYNTAX", "relu(**{})", {}, ("write the arguments out",), (None, 1, 6)),
    ("E_SYNTAX", "linear(8, out_features=8, out_features=8)", {}, ("'out_features' is given twice",), (None, 1, 27)),
    ("E_SYNTAX", "liner(8)", {}, ("no operator 'liner'", "did you mean linear?"), (None, 1, 1)),
    ("E_SYNTAX", "__h = relu()", {}, ("two underscores",), (None, 1, 1)),
    ("E_SYNTAX", "linear(1j)", {}, ("a literal is outside",), (None, 1, 8)),
    ("E_SYNTAX", "    relu()\n    é = relu(x); linear(8)(2)", {}, ("by its name",), (None, 2, 18)),
    ("E_RESOURCE", "relu()\n" * 4200, {}, ("4,201 lines", "4,096"), (None, None, None)),
    ("E_RESOURCE", "#" * 70_000, {}, ("70,000 bytes", "65,536"), (None, None, None)),
    ("E_RESOURCE", "relu();" * 5000, {}, ("16,384 syntax nodes",), (None, None, None)),
    ("E_RESOURCE", "relu(" * 100 + ")" * 100, {}, ("96 levels",), (None, None, None)),
    ("E_RESOURCE", "-" * 60_000 + "1", {}, ("nested too deeply",), (None, None, None)),
    ("E_RESOURCE", f"reshape({'1,' * 1100})", {}, ("1,100 items", "1,024"), (None, 1, 1)),
    ("E_RESOURCE", f"relu(name='{'a' * 20_000}')", {}, ("16,384 bytes",), (None, 1, 11)),
    ("E_RESOURCE", f"linear({2**300})", {}, ("256 bits",), (None, 1, 8)),
    ("E_RESOURCE", f"linear({2**70})", {}, ("64 bits", "71"), (None, 1, 1)),
    ("E_RESOURCE", "relu()", {"input_shape": ("B", 2_000_000)}, ("1,048,576",), (None, None, None)),
    ("E_RESOURCE", "relu()", {"input_shape": ("B", 10**5000)}, ("1,048,576",), (None, None, None)),
    ("E_RESOURCE", "", {"input_shape": ("B", 20_000, 20_000)}, ("400,000,000 elements",), (None, None, None)),
    ("E_RESOURCE", "linear(2000000)\nlinear()", {}, ("2,000,000", "out_features=2000000", "1,048,576"), ("n0", 1, 1)),
    ("E_RESOURCE", "linear(1048576);linear(1048576)", {"output_shape": ("B", 1048576)}, ("bytes",), ("n1", 1, 17)),
    ("E_RESOURCE", f"h = x; {DOUBLED * 11}a, b = chunk(2, dim=0); out = a", {}, ("2048*B", "1,024"), ("n10", 1, 262)),
    ("E_RESOURCE", "moe(1024, 1);" * 17, TOKENS, ("65,552 parameters", "65,536"), ("n15", 1, 196)),
    ("E_RESOURCE", ("relu(" * 90 + ")" * 90 + "\n") * 46, {}, ("4,096 nodes",), (None, 46, 216)),
    ("E_ARGUMENT", "reshape(shape=3)", {}, ("a list of integers, got 3",), (None, 1, 1)),
    ("E_ARGUMENT", "reshape(shape=3)", {}, ("write shape=[3]",), (None, 1, 1)),
    ("E_ARGUMENT", "reshape(2, [3])", {}, ("shape is an integer, got [3]",), (None, 1, 1)),
    ("E_ARGUMENT", "permute(0, 2, 1)", {}, ("got 0", "axis 0 is the batch", "is left out"), (None, 1, 1)),
    ("E_ARGUMENT", "mean(0)", {}, ("got 0", "axis 0 is the batch"), (None, 1, 1)),
    ("E_ARGUMENT", "add(x, x, x)", {}, ("takes 2 tensors (a, b), got 3",), (None, 1, 1)),
    ("E_ARGUMENT", "linear(x, x)", {}, ("takes 1 tensor (x), got 2",), (None, 1, 1)),
    ("E_ARGUMENT", "add(x, constant(value=1e5))", HALF, ("constant: value", "float16", "100000.0"), ("n0", 1, 8)),
    ("E_ARGUMENT", "pad(1, 1, value=-1e5)", {"dtype": "float16"}, ("pad: value", "float16", "-100000.0"), ("n0", 1, 1)),
    ("E_ARGUMENT", "learned_scale(init_value=7e4)", HALF, ("init_value", "float16"), ("n0", 1, 1)),
    ("E_ARGUMENT", "learned_scale(init_value=3.4e38)", {**SAME, "dtype": "bfloat16"}, ("bfloat16",), ("n0", 1, 1)),
    ("E_ARGUMENT", GAMMAS, {**TOKENS, "dtype": "float16"}, ("layer_scale_init", "float16"), ("n0", 1, 1)),
    ("E_BINDING", "add(x, 4)", {}, ("input b is a tensor, got 4", "constant(value=4)"), (None, 1, 1)),
    ("E_BINDING", "linear(9)\nlinear(x, 8)", {}, ("no output depends on n0 (linear, line 1)",), (None, None, None)),
    ("E_NAME", "out = relu", {}, ("an operator: write relu(...)",), (None, 1, 7)),
    ("E_NAME", "pool_tokens(mean)", {}, ('write "mean"',), (None, 1, 13)),
    ("E_NAME", "gelu(approximate=tanh)", {}, ('write "tanh"',), (None, 1, 18)),
    ("E_SYNTAX", "concat([x, x])", {}, ("a list holds no tensors; write concat(x, x)",), (None, 1, 9)),
    ("E_SYNTAX", f"concat(({'x, ' * 9}))", {}, ("write concat(a, b, ...)",), (None, 1, 9)),
    ("E_RESOURCE", f"linear({'9' * 5000})", {}, ("an integer of more than 256 bits",), (None, 1, 1)),
    ("E_ARGUMENT", "scale('2')", {}, ("a number, got '2'",), (None, 1, 1)),
    ("E_ARGUMENT", "linear(8, bias=x)", {}, ("True or False, got the tensor input:x",), (None, 1, 1)),
    ("E_AMBIGUOUS", "reshape(6)\nflatten()", SAME, ("the rank of out", "neither side"), ("n0", 1, 1)),
    ("E_NAME", "linear(h, 8)", {}, ("'h' is not defined",), (None, 1, 8)),
    ("E_NAME", "relu(name='N0')", {}, ("lower-case", "'N0'"), (None, 1, 1)),
    ("E_NAME", "relu(name='n1')\nrelu()", {}, ("a node 'n1' already",), (None, 2, 1)),
    ("E_NAME", "relu()", {"input_shape": {"relu": ("B", 8)}}, ("relu is an operator",), (None, None, None)),
    ("E_ARGUMENT", "linear(0)", {}, ("out_features is at least 1, got 0",), (None, 1, 1)),
    ("E_ARGUMENT", "linear(True)", {}, ("an integer, got True",), (None, 1, 1)),
    ("E_ARGUMENT", "linear(8, bias=1)", {}, ("True or False, got 1",), (None, 1, 1)),
    ("E_ARGUMENT", "linear(8, out_features=8)", {}, ("out_features is given twice",), (None, 1, 1)),
    ("E_ARGUMENT", "linear(8, features=8)", {}, ("'features'", "did you mean in_features?", "bias"), (None, 1, 1)),
    ("E_ARGUMENT", "linear(8, spectral_norm=True)", {}, ("not supported",), (None, 1, 1)),
    ("E_ARGUMENT", "scale(1e999)", {}, ("a finite number",), (None, 1, 1)),
    ("E_ARGUMENT", "clamp(2, 1)", {}, ("min=2.0 is above max=1.0",), (None, 1, 1)),
    ("E_ARGUMENT", "dropout(1)", {}, ("below 1, got 1.0",), (None, 1, 1)),
    ("E_ARGUMENT", "linear(8)\nsoftmax(0)", {}, ("dim=0", "2 axes", "the batch is none"), ("n1", 2, 1)),
    ("E_ARGUMENT", "mean(2)", {}, ("dim=2", "2 axes"), ("n0", 1, 1)),
    ("E_ARGUMENT", "scale(-1e39)", {}, ("float32", "-1e+39"), (None, 1, 1)),
    ("E_ARGUMENT", "permute(1, 2, 3)", {}, ("[1, 2, 3]", "1 axes after the batch"), ("n0", 1, 1)),
    ("E_ARGUMENT", "permute(2, 2)", {}, ("order of the axes", "[2, 2]"), (None, 1, 1)),
    ("E_ARGUMENT", "pad(1, 2, 3)", {}, ("pairs", "[1, 2, 3]"), (None, 1, 1)),
    ("E_BINDING", "add(x)", {}, ("input b is missing",), (None, 1, 1)),
    ("E_BINDING", "relu(x=3)", {}, ("input x is a tensor, got 3",), (None, 1, 1)),
    ("E_BINDING", "concat(x)", {}, ("two tensors or more, got 1",), (None, 1, 1)),
    ("E_BINDING", "concat(x, x2=x)", {}, ("input x1 is missing",), (None, 1, 1)),
    ("E_BINDING", "concat(x, x, input_count=3)", {}, ("2 inputs", "input_count=3"), (None, 1, 1)),
    ("E_CURRENT", "split(2)", {}, ("say which one is the output",), (None, None, None)),
    ("E_OUTPUT_ARITY", "a, b = relu()", {}, ("2 names", "one tensor"), (None, 1, 1)),
    ("E_OUTPUT_ARITY", "a = split(2)\nrelu(a)", {}, ("one tensor is needed here, got 2",), (None, 2, 6)),
    ("E_OUTPUT", "out = split(2)", {}, ("out is one tensor, got 2",), (None, None, None)),
    ("E_OUTPUT", "linear(8)", {"output_shape": {"a": ("B", 8), "b": ("B", 8)}}, ("a, b",), (None, None, None)),
    ("E_POLICY_CONFLICT", "linear(8, policy='down2')", {}, ("no policies", "'down2'"), (None, 1, 1)),
    ("E_DTYPE", "embedding(9, 8)", {}, ("takes int64, but input:x is float32", 'input_dtype={"x"'), ("n0", None, None)),
    ("E_DTYPE", "linear(8)", IDS, ("takes float32, but input:x is int64", "embedding(...)"), ("n0", None, None)),
    ("E_CONSTRAINT", "linear(9)", {}, ("9 (from out_features=9 of n0", "8 (from output_shape)"), ("n0", 1, 1)),
    (
        "E_CONSTRAINT",
        "h = linear(x, 4, name='narrow')\nadd(h, x)",
        {},
        ("4 (from out_features=4 of narrow (linear, line 1))", "6 (from input_shape)"),
        ("n1", 2, 1),
    ),
    ("E_CONSTRAINT", "a, b, c, d = chunk(4)\nlinear(a)", {}, ("chunks=4 does", "6 (from input_shape)"), ("n0", 1, 14)),
    ("E_CONSTRAINT", "a, b = split(6)\nlinear(b)", {}, ("6 (from input_shape)", "leaves 0 for rest"), ("n0", 1, 8)),
    ("E_CONSTRAINT", "linear(8)\nattention(3)", {"output_shape": ("B", 4, 8)}, ("rank 2", "rank 3"), ("n1", 2, 1)),
    ("E_CONSTRAINT", "", {}, ("input:x is 6 (from input_shape)", "8 (from output_shape)"), (None, None, None)),
    ("E_RESHAPE", "reshape(4)", {}, ("size 4", "8 (from output_shape)"), ("n0", 1, 1)),
    ("E_RESHAPE", "flatten()", {"input_shape": ("B", 3, 3)}, ("9 elements (from input", "8 elements"), ("n0", 1, 1)),
    ("E_RESHAPE", "reshape(4)\nlinear()", {"output_shape": ("B", 4, 8)}, ("6 elements", "4 elements"), ("n0", 1, 1)),
    ("E_CONSTRAINT", "concat(x, x)", {}, ("x0 6 (from input_shape)", "12", "out is 8 (from output"), ("n0", 1, 1)),
    ("E_CONSTRAINT", "concat(x, x, axis=0)", SAME, ("batch B (from output_shape)", "2*B (from n0"), ("n0", 1, 1)),
    ("E_CONSTRAINT", "a, b = chunk(2, dim=0)\nout = a", SAME, ("not divide", "B (from input_shape)"), ("n0", 1, 8)),
    ("E_CONSTRAINT", "cls_token()", SAME, ("rank 2",), ("n0", 1, 1)),
    ("E_CONSTRAINT", "pad(6, 6, mode='reflect')", {"output_shape": ("B", 18)}, ("6 (from input_shape)",), ("n0", 1, 1)),
    ("E_CONSTRAINT", "broadcast_add(x, y)", WIDE, ("a is 3 (from input x)", "of b 2 (from input y)"), ("n0", 1, 1)),
    ("E_CONSTRAINT", "linear()\npad(4, 4)", {}, ("axis 1 of node:n0/out would be 0", "output_shape"), ("n1", 2, 1)),
    ("E_CONSTRAINT", "reshape()\nmean(1)", {"output_shape": ("B", 2, 2, 2)}, ("would have 5 axes",), ("n1", 2, 1)),
    ("E_CONSTRAINT", "mean(1)", SAME, ("x has 2 axes", "keepdim=True"), ("n0", 1, 1)),
    ("E_CONSTRAINT", "reshape(2)\nlinear(6)\ncls_token()", {"output_shape": ("B", 1, 6)}, ("is 1 (",), ("n2", 3, 1)),
    ("E_CONSTRAINT", "attention(2, rope=True)", TOKENS, ("an even width per head", "D of x, 2"), ("n0", 1, 1)),
    ("E_RESHAPE", "reshape(2, 3)", SAME, ("2 sizes are given", "1 axes"), ("n0", 1, 1)),
    ("E_ARGUMENT", "pad(1, 1, 1, 1)", {}, ("2 pairs", "1 axes after the batch"), ("n0", 1, 1)),
    ("E_ARGUMENT", "pad(1, 1, value=2, mode='reflect')", {}, ("value=2.0",), (None, 1, 1)),
    ("E_RESOURCE", "linear(50000)\nlinear(1)", HUGE, ("out [B, 10000, 50000]", "500,000,000 elements"), ("n0", 1, 1)),
    ("E_RESOURCE", ZIGZAG, {"output_shape": ("B", 530 * 6)}, ("256 passes",), (None, None, None)),
    ("E_SYNTAX", "() = split(2)", {}, ("without a name",), (None, 1, 1)),
    ("E_SYNTAX", "linear(8, init={1: 2})", {}, ("are strings",), (None, 1, 16)),
    ("E_SYNTAX", "linear(8, init={'a': 2, 'a': 2})", {}, ("'a' is given twice",), (None, 1, 25)),
    ("E_INITIALIZATION", "linear(8, init={'a b': 2})", {}, ("'a b' is no name",), (None, 1, 1)),
    ("E_SCHEMA", "relu()", {"input_shape": {"X": ("B", 8)}}, ("lower-case letter", "'X'"), (None, None, None)),
    ("E_SCHEMA", "relu()", {"input_shape": {"in": ("B", 8)}}, ("keyword of Python",), (None, None, None)),
    ("E_SCHEMA", "relu()", {"input_dtype": "int8"}, ("int64, int32, bool", "'int8'"), (None, None, None)),
    ("E_AMBIGUOUS", "linear()\nlinear()", {}, ("axis 1", "give out_features of n0 (linear, line 1)"), ("n0", 1, 1)),
    ("E_AMBIGUOUS", "reshape()\nflatten()", {"output_shape": ("B", 6)}, ("the rank", "give shape"), ("n0", 1, 1)),
    ("E_INITIALIZATION", "linear(8, init=1)", {}, ("a mapping", "got 1"), (None, 1, 1)),
    ("E_INITIALIZATION", "linear(8, init={'weight': 1e39})", {}, ("float32", "1e+39"), (None, 1, 1)),
    ("E_INITIALIZATION", "linear(8, init={'gain': 1})", {}, ("'gain'", "weight, bias"), ("n0", 1, 1)),
    ("E_TRAINABILITY", "linear(8, trainable=1)", {}, ("a mapping", "got 1"), (None, 1, 1)),
    ("E_TRAINABILITY", "linear(8, trainable='no')", {}, ("True, False or a mapping", "got 'no'"), (None, 1, 1)),
    ("E_TRAINABILITY", "linear(8, trainable={'weight': 0})", {}, ("True or False, got 0",), (None, 1, 1)),
    ("E_TRAINABILITY", "relu(trainable={'weight': False})\nlinear()", {}, ("parameters: none",), ("n0", 1, 1)),
    ("E_SCHEMA", "linear()", {"dtype": "float64"}, ("float32, float16, bfloat16", "'float64'"), (None, None, None)),
    ("E_SCHEMA", "linear()", {"input_shape": ("C", 6)}, ('"B" or a positive integer', "'C'"), (None, None, None)),
    ("E_SCHEMA", "linear()", {"input_shape": ("B", 0)}, ("positive integer", "got 0 at axis 1"), (None, None, None)),
    ("E_SCHEMA", "linear()", {"input_shape": ("B",)}, ("2 to 4 axes",), (None, None, None)),
    ("E_SCHEMA", "linear()", {"input_shape": 6}, ('such as ("B", 6, 8)', "got 6"), (None, None, None)),
    ("E_SCHEMA", "linear()", {"input_shape": {}}, ("1 to 32 tensors, got 0",), (None, None, None)),
    ("E_SCHEMA", "linear()", {"input_dtype": {"y": "int64"}}, ("'y'",), (None, None, None)),
    ("E_SCHEMA", "linear()", {"input_dtype": "bfloat16"}, ("float32", "bfloat16"), (None, None, None)),
]  # fmt: skip
ELSEWHERE = {"E_INTEGRITY", "E_STATE_VERSION", "E_OPERATOR", "E_REGISTRY", "E_UNRESOLVED"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}:{case[1][:30]}")
def test_the_message_says_what_is_wrong(case: Case) -> None:
    code, source, contracts, words, place = case
    with pytest.raises(mila.NetworkError) as caught:
        mila.resolve(source, **{"input_shape": ("B", 6), "output_shape": ("B", 8), **contracts})
    error = caught.value
    assert (error.code, (error.node, error.line, error.column)) == (code, place), error
    assert all(word in str(error) for word in words), error
    assert isinstance(error, ValueError) and "\n" not in str(error)


@pytest.mark.parametrize(
    ("source", "contracts", "other"),
    [
        ("linear(1048576);linear(1048576)", {"output_shape": ("B", 1048576)}, "at most 65,536"),
        ("moe(1024, 1);" * 17, TOKENS, "bytes"),
        (f"linear({'9' * 5000})", {}, "set_int_max_str_digits"),
    ],
)
def test_the_message_names_the_limit_that_is_exceeded_alone(source: str, contracts: Any, other: str) -> None:
    with pytest.raises(mila.NetworkError) as caught:
        mila.resolve(source, **{"input_shape": ("B", 6), "output_shape": ("B", 8), **contracts})
    assert caught.value.code == "E_RESOURCE" and other not in str(caught.value)


@pytest.mark.parametrize("value", ["65504", "-65504", "1e-9"])
def test_a_stored_value_that_the_dtype_holds_is_taken(value: str) -> None:
    source = f"add(x, constant(value={value}))"
    assert mila.resolve(source, input_shape=("B", 6), output_shape=("B", 6), dtype="float16").dtype == "float16"


def test_every_code_has_a_case() -> None:
    assert {case[0] for case in CASES} | ELSEWHERE == {*get_args(NetworkErrorCode)}


def test_the_place_is_a_part_of_the_text() -> None:
    error = mila.NetworkError("E_NAME", "what", node="n1", line=2, column=3)
    assert str(error) == "E_NAME (node n1; line 2, column 3): what"
    assert str(mila.NetworkError("E_NAME", "what", node="n1")) == "E_NAME (node n1): what"
    assert str(mila.NetworkError("E_NAME", "what")) == "E_NAME: what"


def test_a_source_is_a_string() -> None:
    with pytest.raises(TypeError, match="is a str, got bytes"):
        mila.resolve(b"relu()", input_shape=("B", 6), output_shape=("B", 6))  # type: ignore[arg-type]
