"""Cases of the norms of query and key heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mila.kernels.signatures import Array
from tests.kernels.bench import Bench, Build, Case, Run, wide

EPSILON = 1e-5
#: Query heads and key heads; as many value heads pass.
HEADS, KV_HEADS = 3, 2
NORMED, ALL = HEADS + KV_HEADS, HEADS + 2 * KV_HEADS


def by_head(x: Array, head_dim: int) -> Array:
    """(N, H + 2 K, D) in float64."""
    return wide(x).reshape(len(x), ALL, head_dim)


def normalized(x: Array, head_dim: int) -> tuple[Array, Array]:
    """The query and key heads divided by their root mean square, and the reciprocals of it."""
    heads = by_head(x, head_dim)[:, :NORMED]
    rstd = 1 / np.sqrt((heads**2).mean(axis=2) + EPSILON)
    return heads * rstd[..., None], rstd


def weight_of_heads(query_weight: Array, key_weight: Array) -> Array:
    """(H + K, D) in float64."""
    return np.stack([wide(query_weight)] * HEADS + [wide(key_weight)] * KV_HEADS)


def forward_case(saves: bool) -> Build:
    """Forward, with or without what backward needs."""

    def build(b: Bench) -> Run:
        x, weights = b.array(b.rows, ALL * b.columns), (b.array(b.columns), b.array(b.columns))
        y = x if b.alias == "x" else b.empty(*x.shape)
        outputs = {"output": y, "rstd": b.empty(b.rows, NORMED)}
        normal, rstd = normalized(x, b.columns)
        result = by_head(x, b.columns)
        result[:, :NORMED] = normal * weight_of_heads(*weights)
        expected = {"output": result.reshape(x.shape), "rstd": rstd}
        if saves:
            outputs["normal"] = b.empty(b.rows, NORMED * b.columns)
            expected["normal"] = normal.reshape(outputs["normal"].shape)
        workspace = b.workspace(b.kernels.head_norm_forward_workspace(b.rows, HEADS, KV_HEADS, b.columns))
        return Run(
            lambda: b.kernels.head_norm_forward(
                y, outputs.get("normal"), outputs["rstd"], x, *weights, HEADS, KV_HEADS, EPSILON, workspace
            ),
            outputs,
            expected,
        )

    return build


def bound_case(b: Bench) -> Run:
    """The kernel bound to a single row; the weights are written after it was bound."""
    x, weights = b.array(1, ALL * b.columns), (b.empty(b.columns), b.empty(b.columns))
    y = x if b.alias == "x" else b.empty(*x.shape)
    workspace = b.workspace(b.kernels.head_norm_forward_workspace(1, HEADS, KV_HEADS, b.columns))
    call = b.kernels.bind_head_norm_forward(y, x, *weights, HEADS, KV_HEADS, EPSILON, workspace)
    for weight in weights:
        weight[...] = b.array(b.columns)
    normal, _ = normalized(x, b.columns)
    expected = by_head(x, b.columns)
    expected[:, :NORMED] = normal * weight_of_heads(*weights)

    def run() -> None:
        with b.kernels.region():
            call()

    return Run(run, {"output": y}, {"output": expected.reshape(x.shape)})


def backward_case(accumulate: bool, frozen: tuple[str, ...]) -> Build:
    """Backward, with the weights named in ``frozen`` without gradients."""

    def build(b: Bench) -> Run:
        x, dy = b.array(b.rows, ALL * b.columns), b.array(b.rows, ALL * b.columns)
        weights = b.array(b.columns), b.array(b.columns)
        outputs = {"dx": dy if b.alias == "dy" else b.empty(*dy.shape)}
        for name in ("dquery_weight", "dkey_weight"):
            if name not in frozen:
                outputs[name] = (b.array if accumulate else b.empty)(b.columns)
        normal, rstd = normalized(x, b.columns)
        saved = normal.reshape(b.rows, NORMED * b.columns).astype(b.dtype), b.statistics(rstd)
        normal = wide(saved[0]).reshape(normal.shape)
        expected = expected_gradients(by_head(dy, b.columns), normal, rstd, weight_of_heads(*weights))
        for name in outputs:
            if accumulate and name != "dx":
                expected[name] = expected[name] + wide(outputs[name])
        gradients = outputs.get("dquery_weight"), outputs.get("dkey_weight")
        workspace = b.workspace(b.kernels.head_norm_backward_workspace(b.rows, HEADS, KV_HEADS, b.columns))
        return Run(
            lambda: b.kernels.head_norm_backward(
                outputs["dx"], *gradients, *saved, dy, *weights, HEADS, KV_HEADS, accumulate, workspace
            ),
            outputs,
            expected,
        )

    return build


def expected_gradients(dy: Array, normal: Array, rstd: Array, weight: Array) -> dict[str, Array]:
    """Gradients of input (N, (H + 2 K) D) and of both weights; ``dy`` (N, H + 2 K, D)."""
    dx, g = dy.copy(), dy[:, :NORMED] * weight
    dx[:, :NORMED] = rstd[..., None] * (g - normal * (g * normal).mean(axis=2, keepdims=True))
    products = dy[:, :NORMED] * normal
    return {
        "dx": dx.reshape(len(dx), dx.shape[1] * dx.shape[2]),
        "dquery_weight": products[:, :HEADS].sum(axis=(0, 1)),
        "dkey_weight": products[:, HEADS:].sum(axis=(0, 1)),
    }


def head_norm_cases() -> Iterator[Case]:
    """Forward and backward, accumulating or not, frozen or not; and forward bound to a row."""
    yield Case("head_norm_bound", bound_case, ("x",))
    for saves in (False, True):
        yield Case(f"head_norm_forward-saves={saves}", forward_case(saves), ("x",))
    yield Case("head_norm_backward-accumulate=True", backward_case(True, ()), ("dy",))
    for frozen in ((), ("dquery_weight",), ("dkey_weight",), ("dquery_weight", "dkey_weight")):
        yield Case(f"head_norm_backward-frozen={','.join(frozen)}", backward_case(False, frozen), ("dy",))
