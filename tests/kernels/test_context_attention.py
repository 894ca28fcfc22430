"""Attention to keys that lie apart does what the formula says, forward and backward, with and without dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mila.kernels.cpu import attention_tiles
from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Array
from tests.kernels.attention_reference import error
from tests.kernels.references import keep_mask
from tests.kernels.test_attention_memory import peak

#: (B, T, S, H, D): one of everything, odd sizes, a context much shorter and much longer, several blocks of queries.
SHAPES = (
    (1, 1, 1, 1, 1),
    (2, 5, 3, 4, 3),
    (3, 97, 7, 2, 5),
    (1, 301, 1, 3, 40),
    (2, 3, 211, 2, 16),
    (1, 300, 150, 2, 9),
)
#: The same of causal attention: T = S.
CAUSAL_SHAPES = ((1, 1, 1, 1, 1), (2, 5, 5, 4, 3), (3, 97, 97, 2, 5), (1, 301, 301, 3, 40))
CASES = [*((shape, False) for shape in SHAPES), *((shape, True) for shape in CAUSAL_SHAPES)]
TOLERANCES: dict[type, float] = {np.float64: 1e-12, np.float32: 2e-6}
KERNELS = {threads: CpuKernels(threads) for threads in (1, 2, 3, 40)}
KEY, SCALE = 2**63 + 5, 0.3


@dataclass(frozen=True)
class Problem:
    """Queries, keys, values and the output's gradient, how many heads there are, and what they see."""

    arrays: tuple[Array, Array, Array, Array]
    heads: int
    probability: float = 0.0
    causal: bool = False

    @property
    def sizes(self) -> tuple[int, int, int, int, float]:
        queries, keys = self.arrays[:2]
        return queries.shape[1], keys.shape[1], self.heads, queries.shape[2] // self.heads, self.probability

    @property
    def scalars(self) -> tuple[int, bool, float, float, int]:
        return self.heads, self.causal, SCALE, self.probability, KEY


def problem(
    shape: tuple[int, int, int, int, int], dtype: type, probability: float = 0.0, causal: bool = False
) -> Problem:
    batch, length, context, heads, size = shape
    random = np.random.default_rng(3)
    lengths = (length, context, context, length)
    arrays: list[Array] = [random.standard_normal((batch, n, heads * size)).astype(dtype) for n in lengths]
    return Problem((arrays[0], arrays[1], arrays[2], arrays[3]), heads, probability, causal)


def run(kernels: CpuKernels, p: Problem, spare: int = 0) -> tuple[Array, ...]:
    """Return output, log-sum-exp and the gradients, with workspaces of the declared size, full of NaN."""
    q, k, v, dy = p.arrays
    output, dq, dk, dv = (np.full_like(x, np.nan) for x in (q, q, k, v))
    log_sum_exp = np.full((q.shape[0], p.heads, q.shape[1]), np.nan, q.dtype)
    workspace = np.full(spare + kernels.context_attention_forward_workspace(*p.sizes), np.nan, q.dtype)
    kernels.context_attention_forward(output, log_sum_exp, q, k, v, *p.scalars, workspace)
    workspace = np.full(spare + kernels.context_attention_backward_workspace(*p.sizes), np.nan, q.dtype)
    kernels.context_attention_backward(dq, dk, dv, log_sum_exp, dy, output, q, k, v, *p.scalars, workspace)
    return output, log_sum_exp, dq, dk, dv


def expected(p: Problem) -> tuple[Array, ...]:
    """The same by the formula, with whole float64 matrices."""
    batch = p.arrays[0].shape[0]
    q, k, v, dy = (x.astype(np.float64).reshape(batch, x.shape[1], p.heads, -1).swapaxes(1, 2) for x in p.arrays)
    scores = SCALE * q @ k.swapaxes(-1, -2)
    if p.causal:
        scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    log_sum_exp = np.log(np.exp(scores).sum(-1, keepdims=True))
    weights = np.exp(scores - log_sum_exp)
    mask = keep_mask(weights.size, p.probability, KEY).reshape(weights.shape) / (1 - p.probability)
    output = (weights * mask) @ v
    dweights = mask * (dy @ v.swapaxes(-1, -2))
    dscores = SCALE * weights * (dweights - (weights * dweights).sum(-1, keepdims=True))
    gradients = dscores @ k, dscores.swapaxes(-1, -2) @ q, (weights * mask).swapaxes(-1, -2) @ dy
    merged = (x.swapaxes(1, 2).reshape(batch, x.shape[2], -1) for x in (output, *gradients))
    output, *found = merged
    return output, log_sum_exp[..., 0], *found


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize(("shape", "causal"), CASES, ids=str)
def test_agrees_with_the_formula(
    shape: tuple[int, int, int, int, int], causal: bool, probability: float, dtype: type
) -> None:
    p = problem(shape, dtype, probability, causal)
    wanted = expected(p)
    largest = max(np.abs(want).max() for want in wanted)  # over a single key, gradients of scores cancel out
    for got, want in zip(run(KERNELS[2], p), wanted, strict=True):
        assert np.abs(got - want).max() < TOLERANCES[dtype] * largest


