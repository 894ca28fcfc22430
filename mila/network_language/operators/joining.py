"""Cutting a tensor along an axis, and joining tensors along one."""

from __future__ import annotations

from collections.abc import Mapping

from mila.components import Chunk, ChunkConfig, Concat, ConcatConfig, Split, SplitConfig
from mila.network_language.arguments import Argument
from mila.network_language.facts import Known
from mila.network_language.operator import Example, NodeShapes, Operator
from mila.network_language.operators.ranks import inside_the_rank
from mila.network_language.relations import NodeView
from mila.network_language.shapes import batch_entry, rows_of


def _equal_beside(view: NodeView, axis: int) -> bool:
    """Make all ports equal but for one axis; return whether the rank is known."""
    ports = (*view.inputs, *view.outputs)
    rank = view.equal_ranks(ports)
    inside_the_rank(view, "axis" if view.node.operator is CONCAT else "dim", rank)
    if axis:
        view.equal_batches(ports)
    for other in range(1, rank or 1):
        if other != axis:
            view.equal_sizes((port, other) for port in ports)
    return rank is not None


def _summed_sizes(view: NodeView, whole: str, parts: tuple[str, ...], axis: int) -> None:
    """The parts add up to the whole along an axis; the one unknown follows."""
    total = view.known(whole, axis)
    known = {part: size for part in parts if (size := view.known(part, axis)) is not None}
    gaps = [part for part in parts if part not in known]
    added = sum(int(size.value) for size in known.values())
    if not gaps:
        if total is not None and total.value != added:
            view.refuse(f"along axis {axis}, {_listed(known)} add up to {added}, but {whole} is {total}")
        view.set_size(whole, axis, added)
    elif total is not None and added + len(gaps) > int(total.value):
        left = f"{int(total.value) - added} for {', '.join(gaps)}"
        view.refuse(f"along axis {axis}, {whole} is {total}; beside {_listed(known) or 'nothing'} that leaves {left}")
    elif total is not None and len(gaps) == 1:
        view.set_size(gaps[0], axis, int(total.value) - added)


def _listed(known: Mapping[str, Known]) -> str:
    return ", ".join(f"{port} {value}" for port, value in known.items())


def _split(view: NodeView) -> None:
    dim, size = view.argument("dim"), view.argument("size")
    if not _equal_beside(view, dim):
        return
    if size is not None:
        view.set_size("first", dim, size, f"size={size} of {view.node.label}")
    _summed_sizes(view, "x", ("first", "rest"), dim)
    first = view.known("first", dim)
    if first is not None:
        view.set_argument("size", int(first.value), first.origin)


def _chunk(view: NodeView) -> None:
    dim, chunks = view.argument("dim"), view.argument("chunks")
    ready = _equal_beside(view, dim)
    if dim == 0:
        _batch_of_chunks(view, chunks)
    elif ready:
        view.equal_sizes((port, dim) for port in view.outputs)
        whole, part = view.known("x", dim), view.known(view.outputs[0], dim)
        if whole is not None:
            if int(whole.value) % chunks:
                view.refuse(f"chunks={chunks} does not divide axis {dim} of x, which is {whole}")
            for port in view.outputs:
                view.set_size(port, dim, int(whole.value) // chunks, f"{whole.origin}, cut by {view.node.label}")
        elif part is not None:
            view.set_size("x", dim, int(part.value) * chunks, f"{part.origin}, before {view.node.label}")


def _batch_of_chunks(view: NodeView, chunks: int) -> None:
    whole = view.batch("x")
    if whole is None:
        return
    rows, free = rows_of(whole.value)
    if rows % chunks:
        view.refuse(f"chunks={chunks} does not divide the batch of x, which is {whole}")
    for port in view.outputs:
        view.set_batch(port, batch_entry(rows // chunks, free))


def _concat(view: NodeView) -> None:
    axis = view.argument("axis")
    ready = _equal_beside(view, axis)
    if axis == 0:
        _summed_batches(view)
    elif ready:
        _summed_sizes(view, "out", view.inputs, axis)


def _summed_batches(view: NodeView) -> None:
    batches = [rows_of(batch.value) for port in view.inputs if (batch := view.batch(port)) is not None]
    if len(batches) == len(view.inputs):
        view.set_batch("out", batch_entry(sum(rows for rows, _ in batches), batches[0][1]))


def _split_component(name: str, node: NodeShapes) -> Split:
    return Split(name, SplitConfig(size=node.arguments["size"], dim=node.arguments["dim"]))


def _chunk_component(name: str, node: NodeShapes) -> Chunk:
    return Chunk(name, ChunkConfig(chunks=node.arguments["chunks"], dim=node.arguments["dim"]))


def _concat_component(name: str, node: NodeShapes) -> Concat:
    return Concat(name, ConcatConfig(inputs=len(node.inputs), axis=node.arguments["axis"]))


SPLIT = Operator(
    alias="split",
    identity="split@1",
    category="shape",
    summary="A tensor in two along an axis.",
    documentation="`first` has `size` entries of the axis, `rest` the others; neither is empty. Unpack both.",
    pattern="x -> first, rest",
    arguments=(
        Argument(name="size", type="int", inferable=True, minimum=1, help="Entries of the first part."),
        Argument(
            name="dim",
            type="int",
            default=1,
            minimum=1,
            maximum=3,
            positional=False,
            help="The axis, counted with the batch.",
        ),
    ),
    relation=_split,
    component=_split_component,
    examples=(
        Example(
            source=(
                "z1, z2 = split(64)\nlinear(z1, 32)\nfeatures = relu()\nstyle = linear(z2, 32)\nadd(features, style)"
            ),
            input_shape=("B", 128),
            output_shape=("B", 32),
        ),
    ),
)

CHUNK = Operator(
    alias="chunk",
    identity="chunk@1",
    category="shape",
    summary="A tensor in equal parts along an axis.",
    documentation="The number of parts divides the axis. Along axis 0 the batch is cut: 2*B rows into twice B.",
    pattern="x -> out*",
    arguments=(
        Argument(name="chunks", type="int", minimum=1, maximum=32, help="How many parts."),
        Argument(
            name="dim",
            type="int",
            default=1,
            minimum=0,
            maximum=3,
            positional=False,
            help="The axis, counted with the batch.",
        ),
    ),
    relation=_chunk,
    component=_chunk_component,
    batch="relation",
    count="chunks",
    examples=(
        Example(
            note="One projection for two batches.",
            source=(
                "pair = concat(x, x, axis=0)\nshared = linear(pair, 6)\np, q = chunk(shared, 2, dim=0)\nconcat(p, q)"
            ),
            input_shape=("B", 4),
            output_shape=("B", 12),
        ),
    ),
)

CONCAT = Operator(
    alias="concat",
    identity="concat@1",
    category="shape",
    summary="Tensors one after the other along an axis.",
    documentation="All other axes are equal. Along axis 0 the batches follow each other: B and B rows are 2*B.",
    pattern="x* -> out",
    arguments=(
        Argument(
            name="axis",
            type="int",
            default=1,
            minimum=0,
            maximum=3,
            positional=False,
            help="The axis, counted with the batch.",
        ),
        Argument(
            name="input_count",
            type="int",
            inferable=True,
            minimum=2,
            positional=False,
            help="How many tensors; it follows from the call.",
        ),
    ),
    relation=_concat,
    component=_concat_component,
    batch="relation",
    count="input_count",
    examples=(
        Example(
            source="a = linear(x, 4)\nb = linear(x, 8)\nconcat(a, b)", input_shape=("B", 6), output_shape=("B", 12)
        ),
    ),
)
