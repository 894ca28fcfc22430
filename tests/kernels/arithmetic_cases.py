"""Cases of the arithmetic kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mila.kernels.signatures import Array
from tests.kernels.bench import Bench, Build, Case, Run, wide

MINIMUM, MAXIMUM = -0.7, 1.1


def arithmetic_cases() -> Iterator[Case]:
    yield Case("subtract", pair("subtract", np.subtract), ("a", "b"), elementwise=True)
    yield Case("multiply", pair("multiply", np.multiply), ("a", "b"), elementwise=True)
    yield Case("clamp_forward", clamp_forward, ("x",), elementwise=True)
    yield Case("clamp_backward", clamp_backward, ("dy", "x"), elementwise=True)
    yield Case("learned_scale_forward", learned_scale_forward, ("x",), elementwise=True)
    for trains, accumulate in ((True, False), (True, True), (False, False)):
        name = f"learned_scale_backward-{trains}-{accumulate}"
        yield Case(name, learned_scale_backward(trains, accumulate), ("dy",))
    yield Case("layer_scale_forward", layer_scale_forward, ("x",), elementwise=True)
    for trains, accumulate in ((True, False), (True, True), (False, False)):
        name = f"layer_scale_backward-{trains}-{accumulate}"
        yield Case(name, layer_scale_backward(trains, accumulate), ("dy",))
    for stretched in ((), (0,), (1,), (0, 2), (0, 1, 2)):
        yield Case(f"broadcast_add-{stretched}", broadcast_add(stretched), ("a",), elementwise=True)
        yield Case(f"broadcast_sum-{stretched}", broadcast_sum(stretched), () if stretched else ("dy",))
    yield Case("matrix_product_forward", matrix_product_forward)
    yield Case("matrix_product_backward", matrix_product_backward, ("a",))


def pair(name: str, function: Callable[[Array, Array], Array]) -> Build:
    def build(b: Bench) -> Run:
        left, right = b.array(b.rows, b.columns), b.array(b.rows, b.columns)
        output = {"": b.empty(b.rows, b.columns), "a": left, "b": right}[b.alias]
        expected = function(wide(left), wide(right))
        kernel = getattr(b.kernels, name)
        return Run(lambda: kernel(output, left, right), {"output": output}, {"output": expected})

    return build


def clamp_forward(b: Bench) -> Run:
    x = b.array(b.rows, b.columns)
    output = x if b.alias == "x" else b.empty(b.rows, b.columns)
    expected = np.clip(wide(x), MINIMUM, MAXIMUM)
    return Run(lambda: b.kernels.clamp_forward(output, x, MINIMUM, MAXIMUM), {"output": output}, {"output": expected})


def clamp_backward(b: Bench) -> Run:
    x, dy = b.array(b.rows, b.columns), b.array(b.rows, b.columns)
    dx = {"": b.empty(b.rows, b.columns), "dy": dy, "x": x}[b.alias]
    expected = np.where((x >= MINIMUM) & (x <= MAXIMUM), wide(dy), 0)
    return Run(lambda: b.kernels.clamp_backward(dx, dy, x, MINIMUM, MAXIMUM), {"dx": dx}, {"dx": expected})


def learned_scale_forward(b: Bench) -> Run:
    x, gamma = b.array(b.rows, b.columns), b.array(1)
    output = x if b.alias == "x" else b.empty(b.rows, b.columns)
    expected = wide(gamma) * wide(x)
    return Run(lambda: b.kernels.learned_scale_forward(output, x, gamma), {"output": output}, {"output": expected})


def learned_scale_backward(trains: bool, accumulate: bool) -> Build:
    def build(b: Bench) -> Run:
        x, dy, gamma = b.array(b.rows, b.columns), b.array(b.rows, b.columns), b.array(1)
        dx = dy if b.alias == "dy" else b.empty(b.rows, b.columns)
        dgamma = b.array(1) if accumulate else b.empty(1)
        before = wide(dgamma) if accumulate else np.zeros(1)
        expected = {"dx": wide(gamma) * wide(dy), "dgamma": before + (wide(dy) * wide(x)).sum()}
        outputs = {"dx": dx, "dgamma": dgamma} if trains else {"dx": dx}
        given = dgamma if trains else None
        return Run(
            lambda: b.kernels.learned_scale_backward(dx, given, dy, x, gamma, accumulate),
            outputs,
            {name: expected[name] for name in outputs},
        )

    return build


def layer_scale_forward(b: Bench) -> Run:
    x, gamma = b.array(b.rows, b.columns), b.array(b.columns)
    output = x if b.alias == "x" else b.empty(b.rows, b.columns)
    expected = wide(gamma) * wide(x)
    return Run(lambda: b.kernels.layer_scale_forward(output, x, gamma), {"output": output}, {"output": expected})


def layer_scale_backward(trains: bool, accumulate: bool) -> Build:
    def build(b: Bench) -> Run:
        x, dy, gamma = b.array(b.rows, b.columns), b.array(b.rows, b.columns), b.array(b.columns)
        dx = dy if b.alias == "dy" else b.empty(b.rows, b.columns)
        dgamma = (b.array if accumulate else b.empty)(b.columns)
        before = wide(dgamma) if accumulate else np.zeros(b.columns)
        expected = {"dx": wide(gamma) * wide(dy), "dgamma": before + (wide(dy) * wide(x)).sum(axis=0)}
        outputs = {"dx": dx, "dgamma": dgamma} if trains else {"dx": dx}
        given = dgamma if trains else None
        workspace = b.workspace(b.kernels.layer_scale_backward_workspace(b.rows, b.columns))
        return Run(
            lambda: b.kernels.layer_scale_backward(dx, given, dy, x, gamma, accumulate, workspace),
            outputs,
            {name: expected[name] for name in outputs},
        )

    return build


def small_shape(b: Bench, stretched: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if axis in stretched else extent for axis, extent in enumerate((b.rows, 3, b.columns)))


def broadcast_add(stretched: tuple[int, ...]) -> Build:
    def build(b: Bench) -> Run:
        shape = (b.rows, 3, b.columns)
        whole, small = b.array(*shape), b.array(*small_shape(b, stretched))
        output = whole if b.alias == "a" else b.empty(*shape)
        expected = wide(whole) + wide(small)
        return Run(lambda: b.kernels.broadcast_add(output, whole, small), {"output": output}, {"output": expected})

    return build


def broadcast_sum(stretched: tuple[int, ...]) -> Build:
    def build(b: Bench) -> Run:
        dy = b.array(b.rows, 3, b.columns)
        dx = dy if b.alias == "dy" else b.empty(*small_shape(b, stretched))
        expected = wide(dy).sum(axis=stretched, keepdims=True) if stretched else wide(dy)
        return Run(lambda: b.kernels.broadcast_sum(dx, dy), {"dx": dx}, {"dx": expected})

    return build


def matrix_product_forward(b: Bench) -> Run:
    left, right, output = b.array(3, b.rows, b.columns), b.array(3, b.columns, 7), b.empty(3, b.rows, 7)
    expected = np.einsum("bnk,bkm->bnm", wide(left), wide(right))
    return Run(lambda: b.kernels.matrix_product_forward(output, left, right), {"output": output}, {"output": expected})


def matrix_product_backward(b: Bench) -> Run:
    left, right, dy = b.array(3, b.rows, b.columns), b.array(3, b.columns, 7), b.array(3, b.rows, 7)
    da = left if b.alias == "a" else b.empty(*left.shape)
    db = b.empty(*right.shape)
    expected = {
        "da": np.einsum("bnm,bkm->bnk", wide(dy), wide(right)),
        "db": np.einsum("bnk,bnm->bkm", wide(left), wide(dy)),
    }
    return Run(lambda: b.kernels.matrix_product_backward(da, db, dy, left, right), {"da": da, "db": db}, expected)
