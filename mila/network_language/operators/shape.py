"""Operators that move, cut and join axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mila.components import (
    Flatten,
    Mean,
    MeanConfig,
    Pad,
    PadConfig,
    Permute,
    PermuteConfig,
    Reshape,
    ReshapeConfig,
    Sum,
    SumConfig,
    Transpose,
    TransposeConfig,
)
from mila.network_language.arguments import Argument
from mila.network_language.operator import ComponentFactory, Example, NodeShapes, Operator
from mila.network_language.operators.joining import CHUNK, CONCAT, SPLIT
from mila.network_language.operators.ranks import inside_the_rank
from mila.network_language.relations import NodeView

_BATCH_STAYS = "axis 0 is the batch, which stays where it is"


def _equal_counts(view: NodeView) -> None:
    """A row of both sides has the same number of elements; one unknown axis follows."""
    counts = {port: _count(view, port) for port in ("x", "out")}
    for port, other in (("x", "out"), ("out", "x")):
        (known, gaps), (total, total_gaps) = counts[port], counts[other]
        if total is None or total_gaps or known is None:
            continue
        if not gaps and known != total:
            view.refuse(f"a row of {_row(view, port, known)}, but a row of {_row(view, other, total)}", "E_RESHAPE")
        if len(gaps) == 1:
            size, rest = divmod(total, known)
            if rest:
                both = f"a row of {_row(view, other, total)}, no multiple of {_row(view, port, known)} without axis"
                view.refuse(f"{both} {gaps[0]}", "E_RESHAPE")
            view.set_size(port, gaps[0], size)


def _count(view: NodeView, port: str) -> tuple[int | None, list[int]]:
    """Return the product of the known axes, ``None`` while the rank is open, and the unknown axes."""
    sizes = view.sizes(port)
    if not sizes:
        return None, []
    product = 1
    for size in sizes:
        product *= size or 1
    return product, [axis for axis, size in enumerate(sizes, start=1) if size is None]


def _row(view: NodeView, port: str, count: int) -> str:
    """Return a port, the elements of a row and what they follow from, in words."""
    known = [view.known(port, axis) for axis in range(1, len(view.sizes(port)) + 1)]
    origins = dict.fromkeys(size.origin for size in known if size is not None)
    return f"{port} has {count:,} elements (from {'; '.join(origins)})"


def _reshaped(view: NodeView) -> None:
    prefix = view.argument("shape") or ()
    if len(prefix) == 3:
        view.set_rank("out", 4)
    rank = view.rank("out")
    if rank is not None:
        if len(prefix) > rank - 1:
            view.refuse(f"{len(prefix)} sizes are given, but out has {rank - 1} axes after the batch", "E_RESHAPE")
        for axis, size in enumerate(prefix, start=1):
            known = view.known("out", axis)
            if known is not None and known.value != size:
                view.refuse(f"size {size} is given for axis {axis} of out, which is {known}", "E_RESHAPE")
            view.set_size("out", axis, size, f"shape={list(prefix)} of {view.node.label}")
    _equal_counts(view)


def _swapped(view: NodeView) -> None:
    rank = view.equal_ranks(("x", "out"))
    first, second = view.argument("dim0"), view.argument("dim1")
    inside_the_rank(view, "dim0", rank)
    inside_the_rank(view, "dim1", rank)
    for axis in range(1, rank or 1):
        source = {first: second, second: first}.get(axis, axis)
        view.equal_sizes((("x", source), ("out", axis)))


def _permuted(view: NodeView) -> None:
    dims = view.argument("dims")
    rank = view.rank("x") or view.rank("out")
    if rank is not None and rank != len(dims) + 1:
        view.refuse(f"dims is {list(dims)}, but x has {rank - 1} axes after the batch", "E_ARGUMENT")
    view.set_rank("x", len(dims) + 1)
    view.set_rank("out", len(dims) + 1)
    for axis, source in enumerate(dims, start=1):
        view.equal_sizes((("x", source), ("out", axis)))


def _is_a_permutation(arguments: Mapping[str, Any]) -> str | None:
    dims = arguments["dims"]
    if sorted(dims) == [*range(1, len(dims) + 1)] and dims:
        return None
    return f"dims is an order of the axes 1 to n, the batch stays first; got {list(dims)}"


def _padded(view: NodeView) -> None:
    padding, rank = view.argument("padding"), view.equal_ranks(("x", "out"))
    if rank is None:
        return
    pairs = {rank - 1 - index: padding[2 * index : 2 * index + 2] for index in range(len(padding) // 2)}
    if min(pairs) < 1:
        view.refuse(f"{len(pairs)} pairs, but x has {rank - 1} axes after the batch", "E_ARGUMENT")
    for axis in range(1, rank):
        if axis not in pairs:
            view.equal_sizes((("x", axis), ("out", axis)))
            continue
        before, after, more = view.known("x", axis), view.known("out", axis), sum(pairs[axis])
        if before is not None:
            origin = f"{before.origin}, padded by {view.node.label}"
            view.set_size("out", axis, int(before.value) + more, origin)
        elif after is not None:
            view.set_size(
                "x", axis, int(after.value) - more, f"{after.origin}, before the padding of {view.node.label}"
            )
        size = view.known("x", axis)
        if view.argument("mode") == "reflect" and size is not None and max(pairs[axis]) >= int(size.value):
            view.refuse(f'mode="reflect" mirrors {max(pairs[axis])} elements, but axis {axis} of x has {size}')


def _is_padding(arguments: Mapping[str, Any]) -> str | None:
    padding = arguments["padding"]
    if not padding or len(padding) % 2:
        return f"padding is pairs of a number before and one after, from the last axis backwards; got {list(padding)}"
    if arguments["value"] and arguments["mode"] != "constant":
        return f'value is for mode="constant", got value={arguments["value"]} with mode="{arguments["mode"]}"'
    return None


def _reduced(view: NodeView) -> None:
    dim, keep = view.argument("dim"), view.argument("keepdim")
    rank, reduced_rank = view.rank("x"), view.rank("out")
    if rank is None and reduced_rank is not None:
        rank = reduced_rank + (not keep)
    if rank is None:
        return
    inside_the_rank(view, "dim", rank)
    if rank == 2 and not keep:
        view.refuse(f"x has 2 axes; without axis {dim} only the batch is left (keepdim=True would keep the axis)")
    view.set_rank("x", rank)
    view.set_rank("out", rank - (not keep))
    for axis in range(1, rank):
        if axis == dim and keep:
            view.set_size("out", axis, 1)
        elif axis != dim:
            view.equal_sizes((("x", axis), ("out", axis - (axis > dim and not keep))))


def _mean(name: str, node: NodeShapes) -> Mean:
    return Mean(name, MeanConfig(dim=node.arguments["dim"], keepdim=node.arguments["keepdim"]))


def _sum(name: str, node: NodeShapes) -> Sum:
    return Sum(name, SumConfig(dim=node.arguments["dim"], keepdim=node.arguments["keepdim"]))


def _reshape(name: str, node: NodeShapes) -> Reshape:
    return Reshape(name, ReshapeConfig(dims=node.arguments["shape"]))


def _transpose(name: str, node: NodeShapes) -> Transpose:
    return Transpose(name, TransposeConfig(dim0=node.arguments["dim0"], dim1=node.arguments["dim1"]))


def _permute(name: str, node: NodeShapes) -> Permute:
    return Permute(name, PermuteConfig(axes=node.arguments["dims"]))


def _pad(name: str, node: NodeShapes) -> Pad:
    padding = node.arguments["padding"]
    pairs = tuple(zip(padding[::2], padding[1::2], strict=True))
    return Pad(name, PadConfig(pairs=pairs, mode=node.arguments["mode"], value=node.arguments["value"]))


def _reduction(alias: str, summary: str, documentation: str, component: ComponentFactory) -> Operator:
    return Operator(
        alias=alias,
        identity=f"{alias}@1",
        category="shape",
        summary=summary,
        documentation=documentation,
        pattern="x -> out",
        arguments=(
            Argument(
                name="dim",
                type="int",
                minimum=1,
                maximum=3,
                advice=_BATCH_STAYS,
                help="The axis, counted with the batch.",
            ),
            Argument(
                name="keepdim",
                type="bool",
                default=False,
                positional=False,
                help="Whether the axis stays, with size 1.",
            ),
        ),
        relation=_reduced,
        component=component,
        examples=(Example(source=f"linear(8)\n{alias}(1)", input_shape=("B", 6, 4), output_shape=("B", 8)),),
    )


RESHAPE = Operator(
    alias="reshape",
    identity="reshape@1",
    category="shape",
    summary="Other axes for the same elements.",
    documentation=(
        "The sizes that are given are the first axes after the batch; those after them follow from the number of "
        "elements and from the tensor's use. The order of the elements stays."
    ),
    pattern="x -> out",
    arguments=(Argument(name="shape", type="ints", inferable=True, minimum=1, help="The first axes after the batch."),),
    relation=_reshaped,
    component=_reshape,
    stores_shape="shape",
    examples=(
        Example(
            note="The last axis follows from the number of elements.",
            source="reshape(16)\nlinear(8)",
            input_shape=("B", 64),
            output_shape=("B", 16, 8),
        ),
    ),
)

FLATTEN = Operator(
    alias="flatten",
    identity="flatten@1",
    category="shape",
    summary="All axes after the batch as one.",
    documentation="The order of the elements stays.",
    pattern="x[B, ...] -> out[B, F]",
    relation=_equal_counts,
    component=lambda name, node: Flatten(name),
    examples=(Example(source="flatten()\nlinear()", input_shape=("B", 6, 8), output_shape=("B", 4)),),
)

TRANSPOSE = Operator(
    alias="transpose",
    identity="transpose@1",
    category="shape",
    summary="Two axes exchanged.",
    documentation="The batch stays where it is.",
    pattern="x -> out",
    arguments=(
        Argument(
            name="dim0",
            type="int",
            minimum=1,
            maximum=3,
            advice=_BATCH_STAYS,
            help="One axis, counted with the batch.",
        ),
        Argument(name="dim1", type="int", minimum=1, maximum=3, advice=_BATCH_STAYS, help="The other."),
    ),
    relation=_swapped,
    component=_transpose,
    examples=(Example(source="transpose(1, 2)\nlinear(4)", input_shape=("B", 6, 8), output_shape=("B", 8, 4)),),
)

PERMUTE = Operator(
    alias="permute",
    identity="permute@1",
    category="shape",
    summary="The axes in another order.",
    documentation="Axis i of the output is axis `dims[i - 1]` of x; the batch stays first.",
    pattern="x -> out",
    arguments=(
        Argument(
            name="dims",
            type="ints",
            minimum=1,
            maximum=3,
            advice=f"{_BATCH_STAYS} and is left out",
            help="All axes after the batch, in their new order.",
        ),
    ),
    relation=_permuted,
    component=_permute,
    validate=_is_a_permutation,
    examples=(Example(source="permute(2, 1)\nlinear(4)", input_shape=("B", 6, 8), output_shape=("B", 8, 4)),),
)

PAD = Operator(
    alias="pad",
    identity="pad@1",
    category="shape",
    summary="More elements before and after an axis.",
    documentation=(
        "Pairs of numbers, for the last axis first. `constant` adds `value`, `replicate` repeats the element at the "
        "edge, `reflect` mirrors those beside it."
    ),
    pattern="x -> out",
    arguments=(
        Argument(name="padding", type="ints", minimum=0, most=6, help="Before and after, for the last axis first."),
        Argument(name="value", type="float", default=0.0, positional=False, stored=True, help="What `constant` adds."),
        Argument(
            name="mode",
            type="str",
            default="constant",
            choices=("constant", "reflect", "replicate"),
            positional=False,
            help="What the new elements are.",
        ),
    ),
    relation=_padded,
    component=_pad,
    validate=_is_padding,
    examples=(Example(source="pad(0, 0, 1, 2)\nlinear(8)", input_shape=("B", 6, 8), output_shape=("B", 9, 8)),),
)

MEAN = _reduction("mean", "The mean along an axis.", "The axis is gone, or has size 1 with `keepdim`.", _mean)
SUM = _reduction("sum", "The sum along an axis.", "The axis is gone, or has size 1 with `keepdim`.", _sum)

OPERATORS = (SPLIT, CHUNK, CONCAT, RESHAPE, FLATTEN, TRANSPOSE, PERMUTE, PAD, MEAN, SUM)
