"""Attention and rotary positions as cases of kernels, with a bench of T rows and heads of that many columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tests.kernels.attention_reference import Problem, expected
from tests.kernels.bench import Bench, Build, Case, Run, wide
from tests.kernels.test_context_attention import Problem as ContextProblem
from tests.kernels.test_context_attention import expected as expected_of_context
from tests.kernels.test_rope import frequencies, turned_as_complex_numbers

BATCH, HEADS, KV_HEADS = 2, 4, 2
#: (causal, window) of self-attention.
OPTIONS = ((True, 0), (True, 3), (False, 0))
#: Positions that a cache holds before those of a case: few, and so many that decoding splits them.
BEFORE, MANY_BEFORE = 4, 300
KEY = 2**63 + 5


def attention_cases() -> Iterator[Case]:
    """Attention with and without a cache, forward and backward, and to keys that lie apart; rotary positions."""
    for causal, window in OPTIONS:
        options = f"causal={causal}-window={window}"
        yield Case(f"attention_forward-{options}", packed(causal, window, differentiate=False))
        yield Case(f"attention_backward-{options}", packed(causal, window, differentiate=True))
    for window in (0, 3):
        yield Case(f"attention_cached-chunk-window={window}", cached(window, BEFORE, is_step=False))
        yield Case(f"attention_cached-step-window={window}", cached(window, BEFORE, is_step=True))
    for is_step in (False, True):
        yield Case(f"attention_cached-idle-row-{is_step}", cached(0, BEFORE, is_step, has_idle_row=True))
    yield Case("attention_cached-step-long", cached(0, MANY_BEFORE, is_step=True))
    for probability in (0.0, 0.3):
        yield Case(f"context_attention_forward-{probability}", context(probability, differentiate=False))
        yield Case(f"context_attention_backward-{probability}", context(probability, differentiate=True))
    yield Case("rope_tables", rope_tables)
    for inverse in (False, True):
        yield Case(f"rope-inverse={inverse}", rope(inverse), ("x",))


def packed(causal: bool, window: int, differentiate: bool) -> Build:
    """Attention of packed projections; backward after the forward that it needs."""

    def build(b: Bench) -> Run:
        qkv = b.array(BATCH, b.rows, (HEADS + 2 * KV_HEADS) * b.columns)
        p = Problem(qkv, b.array(BATCH, b.rows, HEADS * b.columns), HEADS, KV_HEADS, b.columns, causal, window)
        output, dqkv = b.empty(*p.dy.shape), b.empty(*p.qkv.shape)
        log_sum_exp = b.statistics(b.empty(BATCH, HEADS, b.rows))
        options = (*p.sizes, causal, window, p.scale)
        workspaces = [
            b.workspace(elements(b.rows, *p.sizes))
            for elements in (b.kernels.attention_forward_workspace, b.kernels.attention_backward_workspace)
        ]

        def call() -> None:
            b.kernels.attention_forward(output, log_sum_exp, p.qkv, *options, workspaces[0])
            if differentiate:
                b.kernels.attention_backward(dqkv, log_sum_exp, p.dy, output, p.qkv, *options, workspaces[1])

        found = {"output": output, "log_sum_exp": log_sum_exp, "dqkv": dqkv}
        wanted = dict(zip(found, expected(p), strict=True))
        names = ("dqkv",) if differentiate else ("output", "log_sum_exp")
        return Run(call, {name: found[name] for name in names}, {name: wanted[name] for name in names})

    return build


def cached(window: int, before: int, is_step: bool, has_idle_row: bool = False) -> Build:
    """The last ``rows`` positions, or the last one, after ``before`` that are cached; an idle row has none of them."""

    def build(b: Bench) -> Run:
        length = before + max(1, b.rows)
        count = 1 if is_step else b.rows
        qkv = b.array(BATCH, length, (HEADS + 2 * KV_HEADS) * b.columns)
        p = Problem(qkv, b.array(BATCH, length, HEADS * b.columns), HEADS, KV_HEADS, b.columns, True, window)
        parts = qkv.reshape(BATCH, length, -1, b.columns).swapaxes(1, 2)
        keys, values = (b.empty(BATCH, KV_HEADS, length + 1, b.columns) for _ in range(2))
        for ring, first in ((keys, HEADS), (values, HEADS + KV_HEADS)):
            ring[:, :, : length - count] = parts[:, first : first + KV_HEADS, : length - count]
        given, output = qkv[:, length - count :].copy(), b.empty(BATCH, count, HEADS * b.columns)
        elements = b.kernels.attention_cached_workspace(max(1, count), length + 1, *p.sizes, window)
        workspace, starts, counts = b.workspace(elements), [length - count] * BATCH, [count] * BATCH
        wanted = expected(p)[0][:, length - count :]
        if has_idle_row:
            counts[0], wanted[0] = 0, 0.0

        def call() -> None:
            b.kernels.attention_cached(output, keys, values, given, starts, counts, HEADS, window, p.scale, workspace)

        return Run(call, {"output": output}, {"output": wanted})

    return build


def context(probability: float, differentiate: bool) -> Build:
    """Attention of ``rows`` queries to two positions more."""

    def build(b: Bench) -> Run:
        lengths = (b.rows, b.rows + 2, b.rows + 2, b.rows)
        q, k, v, dy = (b.array(BATCH, length, HEADS * b.columns) for length in lengths)
        p = ContextProblem((q, k, v, dy), HEADS, probability)
        found = dict(zip(("output", "log_sum_exp", "dq", "dk", "dv"), map(np.empty_like, (q, q, q, k, v)), strict=True))
        found["log_sum_exp"] = b.statistics(b.empty(BATCH, HEADS, b.rows))
        scale, sizes = 0.3, (b.rows, b.rows + 2, HEADS, b.columns, probability)
        first = b.workspace(b.kernels.context_attention_forward_workspace(*sizes))
        second = b.workspace(b.kernels.context_attention_backward_workspace(*sizes))
        options = HEADS, False, scale, probability, KEY

        def call() -> None:
            output, sums, dq, dk, dv = found.values()
            b.kernels.context_attention_forward(output, sums, q, k, v, *options, first)
            if differentiate:
                b.kernels.context_attention_backward(dq, dk, dv, sums, dy, output, q, k, v, *options, second)

        wanted = dict(zip(found, expected_of_context(p), strict=True))
        names = ("dq", "dk", "dv") if differentiate else ("output", "log_sum_exp")
        return Run(call, {name: found[name] for name in names}, {name: wanted[name] for name in names})

    return build


def rope_tables(b: Bench) -> Run:
    """Cosines and sines of ``rows`` positions."""
    cosine, sine = (b.statistics(b.empty(b.rows, b.columns)) for _ in range(2))
    given = frequencies(2 * b.columns)
    angle = np.arange(b.rows)[:, None] * np.array(given)[None]
    return Run(
        partial(b.kernels.rope_tables, cosine, sine, given),
        {"cosine": cosine, "sine": sine},
        {"cosine": np.cos(angle), "sine": np.sin(angle)},
    )


def rope(inverse: bool) -> Build:
    """Two heads of ``2 columns + 4`` elements turn but for the last four, and one passes."""

    def build(b: Bench) -> Run:
        head_dim, starts = 2 * b.columns + 4, [3, 0]
        shape = (BATCH, b.rows, 2, 1, head_dim, 2 * b.columns)
        x = b.array(BATCH, b.rows, 3 * head_dim)
        output = x if b.alias == "x" else b.empty(*x.shape)
        angle = np.arange(b.rows + 3)[:, None] * np.array(frequencies(2 * b.columns))[None]
        cosine, sine = b.statistics(np.cos(angle)), b.statistics(np.sin(angle))
        workspace = b.workspace(b.kernels.rope_workspace(b.rows, 2, head_dim))
        want = turned_as_complex_numbers(wide(x), shape, starts, inverse)
        return Run(
            lambda: b.kernels.rope(output, x, cosine, sine, starts, 2, head_dim, inverse, workspace),
            {"output": output},
            {"output": want},
        )

    return build


ATTENTION_CASES = tuple(attention_cases())
