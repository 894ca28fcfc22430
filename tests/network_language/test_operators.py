"""The declarations: every operator of the catalogue, its examples, and what it infers in both directions."""

from __future__ import annotations

from typing import Any

import pytest

import mila
from mila.network_language import BUILT_IN, Example, Operator

OPERATORS = BUILT_IN.operators
EXAMPLES = [(operator, example) for operator in OPERATORS for example in operator.examples]
CATALOGUE = {
    "embedding", "linear", "pos_embed", "cls_token", "attention", "cross_attention", "feed_forward", "swiglu",
    "transformer_block", "moe", "gather_token", "pool_tokens", "elu", "gelu", "hardswish", "identity",
    "leaky_relu", "mish", "quick_gelu", "relu", "sigmoid", "silu", "softmax", "softplus", "tanh", "layer_norm",
    "rms_norm", "dropout", "add", "sub", "mul", "broadcast_add", "scale", "clamp", "constant", "learned_scale",
    "matmul", "split", "chunk", "concat", "reshape", "flatten", "transpose", "permute", "pad", "mean", "sum",
}  # fmt: skip

#: A call, the shapes of its inputs and outputs in order, and arguments that are inferred. Each is resolved twice: with
#: the first shapes as input contracts, and then behind and before an operator that says nothing, so that the inferred
#: side is the other one.
Shape = tuple[int, ...]
SHAPES: list[tuple[str, list[Shape], list[Shape], dict[str, Any]]] = [
    ("linear(h)", [(6, 8)], [(6, 5)], {"in_features": 8, "out_features": 5}),
    ("pos_embed(h, 9)", [(6, 8)], [(6, 8)], {}),
    ("cls_token(h)", [(6, 8)], [(7, 8)], {}),
    ("attention(h, 2, rope=True)", [(6, 8)], [(6, 8)], {}),
    ("cross_attention(h, g, 4)", [(6, 8), (5, 3)], [(6, 8)], {}),
    ("moe(h, 3, 5)", [(6, 8)], [(6, 8)], {}),
    ("pool_tokens(h, 'max')", [(6, 8)], [(8,)], {}),
    ("layer_norm(h)", [(6, 8, 2)], [(6, 8, 2)], {}),
    ("broadcast_add(h, g)", [(6, 1), (1, 8)], [(6, 8)], {}),
    ("broadcast_add(h, g)", [(1, 1), (1, 1)], [(1, 1)], {}),
    ("matmul(h, g)", [(6, 8), (8, 3)], [(6, 3)], {}),
    ("constant(h)", [(6, 8)], [(4,)], {"shape": (4,)}),
    ("constant(h, 2, 3)", [(6, 8)], [(2, 3)], {}),
    ("split(h, dim=2)", [(6, 8)], [(6, 3), (6, 5)], {"size": 3}),
    ("chunk(h, 2, dim=2)", [(6, 8)], [(6, 4), (6, 4)], {}),
    ("concat(h, g, axis=2)", [(6, 8), (6, 2)], [(6, 10)], {"input_count": 2}),
    ("reshape(h, 4)", [(6, 8)], [(4, 12)], {"shape": (4, 12)}),
    ("reshape(h, 4, 3, 4)", [(6, 8)], [(4, 3, 4)], {}),
    ("flatten(h)", [(6, 8)], [(48,)], {}),
    ("transpose(h, 1, 3)", [(6, 8, 2)], [(2, 8, 6)], {}),
    ("permute(h, 3, 1, 2)", [(6, 8, 2)], [(2, 6, 8)], {}),
    ("pad(h, 1, 2)", [(6, 8)], [(6, 11)], {}),
    ("pad(h, 1, 2, 3, 4, mode='reflect')", [(9, 8)], [(16, 11)], {}),
    ("mean(h, 2)", [(6, 8, 2)], [(6, 2)], {}),
    ("sum(h, 2, keepdim=True)", [(6, 8)], [(6, 1)], {}),
]
#: Inputs follow from outputs, not only the other way round.
INVERTIBLE = [
    case for case in SHAPES if case[0].split("(")[0] in ("pos_embed", "cls_token", "attention", "split", "chunk", "pad")
]


