"""Cases of the token and position tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mila.kernels.signatures import Array
from tests.kernels.bench import Bench, Build, Case, Run, wide

_VOCABULARY = 37
#: Ids outside a table, one of which would be inside in 32 bits.
_OUTSIDE = {np.int32: (-1, _VOCABULARY, -(2**31), 2**31 - 1), np.int64: (-1, _VOCABULARY, (1 << 32) + 5, -(2**63))}


def _ids(b: Bench, dtype: type[np.signedinteger[Any]]) -> Array:
    return b.random.integers(0, _VOCABULARY, b.rows).astype(dtype)


def embedding_cases() -> Iterator[Case]:
    """Look-ups and their gradient, for both integer dtypes, with and without scale; and the checks of ids."""

    def forward(integer: type[np.signedinteger[Any]], scale: float) -> Build:
        def build(b: Bench) -> Run:
            table, ids, y = b.array(_VOCABULARY, b.columns), _ids(b, integer), b.empty(b.rows, b.columns)
            expected = wide(table)[ids] * scale
            return Run(lambda: b.kernels.embedding_forward(y, table, ids, scale), {"output": y}, {"output": expected})

        return build

    def per_channel(integer: type[np.signedinteger[Any]], scale: float) -> Build:
        def build(b: Bench) -> Run:
            table, ids, y = b.float8(_VOCABULARY, b.columns), _ids(b, integer), b.empty(b.rows, b.columns)
            scales = b.random.uniform(0.01, 0.1, _VOCABULARY).astype(np.float32)
            workspace = b.workspace(b.kernels.embedding_forward_narrow_workspace(b.rows, b.columns))
            expected = (wide(table) * wide(scales)[:, None])[ids] * scale
            return Run(
                lambda: b.kernels.embedding_forward_narrow(y, table, scales, ids, scale, workspace),
                {"output": y},
                {"output": expected},
            )

        return build

    def backward(integer: type[np.signedinteger[Any]], scale: float, accumulate: bool) -> Build:
        def build(b: Bench) -> Run:
            dy, ids = b.array(b.rows, b.columns), _ids(b, integer)
            dtable = (b.array if accumulate else b.empty)(_VOCABULARY, b.columns)
            expected = wide(dtable) if accumulate else np.zeros(dtable.shape)
            np.add.at(expected, ids, scale * wide(dy))
            workspace = b.workspace(b.kernels.embedding_backward_workspace(b.rows, b.columns))
            return Run(
                lambda: b.kernels.embedding_backward(dtable, dy, ids, scale, accumulate, workspace),
                {"dtable": dtable},
                {"dtable": expected},
            )

        return build

    for integer in (np.int32, np.int64):
        for scale in (1.0, 2.5):
            options = f"{integer.__name__}-scale={scale}"
            yield Case(f"embedding_forward-{options}", forward(integer, scale), elementwise=True)
            yield Case(f"embedding_forward_narrow-{options}", per_channel(integer, scale), elementwise=True)
            for accumulate in (False, True):
                name = f"embedding_backward-{options}-accumulate={accumulate}"
                yield Case(name, backward(integer, scale, accumulate), elementwise=True)

    yield from id_cases()


def id_cases() -> Iterator[Case]:
    """The checks of ids: their range, and the first one outside a table that is not an exception."""

    def spread_ids(b: Bench, integer: type[np.signedinteger[Any]]) -> Array:
        ids = b.random.integers(0, _VOCABULARY, (b.rows, b.columns)).astype(integer)
        if ids.size:
            places = b.random.choice(ids.size, 4)
            ids.reshape(-1)[places] = _OUTSIDE[integer]
        return ids

    def extremes(integer: type[np.signedinteger[Any]]) -> Build:
        def build(b: Bench) -> Run:
            ids, result = spread_ids(b, integer), np.full(2, -77)
            expected = np.array([ids.min(), ids.max()], np.float64) if ids.size else np.array([0.0, -1.0])

            def call() -> None:
                result[:] = b.kernels.integer_range(ids)

            return Run(call, {"range": result}, {"range": expected})

        return build

    def outside(integer: type[np.signedinteger[Any]], except_for: int | None) -> Build:
        def build(b: Bench) -> Run:
            ids, result = spread_ids(b, integer), np.full(1, -77)
            inside = ((ids >= 0) & (ids < _VOCABULARY)) | (ids == (0 if except_for is None else except_for))
            found = np.flatnonzero(~inside)

            def call() -> None:
                result[0] = b.kernels.first_outside(ids, _VOCABULARY, except_for)

            return Run(call, {"index": result}, {"index": np.array([found[0] if found.size else -1])})

        return build

    for integer in (np.int32, np.int64):
        yield Case(f"integer_range-{integer.__name__}", extremes(integer), elementwise=True)
        for except_for in (None, -1):
            yield Case(f"first_outside-{integer.__name__}-{except_for}", outside(integer, except_for), elementwise=True)


def position_cases() -> Iterator[Case]:
    """Learned positions at equal and at different starts, and the gathering of last positions."""

    def starts(b: Bench, ragged: bool) -> list[int]:
        return [4, 0, 7] if ragged else [0, 0, 0]

    def forward(ragged: bool) -> Build:
        def build(b: Bench) -> Run:
            x, table, first = b.array(3, b.rows, b.columns), b.array(b.rows + 8, b.columns), starts(b, ragged)
            y = x if b.alias == "x" else b.empty(*x.shape)
            expected = wide(x) + np.stack([wide(table)[at : at + b.rows] for at in first])
            return Run(lambda: b.kernels.position_forward(y, x, table, first), {"output": y}, {"output": expected})

        return build

    def backward(ragged: bool, accumulate: bool) -> Build:
        def build(b: Bench) -> Run:
            dy, first = b.array(3, b.rows, b.columns), starts(b, ragged)
            dtable = (b.array if accumulate else b.empty)(b.rows + 8, b.columns)
            expected = wide(dtable) if accumulate else np.zeros(dtable.shape)
            for gradient, at in zip(wide(dy), first, strict=True):
                expected[at : at + b.rows] += gradient
            return Run(
                lambda: b.kernels.position_backward(dtable, dy, first, accumulate),
                {"dtable": dtable},
                {"dtable": expected},
            )

        return build

    def gather(b: Bench) -> Run:
        x = b.array(3, b.rows + 2, b.columns)
        y = x.reshape(-1)[: 3 * b.columns].reshape(3, 1, -1) if b.alias == "x" else b.empty(3, 1, b.columns)
        lengths = [1, b.rows + 2, b.rows + 1]
        expected = np.stack([wide(x)[row, length - 1] for row, length in enumerate(lengths)])[:, None]
        return Run(lambda: b.kernels.gather_last(y, x, lengths), {"output": y}, {"output": expected})

    for ragged in (False, True):
        yield Case(f"position_forward-ragged={ragged}", forward(ragged), ("x",), elementwise=True)
        for accumulate in (False, True):
            name = f"position_backward-ragged={ragged}-accumulate={accumulate}"
            yield Case(name, backward(ragged, accumulate), elementwise=True)
    yield Case("gather_last", gather, ("x",), elementwise=True)
