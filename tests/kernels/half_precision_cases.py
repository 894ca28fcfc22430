"""Cases of kernels whose arrays are stored in half precision: what they compute is rounded once."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from mila.kernels.signatures import Array
from tests.kernels.bench import Bench, Build, Case, Run, wide

HALVES: tuple[np.dtype[np.generic], ...] = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
_VOCABULARY = 37


def half(b: Bench, dtype: np.dtype[np.generic], *shape: int) -> Array:
    return b.array(*shape).astype(dtype)


def unwritten(dtype: np.dtype[np.generic], *shape: int) -> Array:
    return np.full(shape, np.nan, dtype)


def half_precision_cases() -> Iterator[Case]:
    for dtype in HALVES:
        yield Case(f"cast-from-{dtype}", widened(dtype), elementwise=True)
        yield Case(f"cast-to-{dtype}", narrowed(dtype), elementwise=True)
        yield Case(f"add_in_place-{dtype}", added(dtype, dtype), elementwise=True)
        yield Case(f"add_in_place-{dtype}-wide", added(dtype, None), elementwise=True)
        yield Case(f"global_norm-{dtype}", norm(dtype))
        yield Case(f"position_forward-{dtype}", positions(dtype), elementwise=True)
        yield Case(f"linear_backward_input_narrow-{dtype}", linear_backward_input(dtype))
        for option in (False, True):
            yield Case(f"linear_forward_narrow-{dtype}-bias={option}", linear_forward(dtype, option))
            yield Case(f"linear_backward_weight-{dtype}-accumulate={option}", linear_backward_weight(dtype, option))
        for scale, integer in ((1.0, "int32"), (2.5, "int64")):
            name = f"embedding_forward_narrow-{dtype}-{integer}-scale={scale}"
            yield Case(name, embedding(dtype, integer, scale), elementwise=True)
            yield Case(f"adamw-{dtype}-gradient_scale={scale}", adamw(dtype, scale), elementwise=True)
            for option in (False, True):
                name = f"embedding_backward_narrow-{dtype}-{integer}-scale={scale}-accumulate={option}"
                yield Case(name, embedding_backward(dtype, integer, scale, option), elementwise=True)


def widened(dtype: np.dtype[np.generic]) -> Build:
    def build(b: Bench) -> Run:
        x, y = half(b, dtype, b.rows, b.columns), b.empty(b.rows, b.columns)
        return Run(lambda: b.kernels.cast(y, x), {"output": y}, {"output": wide(x)})

    return build


def narrowed(dtype: np.dtype[np.generic]) -> Build:
    def build(b: Bench) -> Run:
        x, y = b.array(b.rows, b.columns), unwritten(dtype, b.rows, b.columns)
        return Run(lambda: b.kernels.cast(y, x), {"output": y}, {"output": wide(x)})

    return build


def added(dtype: np.dtype[np.generic], other: np.dtype[np.generic] | None) -> Build:
    def build(b: Bench) -> Run:
        y, x = half(b, dtype, b.rows, b.columns), b.array(b.rows, b.columns).astype(other or b.dtype)
        expected = wide(y) + wide(x)
        return Run(lambda: b.kernels.add_in_place(y, x), {"output": y}, {"output": expected})

    return build


def norm(dtype: np.dtype[np.generic]) -> Build:
    def build(b: Bench) -> Run:
        gradients, result = half(b, dtype, b.rows * b.columns), b.empty(1)

        def call() -> None:
            result[0] = b.kernels.global_norm(gradients)

        return Run(call, {"norm": result}, {"norm": np.array([np.linalg.norm(wide(gradients))])})

    return build


def positions(dtype: np.dtype[np.generic]) -> Build:
    def build(b: Bench) -> Run:
        x, table, first = b.array(3, b.rows, b.columns), half(b, dtype, b.rows + 8, b.columns), [4, 0, 7]
        y = b.empty(*x.shape)
        expected = wide(x) + np.stack([wide(table)[at : at + b.rows] for at in first])
        return Run(lambda: b.kernels.position_forward(y, x, table, first), {"output": y}, {"output": expected})

    return build


def linear_forward(dtype: np.dtype[np.generic], biased: bool) -> Build:
    def build(b: Bench) -> Run:
        out_features = b.columns + 3
        x, weight, y = (
            b.array(b.rows, b.columns),
            half(b, dtype, out_features, b.columns),
            b.empty(b.rows, out_features),
        )
        bias = b.array(out_features) if biased else None
        workspace = b.workspace(b.kernels.linear_forward_narrow_workspace(out_features, b.columns))
        expected = wide(x) @ wide(weight).T + (0 if bias is None else wide(bias))
        return Run(
            lambda: b.kernels.linear_forward_narrow(y, x, weight, None, bias, workspace),
            {"output": y},
            {"output": expected},
        )

    return build


def linear_backward_input(dtype: np.dtype[np.generic]) -> Build:
    def build(b: Bench) -> Run:
        out_features = b.columns + 3
        dy, weight = b.array(b.rows, out_features), half(b, dtype, out_features, b.columns)
        dx = b.empty(b.rows, b.columns)
        workspace = b.workspace(b.kernels.linear_backward_input_narrow_workspace(b.rows, out_features, b.columns))
        return Run(
            lambda: b.kernels.linear_backward_input_narrow(dx, dy, weight, workspace),
            {"dx": dx},
            {"dx": wide(dy) @ wide(weight)},
        )

    return build


def linear_backward_weight(dtype: np.dtype[np.generic], accumulate: bool) -> Build:
    def build(b: Bench) -> Run:
        out_features = b.columns + 3
        dy, x = b.array(b.rows, out_features), b.array(b.rows, b.columns)
        dweight = half(b, dtype, out_features, b.columns) if accumulate else unwritten(dtype, out_features, b.columns)
        workspace = b.workspace(b.kernels.linear_backward_weight_workspace(b.rows, out_features, b.columns))
        expected = wide(dy).T @ wide(x) + (wide(dweight) if accumulate else 0)
        return Run(
            lambda: b.kernels.linear_backward_weight(dweight, dy, x, accumulate, workspace),
            {"dweight": dweight},
            {"dweight": expected},
        )

    return build


def embedding(dtype: np.dtype[np.generic], integer: str, scale: float) -> Build:
    def build(b: Bench) -> Run:
        table = half(b, dtype, _VOCABULARY, b.columns)
        ids = b.random.integers(0, _VOCABULARY, b.rows).astype(integer)
        y = b.empty(b.rows, b.columns)
        workspace = b.workspace(b.kernels.embedding_forward_narrow_workspace(b.rows, b.columns))
        return Run(
            lambda: b.kernels.embedding_forward_narrow(y, table, None, ids, scale, workspace),
            {"output": y},
            {"output": wide(table)[ids] * scale},
        )

    return build


def embedding_backward(dtype: np.dtype[np.generic], integer: str, scale: float, accumulate: bool) -> Build:
    def build(b: Bench) -> Run:
        dy, ids = b.array(b.rows, b.columns), b.random.integers(0, _VOCABULARY, b.rows).astype(integer)
        shape = (_VOCABULARY, b.columns)
        dtable = half(b, dtype, *shape) if accumulate else unwritten(dtype, *shape)
        workspace = b.workspace(b.kernels.embedding_backward_narrow_workspace(b.rows, b.columns))
        expected = wide(dtable) if accumulate else np.zeros(shape)
        np.add.at(expected, ids, scale * wide(dy))
        return Run(
            lambda: b.kernels.embedding_backward_narrow(dtable, dy, ids, scale, accumulate, workspace),
            {"dtable": dtable},
            {"dtable": expected},
        )

    return build


def adamw(dtype: np.dtype[np.generic], gradient_scale: float) -> Build:
    def build(b: Bench) -> Run:
        size = b.rows * b.columns
        p, g, m, v = half(b, dtype, size), half(b, dtype, size), b.array(size), np.abs(b.array(size))
        workspace = b.workspace(b.kernels.adamw_workspace(size, np.dtype(dtype)))
        wide_p, wide_m, wide_v = wide(p), wide(m), wide(v)
        hyper = 0.01, 0.9, 0.95, 1e-6, 0.1, 3, gradient_scale
        wide_workspace = np.empty(b.kernels.adamw_workspace(size, np.dtype(np.float64)))
        b.kernels.adamw(wide_p, wide_m, wide_v, wide(g), *hyper, wide_workspace)
        return Run(
            lambda: b.kernels.adamw(p, m, v, g, *hyper, workspace),
            {"parameters": p, "first": m, "second": v, "gradients": g},
            {"parameters": wide_p, "first": wide_m, "second": wide_v, "gradients": wide(g)},
        )

    return build