def resolved(example: Example) -> mila.ResolvedNetwork:
    return mila.resolve(
        example.source,
        input_shape=example.input_shape,
        output_shape=example.output_shape,
        input_dtype=example.input_dtype,
    )


def by_name(names: str, shapes: list[Shape]) -> dict[str, tuple[int | str, ...]]:
    return {name: ("B", *shape) for name, shape in zip(names, shapes, strict=False)}


def test_the_catalogue_is_complete() -> None:
    assert {*BUILT_IN} == CATALOGUE


@pytest.mark.parametrize(("operator", "example"), EXAMPLES, ids=lambda item: getattr(item, "alias", ""))
def test_the_examples_run_and_show_the_operator(operator: Operator, example: Example) -> None:
    network = resolved(example)
    assert operator in [node.operator for node in network.nodes]
    for node in network.nodes:
        assert {*node.arguments} == {argument.name for argument in node.operator.arguments} == {*node.provenance}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.alias)
def test_a_declaration_is_documented(operator: Operator) -> None:
    assert operator.summary.endswith(".") and operator.documentation.endswith(".")
    assert operator.identity == f"{operator.alias}@1"
    assert all(argument.help for argument in operator.arguments)


@pytest.mark.parametrize(("call", "inputs", "outputs", "arguments"), SHAPES, ids=[case[0] for case in SHAPES])
def test_shapes_follow(call: str, inputs: list[Shape], outputs: list[Shape], arguments: dict[str, Any]) -> None:
    names = "pq"[: len(outputs)]
    source = f"{', '.join(names)} = {call}\n" + "\n".join(f"{name} = identity({name})" for name in names)
    source = "h = identity(h)\n" + source
    network = mila.resolve(source, input_shape=by_name("hg", inputs), output_shape=by_name(names, outputs))
    node = network.nodes[1]
    assert [shape[1:] for shape in node.input_shapes.values()] == inputs
    assert [shape[1:] for shape in node.output_shapes.values()] == outputs
    assert {name: node.arguments[name] for name in arguments} == arguments
    assert all(node.provenance[name] == "inferred" for name in arguments if name != "input_count")


@pytest.mark.parametrize(("call", "inputs", "outputs", "arguments"), INVERTIBLE, ids=[case[0] for case in INVERTIBLE])
def test_shapes_follow_backward(
    call: str, inputs: list[Shape], outputs: list[Shape], arguments: dict[str, Any]
) -> None:
    """The width before the call is left to inference: a `linear` says it where the call has it at its last axis."""
    names = "pq"[: len(outputs)]
    source = f"h = linear(h)\n{', '.join(names)} = {call}"
    wide = [(*inputs[0][:-1], 3)]
    network = mila.resolve(source, input_shape=by_name("h", wide), output_shape=by_name(names, outputs))
    assert network.nodes[0].arguments["out_features"] == inputs[0][-1]
    assert [shape[1:] for shape in network.nodes[1].input_shapes.values()] == inputs


@pytest.mark.parametrize(
    ("source", "inputs", "output", "shapes"),
    [
        ("cross_attention(x, y, 2)", {"x": ("B", 3, 4), "y": ("B", 5, 6)}, ("B", 3, 4), {"k_proj.weight": (4, 6)}),
        ("attention(2, bias=False)", {"x": ("B", 3, 4)}, ("B", 3, 4), {"q_proj.weight": (4, 4)}),
        ("swiglu(6)", {"x": ("B", 4)}, ("B", 4), {"gate.weight": (6, 4), "down.weight": (4, 6)}),
        ("swiglu(6, bias=True)", {"x": ("B", 4)}, ("B", 4), {"up.bias": (6,), "down.bias": (4,)}),
        ("feed_forward(6)", {"x": ("B", 4)}, ("B", 4), {"up.bias": (6,), "down.weight": (4, 6)}),
        ("moe(3, 6)", {"x": ("B", 2, 4)}, ("B", 2, 4), {"router.weight": (3, 4), "experts.2.down.weight": (4, 6)}),
        ("learned_scale()", {"x": ("B", 4)}, ("B", 4), {"gamma": (1,)}),
        ("cls_token()", {"x": ("B", 2, 4)}, ("B", 3, 4), {"token": (1, 1, 4)}),
        ("rms_norm()", {"x": ("B", 4)}, ("B", 4), {"weight": (4,)}),
    ],
)
def test_parameters(source: str, inputs: dict[str, Any], output: Any, shapes: dict[str, Shape]) -> None:
    found = mila.resolve(source, input_shape=inputs, output_shape=output).parameter_shapes()
    assert found.items() >= {f"n0.{name}": shape for name, shape in shapes.items()}.items()
    assert ("n0.q_proj.bias" in found) == (source.startswith("cross_attention"))