@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize(("shape", "causal"), [((3, 97, 31, 4, 7), False), ((3, 97, 97, 4, 7), True)], ids=str)
@pytest.mark.parametrize("threads", KERNELS)
def test_any_number_of_threads_serves(
    threads: int,
    shape: tuple[int, int, int, int, int],
    causal: bool,
    probability: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_tiles, "INLINE_EFFORT", 1)
    p = problem(shape, np.float32, probability, causal)
    first = run(KERNELS[threads], p)
    for got, again, want in zip(first, run(KERNELS[threads], p, spare=5001), expected(p), strict=True):
        assert error(got, want) < 2e-6
        assert np.array_equal(got, again)


def test_all_weights_are_dropped_at_a_probability_of_almost_one() -> None:
    p = problem((1, 5, 7, 2, 3), np.float32, 1 - 1e-12)
    output, _, *gradients = run(KERNELS[1], p)
    assert not output.any()
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_of_a_causal_call_later_keys_change_no_earlier_query(probability: float) -> None:
    first = 137
    one, other = (problem((2, 290, 290, 3, 8), np.float32, probability, causal=True) for _ in range(2))
    for array in other.arrays[1:3]:
        array[:, first:] *= -7
    results = zip(run(KERNELS[2], one)[:3], run(KERNELS[2], other)[:3], strict=True)
    for (got, want), axis in zip(results, (1, 2, 1), strict=True):
        before = np.s_[:, :first] if axis == 1 else np.s_[:, :, :first]
        assert np.array_equal(got[before], want[before])
        assert not np.array_equal(got, want)


def test_causal_calls_skip_the_blocks_above_the_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of a block of queries are computed for the keys up to its last query, and for no others."""
    p = problem((1, 512, 512, 1, 4), np.float32, causal=True)
    seen: list[tuple[int, int]] = []
    scaled_scores = attention_tiles.TileAttention.scaled_scores

    def recorded(tile: attention_tiles.TileAttention, *arguments: Any) -> tuple[Array, Array]:
        queries, scores = scaled_scores(tile, *arguments)
        seen.append((scores.shape[1], scores.shape[2]))
        return queries, scores

    monkeypatch.setattr(attention_tiles.TileAttention, "scaled_scores", recorded)
    run(KERNELS[1], p)
    rows = seen[0][0]
    blocks = [(rows, stop) for stop in range(rows, 513, rows)]
    assert 512 % rows == 0 and len(blocks) >= 4
    assert sorted(seen) == sorted(2 * blocks)  # forward and backward


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_workspaces_grow_with_both_lengths(probability: float) -> None:
    kernels = KERNELS[1]
    for workspace in (kernels.context_attention_forward_workspace, kernels.context_attention_backward_workspace):
        sizes = {(t, s): workspace(t, s, 3, 40, probability) for t in (1, 2, 15, 17, 200) for s in (1, 2, 31, 64, 500)}
        for (t, s), size in sizes.items():
            assert all(other >= size for (u, v), other in sizes.items() if u >= t and v >= s)


@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize(("context", "causal"), [(384, False), (512, True)])
def test_allocates_no_array(context: int, causal: bool, probability: float) -> None:
    kernels, p = KERNELS[2], problem((2, 512, context, 8, 64), np.float32, probability, causal)
    q, k, v, dy = p.arrays
    assert q.nbytes >= 2_000_000
    output, dq, dk, dv = (np.empty_like(x) for x in (q, q, k, v))
    log_sum_exp = np.empty((2, 8, 512), np.float32)
    first = np.empty(kernels.context_attention_forward_workspace(*p.sizes), np.float32)
    second = np.empty(kernels.context_attention_backward_workspace(*p.sizes), np.float32)

    def backward() -> None:
        kernels.context_attention_backward(dq, dk, dv, log_sum_exp, dy, output, q, k, v, *p.scalars, second)

    assert peak(lambda: kernels.context_attention_forward(output, log_sum_exp, q, k, v, *p.scalars, first)) < 360_000
    assert peak(backward) < 360_000
