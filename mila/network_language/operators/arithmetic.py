"""Arithmetic on tensors, and tensors that are given or learned as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mila.components import (
    Add,
    BroadcastAdd,
    Clamp,
    ClampConfig,
    Constant,
    ConstantConfig,
    LearnedScale,
    LearnedScaleConfig,
    MatrixProduct,
    Multiply,
    Scale,
    ScaleConfig,
    Subtract,
)
from mila.core import Component
from mila.network_language.arguments import Argument
from mila.network_language.operator import Example, NodeShapes, Operator
from mila.network_language.relations import NodeView


def _elementwise(alias: str, summary: str, sign: str, component: type[Component[Any]]) -> Operator:
    return Operator(
        alias=alias,
        identity=f"{alias}@1",
        category="arithmetic",
        summary=summary,
        documentation=f"`out = a {sign} b`, element by element; both have exactly one shape (see `broadcast_add`).",
        pattern="a[B, ...], b[B, ...] -> out[B, ...]",
        component=lambda name, node: component(name),
        examples=(
            Example(
                source=f"saved = x\nlinear(8)\nrelu()\nh = linear(4)\n{alias}(h, saved)",
                input_shape=("B", 4),
                output_shape=("B", 4),
            ),
        ),
    )


def _stretched(view: NodeView) -> None:
    """An axis of ``out`` is the larger of both; only what has one solution is inferred."""
    rank = view.equal_ranks(("a", "b", "out"))
    for axis in range(1, rank or 1):
        a, b, out = (view.size(port, axis) for port in ("a", "b", "out"))
        if a is not None and b is not None:
            if a != b and 1 not in (a, b):
                one, other = view.known("a", axis), view.known("b", axis)
                view.refuse(f"axis {axis} of a is {one}, of b {other}; they are equal, or one of them is 1")
            view.set_size("out", axis, max(a, b))
        elif out == 1:
            view.set_size("a", axis, 1)
            view.set_size("b", axis, 1)
        else:
            _stretched_from_one(view, axis, "b" if a is None else "a", "a" if a is None else "b")


def _stretched_from_one(view: NodeView, axis: int, known_port: str, open_port: str) -> None:
    known, out = view.size(known_port, axis), view.size("out", axis)
    if known is None:
        return
    if known > 1:
        view.set_size("out", axis, known)
    elif out is not None:
        view.set_size(open_port, axis, out)


def _constant_shape(view: NodeView) -> None:
    sizes = view.argument("shape")
    if sizes is not None:
        view.set_rank("out", len(sizes) + 1)
        for axis, size in enumerate(sizes, start=1):
            view.set_size("out", axis, size, f"shape={list(sizes)} of {view.node.label}")


def _scale(name: str, node: NodeShapes) -> Scale:
    return Scale(name, ScaleConfig(factor=node.arguments["factor"]))


def _clamp(name: str, node: NodeShapes) -> Clamp:
    return Clamp(name, ClampConfig(minimum=node.arguments["min"], maximum=node.arguments["max"]))


def _constant(name: str, node: NodeShapes) -> Constant:
    shape, value = node.arguments["shape"], node.arguments["value"]
    return Constant(name, ConstantConfig(shape=shape, value=value, takes_ids="x" in node.integer_inputs))


def _learned_scale(name: str, node: NodeShapes) -> LearnedScale:
    return LearnedScale(name, LearnedScaleConfig(init_value=node.arguments["init_value"]))


def _ordered(arguments: Mapping[str, Any]) -> str | None:
    low, high = arguments["min"], arguments["max"]
    return f"min={low} is above max={high}" if low > high else None


ADD = _elementwise("add", "The sum of two tensors.", "+", Add)
SUB = _elementwise("sub", "The difference of two tensors.", "-", Subtract)
MUL = _elementwise("mul", "The product of two tensors, element by element.", "*", Multiply)

BROADCAST_ADD = Operator(
    alias="broadcast_add",
    identity="broadcast_add@1",
    category="arithmetic",
    summary="The sum of two tensors of one rank; axes of size 1 are repeated.",
    documentation="`out = a + b`. A size is inferred only where a single one is possible.",
    pattern="a, b -> out",
    component=lambda name, node: BroadcastAdd(name),
    relation=_stretched,
    examples=(
        Example(
            source="broadcast_add(x, y)",
            input_shape={"x": ("B", 6, 8), "y": ("B", 1, 8)},
            output_shape=("B", 6, 8),
        ),
    ),
)

SCALE = Operator(
    alias="scale",
    identity="scale@1",
    category="arithmetic",
    summary="A tensor times a fixed number.",
    documentation="`out = factor * x`.",
    pattern="x[B, ...] -> out[B, ...]",
    arguments=(Argument(name="factor", type="float", help="The number."),),
    component=_scale,
    examples=(Example(source="linear(8)\nscale(0.5)", input_shape=("B", 6), output_shape=("B", 8)),),
)

CLAMP = Operator(
    alias="clamp",
    identity="clamp@1",
    category="arithmetic",
    summary="Limits every element to an interval.",
    documentation="`out = min(max(x, min), max)`; outside the interval the gradient is 0.",
    pattern="x[B, ...] -> out[B, ...]",
    arguments=(
        Argument(name="min", type="float", help="The smallest value."),
        Argument(name="max", type="float", help="The largest value."),
    ),
    validate=_ordered,
    component=_clamp,
    examples=(Example(source="linear(8)\nclamp(-1, 1)", input_shape=("B", 6), output_shape=("B", 8)),),
)

CONSTANT = Operator(
    alias="constant",
    identity="constant@1",
    category="arithmetic",
    summary="A tensor of one fixed number.",
    documentation="Every element of `out` is `value`. Of `x`, whatever its dtype, only the batch matters.",
    pattern="x:any -> out",
    arguments=(
        Argument(
            name="shape",
            type="ints",
            inferable=True,
            minimum=1,
            help="The axes after the batch; left out, they come from the tensor's use.",
        ),
        Argument(name="value", type="float", default=0.0, positional=False, stored=True, help="The number."),
    ),
    relation=_constant_shape,
    component=_constant,
    stores_shape="shape",
    examples=(
        Example(source="shift = constant(x, value=0.5)\nadd(x, shift)", input_shape=("B", 6), output_shape=("B", 6)),
    ),
)

LEARNED_SCALE = Operator(
    alias="learned_scale",
    identity="learned_scale@1",
    category="arithmetic",
    summary="A tensor times one learned number.",
    documentation="`out = gamma * x`. Starting from 0, a branch joins a residual stream without a step.",
    pattern="x[B, ...] -> out[B, ...]",
    arguments=(
        Argument(
            name="init_value", type="float", default=0.0, positional=False, stored=True, help="What gamma starts from."
        ),
    ),
    component=_learned_scale,
    examples=(
        Example(
            source="branch = linear(6)\nadd(x, learned_scale(branch))", input_shape=("B", 6), output_shape=("B", 6)
        ),
    ),
)

MATMUL = Operator(
    alias="matmul",
    identity="matmul@1",
    category="arithmetic",
    summary="The matrix product, row by row of the batch.",
    documentation="`out[i] = a[i] @ b[i]`.",
    pattern="a[B, N, K], b[B, K, M] -> out[B, N, M]",
    component=lambda name, node: MatrixProduct(name),
    examples=(
        Example(
            source="matmul(x, y)",
            input_shape={"x": ("B", 6, 8), "y": ("B", 8, 4)},
            output_shape=("B", 6, 4),
        ),
    ),
)

OPERATORS = (ADD, SUB, MUL, BROADCAST_ADD, SCALE, CLAMP, CONSTANT, LEARNED_SCALE, MATMUL)