def test_batches_are_counted() -> None:
    source = "p = concat(x, x, x, axis=0)\na, b, c = chunk(p, 3, dim=0)\nq = add(a, b)\nadd(q, c)"
    network = mila.resolve(source, input_shape=(5, 4), output_shape=(5, 4))
    assert network.nodes[0].output_shapes["out"] == (15, 4)
    network = mila.resolve(source, input_shape=("B", 4), output_shape=("B", 4))
    assert network.nodes[0].output_shapes["out"] == ("3*B", 4)


@pytest.mark.parametrize(
    ("known", "output", "inferred"),
    [((6, 1), (6, 8), 8), ((6, 1), (6, 1), 1)],
)
def test_a_stretched_axis_is_inferred_where_one_size_is_possible(known: Shape, output: Shape, inferred: int) -> None:
    source = "h = linear(x)\nbroadcast_add(y, h)"
    inputs: Any = {"x": ("B", 6, 3), "y": ("B", *known)}
    network = mila.resolve(source, input_shape=inputs, output_shape=("B", *output))
    assert network.nodes[0].arguments["out_features"] == inferred
    with pytest.raises(mila.NetworkError, match="E_AMBIGUOUS"):
        mila.resolve(source, input_shape={**inputs, "y": ("B", 6, 8)}, output_shape=("B", 6, 8))


def test_a_rank_is_inferred_backward() -> None:
    """`reshape` has the rank that `mean`, `split`, `pad` and `broadcast_add` leave it, and the sizes."""
    for source, output, shape in (
        ("reshape(2, 3)\nmean(1)", (3, 4), (2, 3, 4)),
        ("reshape(2)\nmean(2, keepdim=True)", (2, 1), (2, 12)),
        ("reshape(4)\na, b = split(3)\nout = b", (1, 6), (4, 6)),
        ("reshape(4)\na, b = split(3)\nout = relu(b)", (1, 6), (4, 6)),
        ("reshape(2, 3)\nmean(1)\nrelu()", (3, 4), (2, 3, 4)),
        ("reshape(4)\npad(1, 1)\nrelu()", (4, 8), (4, 6)),
        ("reshape(4)\ncls_token()", (5, 6), (4, 6)),
        ("reshape()\ncls_token()\nlinear(3)", (5, 3), (4, 6)),
        ("h = reshape(4)\nbroadcast_add(h, h)", (4, 6), (4, 6)),
        ("h = reshape(4)\nconcat(h, h)", (8, 6), (4, 6)),
    ):
        network = mila.resolve(source, input_shape=("B", 24), output_shape=("B", *output))
        assert network.nodes[0].arguments["shape"] == shape, source


def test_settings_are_kept() -> None:
    source = "linear(4, init={'bias': 0.1}, trainable={'weight': False})\nlinear(trainable=False)"
    first, second = mila.resolve(source, input_shape=("B", 6), output_shape=("B", 8)).nodes
    assert first.settings.initialization == {"bias": 0.10000000149011612}
    assert [first.settings.is_trainable(name) for name in ("weight", "bias")] == [False, True]
    assert not second.settings.is_trainable("weight")
