"""Cases of the kernels that choose experts and move rows to them and back."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from mila.kernels.signatures import Array
from tests.kernels.bench import Bench, Build, Case, Run, wide

TOP_K, EXPERTS = 3, 5


def expert_cases() -> Iterator[Case]:
    for top_k in (1, TOP_K, None):
        yield Case(f"top_k_forward-{top_k}", top_k_forward(top_k), elementwise=True)
        yield Case(f"top_k_backward-{top_k}", top_k_backward(top_k), elementwise=True)
    yield Case("top_k_forward-lowest", top_k_of_the_lowest, elementwise=True)
    yield Case("top_k_forward-neighbours", top_k_of_neighbours, elementwise=True)
    for count in (TOP_K, EXPERTS, 1000):
        yield Case(f"group_slots-{count}", group_slots(count), elementwise=True)
    yield Case("gather_rows", gather_rows, elementwise=True)
    for is_weighted in (False, True):
        yield Case(f"scatter_add_rows-{is_weighted}", scatter_add_rows(is_weighted), elementwise=True)
    yield Case("scatter_add_rows_backward", scatter_add_rows_backward, ("x",), elementwise=True)


def chosen(x: Array, top_k: int) -> Array:
    """Return indices by value, the largest first, and by themselves where values are equal."""
    return np.argsort(-x, axis=1, kind="stable")[:, :top_k].astype(np.int32)


def rounded(b: Bench) -> Array:
    """Few different values, so that many are equal, and infinite ones."""
    x = np.round(b.array(b.rows, b.columns))
    x[x == 3] = np.inf
    x[x == -1] = -np.inf
    return x


def top_k_forward(top_k: int | None) -> Build:
    def build(b: Bench) -> Run:
        k = b.columns if top_k is None else min(top_k, b.columns)
        x = rounded(b) if top_k == TOP_K else b.array(b.rows, b.columns)
        values, indices = b.empty(b.rows, k), np.full((b.rows, k), -1, np.int32)
        workspace = b.workspace(b.kernels.top_k_forward_workspace(b.rows, b.columns))
        where = chosen(x, k)
        outputs = {"indices": indices} if top_k == TOP_K else {"values": values, "indices": indices}
        return Run(
            lambda: b.kernels.top_k_forward(values, indices, x, workspace),
            outputs,
            {name: {"values": np.take_along_axis(wide(x), where, 1), "indices": where}[name] for name in outputs},
        )

    return build


def top_k_of_the_lowest(b: Bench) -> Run:
    """Minus infinity counts as the smallest finite value, so that the first ones come first."""
    smallest = float(ml_dtypes.finfo(b.dtype).min)  # type: ignore[no-untyped-call]
    x = np.where(b.random.random((b.rows, b.columns)) < 0.5, -np.inf, smallest).astype(b.dtype)
    return indices_of_top_k(b, x, np.tile(np.arange(min(TOP_K, b.columns)), (b.rows, 1)))


def top_k_of_neighbours(b: Bench) -> Run:
    """Values that differ in the last bit are in order too."""
    last_bit = float(ml_dtypes.finfo(b.dtype).eps)  # type: ignore[no-untyped-call]
    x = np.tile(1 + last_bit * (np.arange(b.columns) % 64), (b.rows, 1)).astype(b.dtype)
    return indices_of_top_k(b, x, chosen(x, min(TOP_K, b.columns)))


def indices_of_top_k(b: Bench, x: Array, expected: Array) -> Run:
    values, indices = b.empty(*expected.shape), np.full(expected.shape, -1, np.int32)
    workspace = b.workspace(b.kernels.top_k_forward_workspace(b.rows, b.columns))
    return Run(
        lambda: b.kernels.top_k_forward(values, indices, x, workspace), {"indices": indices}, {"indices": expected}
    )


def top_k_backward(top_k: int | None) -> Build:
    def build(b: Bench) -> Run:
        k = b.columns if top_k is None else min(top_k, b.columns)
        dvalues, dx = b.array(b.rows, k), b.empty(b.rows, b.columns)
        indices = chosen(b.random.standard_normal((b.rows, b.columns)), k)
        expected = np.zeros(dx.shape)
        np.put_along_axis(expected, indices, wide(dvalues), 1)
        return Run(lambda: b.kernels.top_k_backward(dx, dvalues, indices), {"dx": dx}, {"dx": expected})

    return build


def experts_of(b: Bench, count: int) -> Array:
    """Return for each row different experts, the last of which nobody has where there are enough others."""
    return chosen(b.random.standard_normal((b.rows, max(TOP_K, count - 1))), TOP_K)


def slots_of(b: Bench, experts: Array, expert: int) -> Array:
    return np.flatnonzero(experts.reshape(-1) == expert).astype(np.int32)


def group_slots(count: int) -> Build:
    def build(b: Bench) -> Run:
        experts = experts_of(b, count)
        slots, bounds = np.full(experts.size, -1, np.int32), np.full(count + 1, -1)
        groups = [slots_of(b, experts, expert) for expert in range(count)]
        expected = {"slots": np.concatenate(groups), "bounds": np.cumsum([0, *map(len, groups)])}

        def call() -> None:
            bounds[:] = b.kernels.group_slots(slots, experts, count)

        return Run(call, {"slots": slots, "bounds": bounds}, expected)

    return build


def gather_rows(b: Bench) -> Run:
    x, slots = b.array(b.rows, b.columns), slots_of(b, experts_of(b, EXPERTS), 1)
    output = b.empty(slots.size, b.columns)
    expected = wide(x)[slots // TOP_K]
    return Run(lambda: b.kernels.gather_rows(output, x, slots, TOP_K), {"output": output}, {"output": expected})


def scatter_add_rows(is_weighted: bool) -> Build:
    def build(b: Bench) -> Run:
        slots = slots_of(b, experts_of(b, EXPERTS), 1)
        output, x, weights = b.array(b.rows, b.columns), b.array(slots.size, b.columns), b.array(b.rows, TOP_K)
        workspace = b.workspace(b.kernels.scatter_add_rows_workspace(b.rows, b.columns))
        factors = wide(weights).reshape(-1)[slots] if is_weighted else np.ones(slots.size)
        expected = wide(output)
        expected[slots // TOP_K] += factors[:, None] * wide(x)
        given = weights if is_weighted else None
        return Run(
            lambda: b.kernels.scatter_add_rows(output, x, given, slots, TOP_K, workspace),
            {"output": output},
            {"output": expected},
        )

    return build


def scatter_add_rows_backward(b: Bench) -> Run:
    slots = slots_of(b, experts_of(b, EXPERTS), 1)
    dy, x, weights = b.array(b.rows, b.columns), b.array(slots.size, b.columns), b.array(b.rows, TOP_K)
    dx, dweights = x if b.alias == "x" else b.empty(*x.shape), b.array(b.rows, TOP_K)
    workspace = b.workspace(b.kernels.scatter_add_rows_backward_workspace(b.rows, b.columns))
    upstream, products = wide(dy)[slots // TOP_K], wide(dweights)
    products.reshape(-1)[slots] = (upstream * wide(x)).sum(axis=1)
    expected = {"dx": wide(weights).reshape(-1)[slots][:, None] * upstream, "dweights": products}
    return Run(
        lambda: b.kernels.scatter_add_rows_backward(dx, dweights, dy, x, weights, slots, workspace),
        {"dx": dx, "dweights": dweights},
        expected,
    )
