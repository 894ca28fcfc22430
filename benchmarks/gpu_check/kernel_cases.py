"""Calls of the kernels that memory bounds, at sizes beyond every cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu_check.bench import Arrays, Call
from mila.kernels.cuda.family import BFLOAT16, FLOAT32
from mila.kernels.signatures import Array
from mila.kernels.signatures.activation_function import ActivationFunction

Build = Callable[[Arrays], Call]
_EPSILON = 1e-5


def flat_cases() -> Iterator[Build]:
    """Copies and arithmetic of whole arrays."""

    def size(a: Arrays) -> int:
        return a.rows(1)

    def other(a: Arrays) -> Array:
        dtype = BFLOAT16 if a.dtype == FLOAT32 else FLOAT32
        return a.bench.values(a.rows(1, FLOAT32.itemsize), dtype=dtype)

    def cast(a: Arrays) -> Call:
        x = other(a)
        return a.call("cast", writes=("output",), output=a.empty(x.size), x=x, note=f"from {x.dtype.name}")

    yield lambda a: a.call("copy", writes=("output",), output=a.empty(size(a)), x=a.values(size(a)))
    yield cast
    yield lambda a: a.call("fill", writes=("output",), output=a.empty(size(a)), value=1.0)
    yield lambda a: a.call("add_in_place", updates=("output",), output=a.values(size(a)), x=a.values(size(a)))
    yield lambda a: a.call(
        "residual_forward",
        writes=("output",),
        output=a.empty(size(a)),
        a=a.values(size(a)),
        b=a.values(size(a)),
        scale=1.0,
    )
    yield lambda a: a.call(
        "dropout",
        writes=("output",),
        output=a.empty(size(a)),
        x=a.values(size(a)),
        probability=0.1,
        key=1,
        workspace=a.workspace(0),
    )


def activation_cases() -> Iterator[Build]:
    """Activations, alone and gated."""
    gelu, silu = ActivationFunction("gelu_tanh"), ActivationFunction("silu")

    def forward(a: Arrays, keeps_derivative: bool) -> Call:
        size = a.rows(1)
        return a.call(
            "activation_forward",
            writes=("output", "derivative"),
            output=a.empty(size),
            derivative=a.empty(size) if keeps_derivative else None,
            x=a.values(size),
            function=gelu,
            workspace=a.workspace(0),
            note="with derivative" if keeps_derivative else "",
        )

    def backward(a: Arrays) -> Call:
        size = a.rows(1)
        return a.call(
            "activation_backward", writes=("dx",), dx=a.empty(size), dy=a.values(size), derivative=a.values(size)
        )

    def gated(a: Arrays, method: str) -> Call:
        rows, columns = a.rows(2 * a.settings.wide), a.settings.wide
        shared: dict[str, Any] = {"x": a.values(rows, 2 * columns), "function": silu, "workspace": a.workspace(0)}
        if method == "gated_forward":
            return a.call(method, writes=("output",), output=a.empty(rows, columns), **shared)
        return a.call(method, writes=("dx",), dx=a.empty(rows, 2 * columns), dy=a.values(rows, columns), **shared)

    yield lambda a: forward(a, False)
    yield lambda a: forward(a, True)
    yield backward
    yield lambda a: gated(a, "gated_forward")
    yield lambda a: gated(a, "gated_backward")


def norm_cases() -> Iterator[Build]:
    """Layer norm and RMS norm, over short and long rows, and the norm of heads."""

    def forward(a: Arrays, columns: int, centred: bool) -> Call:
        rows = a.rows(columns)
        shared: dict[str, Any] = {
            "output": a.empty(rows, columns),
            "rstd": a.statistics(rows),
            "x": a.values(rows, columns),
            "weight": a.values(columns),
            "epsilon": _EPSILON,
        }
        if centred:
            mean, bias = a.statistics(rows), a.values(columns)
            return a.call("layer_norm_forward", writes=("output", "mean", "rstd"), mean=mean, bias=bias, **shared)
        return a.call(
            "rms_norm_forward",
            writes=("output", "rstd"),
            bias=None,
            unit_offset=0.0,
            workspace=a.workspace(0),
            **shared,
        )

    def backward(a: Arrays, columns: int, centred: bool) -> Call:
        rows = a.rows(columns)
        shared: dict[str, Any] = {
            "dx": a.empty(rows, columns),
            "dweight": a.empty(columns),
            "rstd": a.statistics(rows),
            "dy": a.values(rows, columns),
            "x": a.values(rows, columns),
            "weight": a.values(columns),
            "accumulate": False,
            "workspace": a.workspace(a.bench.kernels.layer_norm_backward_workspace(rows, columns)),
        }
        if centred:
            mean, dbias = a.statistics(rows), a.empty(columns)
            return a.call("layer_norm_backward", writes=("dx", "dweight", "dbias"), dbias=dbias, mean=mean, **shared)
        return a.call("rms_norm_backward", writes=("dx", "dweight"), dbias=None, unit_offset=0.0, **shared)

    def by_columns(build: Callable[[Arrays, int, bool], Call], wide: bool, centred: bool) -> Build:
        return lambda a: build(a, a.settings.wide if wide else a.settings.narrow, centred)

    for build in (forward, backward):
        for centred in (True, False):
            for wide in (False, True):
                yield by_columns(build, wide, centred)
    yield _head_norm_forward
    yield _head_norm_backward


def _packed(a: Arrays) -> tuple[int, int, int]:
    """Rows, heads and elements of a head of packed projections with as many key heads as query heads."""
    heads, size = a.settings.heads, a.settings.head_dim
    return a.rows(3 * heads * size), heads, size


def _head_norm_forward(a: Arrays) -> Call:
    rows, heads, size = _packed(a)
    return a.call(
        "head_norm_forward",
        writes=("output", "normal", "rstd"),
        output=a.empty(rows, 3 * heads * size),
        normal=a.empty(rows, 2 * heads * size),
        rstd=a.statistics(rows, 2 * heads),
        x=a.values(rows, 3 * heads * size),
        query_weight=a.values(size),
        key_weight=a.values(size),
        heads=heads,
        kv_heads=heads,
        epsilon=_EPSILON,
        workspace=a.workspace(0),
    )


def _head_norm_backward(a: Arrays) -> Call:
    rows, heads, size = _packed(a)
    return a.call(
        "head_norm_backward",
        writes=("dx", "dquery_weight", "dkey_weight"),
        dx=a.empty(rows, 3 * heads * size),
        dquery_weight=a.empty(size),
        dkey_weight=a.empty(size),
        normal=a.values(rows, 2 * heads * size),
        rstd=a.statistics(rows, 2 * heads),
        dy=a.values(rows, 3 * heads * size),
        query_weight=a.values(size),
        key_weight=a.values(size),
        heads=heads,
        kv_heads=heads,
        accumulate=False,
        workspace=a.workspace(a.bench.kernels.head_norm_backward_workspace(rows, heads, heads, size)),
    )


def row_cases() -> Iterator[Build]:
    """Softmax, rotary positions, sums over rows, and what moves parts of arrays."""

    def softmax(a: Arrays, columns: int, forward: bool) -> Call:
        shape, workspace = (a.rows(columns), columns), a.workspace(0)
        if forward:
            arrays: dict[str, Any] = {"output": a.empty(*shape), "x": a.values(*shape)}
            return a.call("softmax_forward", writes=("output",), axis=-1, workspace=workspace, **arrays)
        arrays = {"dx": a.empty(*shape), "dy": a.values(*shape), "y": a.values(*shape)}
        return a.call("softmax_backward", writes=("dx",), axis=-1, workspace=workspace, **arrays)

    def by_columns(wide: bool, forward: bool) -> Build:
        return lambda a: softmax(a, a.settings.wide if wide else a.settings.narrow, forward)

    for forward in (True, False):
        for wide in (False, True):
            yield by_columns(wide, forward)
    yield _rope
    yield _column_sums
    yield _concatenate
    yield _split
    yield lambda a: _permute(a, (0, 2, 1, 3))
    yield lambda a: _permute(a, (0, 1, 3, 2))
    yield _add_bias


def _rope(a: Arrays) -> Call:
    heads, size = a.settings.heads, a.settings.head_dim
    batch, length = a.sequences(3 * heads * size)
    x = a.values(batch, length, 3 * heads * size)
    tables: dict[str, Any] = {"cosine": a.statistics(length, size // 2), "sine": a.statistics(length, size // 2)}
    return a.call(
        "rope",
        writes=("output",),
        output=a.empty(*x.shape),
        x=x,
        **tables,
        starts=[0] * batch,
        heads=2 * heads,
        head_dim=size,
        inverse=False,
        workspace=a.workspace(0),
    )


def _column_sums(a: Arrays) -> Call:
    columns = a.settings.narrow
    rows = a.rows(columns)
    workspace = a.workspace(a.bench.kernels.linear_backward_bias_workspace(rows, columns))
    return a.call(
        "linear_backward_bias",
        writes=("dbias",),
        dbias=a.empty(columns),
        dy=a.values(rows, columns),
        accumulate=False,
        workspace=workspace,
    )


def _concatenate(a: Arrays) -> Call:
    columns = a.settings.narrow
    rows = a.rows(2 * columns)
    output, parts = a.empty(rows, 2 * columns), [a.values(rows, columns) for _ in range(2)]

    def run() -> None:
        for position, part in enumerate(parts):
            a.bench.kernels.put_section(output, part, 1, position * columns)

    return Call(a.label("put_section", output, "twice"), run, tuple(parts), (output,))


def _split(a: Arrays) -> Call:
    columns = a.settings.narrow
    rows = a.rows(3 * columns)
    x, parts = a.values(rows, 3 * columns), [a.empty(rows, columns) for _ in range(3)]

    def run() -> None:
        for position, part in enumerate(parts):
            a.bench.kernels.take_section(part, x, 1, position * columns)

    return Call(a.label("take_section", x, "three times"), run, (x,), tuple(parts))


def _permute(a: Arrays, axes: tuple[int, ...]) -> Call:
    heads, size = a.settings.heads, a.settings.head_dim
    x = a.values(*a.sequences(heads * size), heads, size)
    output = a.empty(*(x.shape[axis] for axis in axes))
    return a.call("permute", writes=("output",), output=output, x=x, axes=axes, note=f"to {axes}")


def _add_bias(a: Arrays) -> Call:
    columns = a.settings.wide
    x = a.values(a.rows(columns), columns)
    return a.call("broadcast_add", writes=("output",), output=a.empty(*x.shape), a=x, b=a.values(1, columns))


def token_cases(batch_ids: tuple[int, ...]) -> Iterator[Build]:
    """Tables of tokens and positions, and the loss."""

    def embedding(a: Arrays) -> Call:
        rows, columns = a.rows(a.settings.narrow), a.settings.narrow
        ids = a.bench.ids(rows, rows, permuted=True)
        table = a.values(rows, columns)
        return a.call(
            "embedding_forward", writes=("output",), output=a.empty(rows, columns), table=table, ids=ids, scale=1.0
        )

    def embedding_backward(count: int, ordered: bool) -> Build:
        return lambda a: a.call(
            "embedding_backward",
            writes=("dtable",),
            dtable=a.empty(a.settings.vocabulary, a.settings.narrow),
            dy=a.values(count, a.settings.narrow),
            ids=a.bench.ids(count, a.settings.vocabulary),
            scale=1.0,
            accumulate=False,
            workspace=a.workspace(a.bench.kernels.embedding_backward_workspace(count, a.settings.narrow)),
            note=f"{count:,} ids{'' if ordered else ' in any order'}",
            ordered=ordered,
        )

    def positions(a: Arrays, forward: bool) -> Call:
        columns = a.settings.narrow
        batch, length = a.sequences(columns)
        x, table = a.values(batch, length, columns), a.values(length, columns)
        starts = [0] * batch
        if forward:
            arrays: dict[str, Any] = {"output": a.empty(*x.shape), "x": x, "table": table}
            return a.call("position_forward", writes=("output",), starts=starts, **arrays)
        return a.call("position_backward", writes=("dtable",), dtable=table, dy=x, starts=starts, accumulate=False)

    yield embedding
    for count in batch_ids:
        yield embedding_backward(count, ordered=True)
        yield embedding_backward(count, ordered=False)
    yield lambda a: positions(a, True)
    yield lambda a: positions(a, False)
    yield lambda a: _cross_entropy(a, True)
    yield lambda a: _cross_entropy(a, False)


def _cross_entropy(a: Arrays, forward: bool) -> Call:
    vocabulary = a.settings.vocabulary
    rows = a.rows(vocabulary)
    logits, targets, log_sum_exp = a.values(rows, vocabulary), a.bench.ids(rows, vocabulary), a.statistics(rows)
    shared: dict[str, Any] = {"logits": logits, "targets": targets, "log_sum_exp": log_sum_exp, "ignore_index": None}
    if forward:
        workspace = a.workspace(a.bench.kernels.cross_entropy_forward_workspace(rows, vocabulary))
        arrays: dict[str, Any] = {"loss": a.statistics(1), "workspace": workspace}
        return a.call("cross_entropy_forward", writes=("loss", "log_sum_exp"), **shared, **arrays)
    arrays = {"dlogits": a.empty(rows, vocabulary), "dloss": a.statistics(1)}
    return a.call("cross_entropy_backward", writes=("dlogits",), **shared, **arrays)


def optimizer_cases() -> Iterator[Build]:
    """Flat passes over all parameters, and the product of a single row, which reads a weight once."""

    def adamw(a: Arrays) -> Call:
        size = a.rows(1, FLOAT32.itemsize)
        moments: dict[str, Any] = {
            name: a.bench.empty(size, dtype=FLOAT32) for name in ("first_moment", "second_moment")
        }
        for moment in moments.values():
            a.bench.device.set_bytes(moment, 0)
        numbers: dict[str, Any] = {
            "learning_rate": 1e-3,
            "beta1": 0.9,
            "beta2": 0.95,
            "epsilon": 1e-8,
            "weight_decay": 0.1,
        }
        return a.call(
            "adamw",
            updates=("parameters", *moments),
            parameters=a.values(size),
            gradients=a.values(size),
            **moments,
            **numbers,
            step=1,
            gradient_scale=1.0,
            workspace=a.workspace(0),
        )

    def product_of_a_row(a: Arrays) -> Call:
        columns = a.settings.wide
        rows = a.rows(columns)
        arrays: dict[str, Any] = {
            "output": a.empty(1, rows),
            "x": a.values(1, columns),
            "weight": a.values(rows, columns),
        }
        return a.call("linear_forward", writes=("output",), bias=None, note="single row", **arrays)

    yield adamw
    yield lambda a: a.call("global_norm", gradients=a.values(a.rows(1)), note="answer on the host")
    yield product_of_a_row


def kernel_cases(batch_ids: tuple[int, ...]) -> Iterator[Build]:
    """All of them."""
    yield from flat_cases()
    yield from activation_cases()
    yield from norm_cases()
    yield from row_cases()
    yield from token_cases(batch_ids)
    yield from optimizer_cases()
