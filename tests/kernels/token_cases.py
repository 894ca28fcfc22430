"""Cases of the kernels that gather, prepend and pool positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mila.kernels.signatures import Array
from tests.kernels.bench import Bench, Build, Case, Run, wide

LENGTH = 5
#: An id that no row has; in 32 bits it would be 7.
SOUGHT_FAR = (1 << 32) + 7


def token_cases() -> Iterator[Case]:
    for dtype in (np.int32, np.int64):
        for token_id in (None, 7, np.iinfo(dtype).min, SOUGHT_FAR):
            name = f"{np.dtype(dtype).name}-{token_id}"
            yield Case(f"gather_token_forward-{name}", gather_forward(dtype, token_id), elementwise=True)
            yield Case(f"gather_token_backward-{name}", gather_backward(dtype, token_id), elementwise=True)
    yield Case("prepend_forward", prepend_forward, elementwise=True)
    for trains, accumulate in ((True, False), (True, True), (False, False)):
        yield Case(f"prepend_backward-{trains}-{accumulate}", prepend_backward(trains, accumulate), elementwise=True)
    for trains, length in ((True, LENGTH), (False, LENGTH), (True, 4 * LENGTH)):
        yield Case(f"pool_maximum_forward-{trains}-{length}", pool_maximum_forward(trains, length), elementwise=True)
    yield Case("pool_maximum_backward", pool_maximum_backward, elementwise=True)


def ids_of(b: Bench, dtype: Any) -> Array:
    """Few different ids, negative and extreme ones among them, so that most rows have one several times."""
    limits = np.iinfo(dtype)
    return b.random.choice(np.array([limits.min, -1, 0, 7, limits.max], dtype), (b.rows, LENGTH))


def positions(ids: Array, token_id: int | None) -> list[int]:
    rows: list[list[int]] = ids.tolist()
    sought = [max(row) if token_id is None else token_id for row in rows]
    return [row.index(each) if each in row else 0 for row, each in zip(rows, sought, strict=True)]


def gather_forward(dtype: Any, token_id: int | None) -> Build:
    def build(b: Bench) -> Run:
        x, ids, output = b.array(b.rows, LENGTH, b.columns), ids_of(b, dtype), b.empty(b.rows, b.columns)
        expected = wide(x)[np.arange(b.rows), positions(ids, token_id)] if b.rows else wide(output)
        return Run(
            lambda: b.kernels.gather_token_forward(output, x, ids, token_id), {"output": output}, {"output": expected}
        )

    return build


def gather_backward(dtype: Any, token_id: int | None) -> Build:
    def build(b: Bench) -> Run:
        dy, ids, dx = b.array(b.rows, b.columns), ids_of(b, dtype), b.empty(b.rows, LENGTH, b.columns)
        expected = np.zeros(dx.shape)
        for row, position in enumerate(positions(ids, token_id)):
            expected[row, position] = dy[row]
        return Run(lambda: b.kernels.gather_token_backward(dx, dy, ids, token_id), {"dx": dx}, {"dx": expected})

    return build


def prepend_forward(b: Bench) -> Run:
    x, row, output = b.array(b.rows, LENGTH, b.columns), b.array(b.columns), b.empty(b.rows, LENGTH + 1, b.columns)
    expected = np.concatenate([np.broadcast_to(wide(row), (b.rows, 1, b.columns)), wide(x)], axis=1)
    return Run(lambda: b.kernels.prepend_forward(output, x, row), {"output": output}, {"output": expected})


def prepend_backward(trains: bool, accumulate: bool) -> Build:
    def build(b: Bench) -> Run:
        dy, dx = b.array(b.rows, LENGTH + 1, b.columns), b.empty(b.rows, LENGTH, b.columns)
        drow = b.array(b.columns) if accumulate else b.empty(b.columns)
        before = wide(drow) if accumulate else np.zeros(b.columns)
        expected = {"dx": wide(dy)[:, 1:], "drow": before + wide(dy)[:, 0].sum(axis=0)}
        outputs = {"dx": dx, "drow": drow} if trains else {"dx": dx}
        given = drow if trains else None
        return Run(
            lambda: b.kernels.prepend_backward(dx, given, dy, accumulate),
            outputs,
            {name: expected[name] for name in outputs},
        )

    return build


def rounded(b: Bench, length: int) -> Array:
    """Few different values, so that several positions are largest."""
    return np.round(b.array(b.rows, length, b.columns))


def pool_maximum_forward(trains: bool, length: int) -> Build:
    def build(b: Bench) -> Run:
        x, output = rounded(b, length), b.empty(b.rows, b.columns)
        positions = np.full((b.rows, b.columns), -1, np.int32)
        expected = {"output": wide(x).max(axis=1), "positions": x.argmax(axis=1)}
        outputs = {"output": output, "positions": positions} if trains else {"output": output}
        given = positions if trains else None
        return Run(
            lambda: b.kernels.pool_maximum_forward(output, given, x),
            outputs,
            {name: expected[name] for name in outputs},
        )

    return build


def pool_maximum_backward(b: Bench) -> Run:
    dy, dx = b.array(b.rows, b.columns), b.empty(b.rows, LENGTH, b.columns)
    positions = b.random.integers(0, LENGTH, dy.shape, np.int32)
    expected = np.where(np.arange(LENGTH)[:, None] == positions[:, None], wide(dy)[:, None], 0)
    return Run(lambda: b.kernels.pool_maximum_backward(dx, dy, positions), {"dx": dx}, {"dx": expected})
