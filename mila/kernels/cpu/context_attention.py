"""Attention of queries to keys and values that lie apart, in the tiles of ``attention_forward``.

Dropped weights are drawn tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mila.kernels.cpu.attention_backward import collect
from mila.kernels.cpu.attention_tiles import (
    WORKER_SLOTS,
    Demand,
    Heads,
    Slices,
    Span,
    TileAttention,
    Tiling,
    demand,
    share_out,
    tile_attention,
)
from mila.kernels.cpu.dropout import INTEGERS, drop
from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array

#: Weights that each of ``WORKER_SLOTS`` workers draws at a time.
_DRAWN = 2048
#: Elements, in units of float32, that the integers of one drawn weight take.
_PER_DRAWN = 2 * INTEGERS
#: Least workspace for drawing: a few weights for each of any number of threads.
_LEAST_DRAWING = 4096
#: Vectors of a tile's row that collect products for gradients of keys and values.
_COLLECTING = 2


@dataclass(frozen=True, slots=True)
class WeightDropout:
    """Which weights are dropped: ``shape`` is (H, T, S)."""

    probability: float
    key: int
    shape: tuple[int, int, int]

    def apply(self, output: Array, weights: Array, row: int, head: int, start: int, scratch: Array) -> None:
        """``output = weights`` without the dropped ones, for the tile of ``row`` from ``head`` and ``start`` on.

        ``weights (h, rows, n)`` are those of the first n keys; ``scratch`` holds the integers. ``output`` may be
        ``weights``.
        """
        heads, length, keys = self.shape
        integers = _as_integers(scratch)
        step, columns = integers.size // INTEGERS, weights.shape[2]
        step_rows, step_columns = max(1, step // columns), min(step, columns)
        for index in range(weights.shape[0]):
            number = ((row * heads + head + index) * length + start) * keys
            for top in range(0, weights.shape[1], step_rows):
                for left in range(0, columns, step_columns):
                    part = np.s_[index, top : top + step_rows, left : left + step_columns]
                    first = number + top * keys + left
                    drop(output[part], weights[part], first, self.probability, self.key, integers, keys)


def _as_integers(scratch: Array) -> Array:
    """``scratch`` as aligned 64-bit integers."""
    offset = -scratch.__array_interface__["data"][0] % 8 // scratch.itemsize
    aligned = scratch[offset:]
    return aligned[: aligned.size * aligned.itemsize // 8 * 8 // aligned.itemsize].view(np.uint64)


def _drawing(length: int, keys: int, heads: int, probability: float) -> int:
    """Workspace for drawing, all workers together."""
    if not probability:
        return 0
    return max(_LEAST_DRAWING, WORKER_SLOTS * _PER_DRAWN * min(_DRAWN, heads * length * keys))


def _forward_demand(length: int, keys: int, heads: Heads) -> Demand:
    return demand(length, keys, heads, 1)


def _backward_demand(length: int, keys: int, heads: Heads) -> Demand:
    return demand(length, keys, heads, 2, extra_vectors=_COLLECTING)


class CpuContextAttention(CpuFamily):
    """``ContextAttentionKernels`` in NumPy."""

    def context_attention_forward(
        self,
        output: Array,
        log_sum_exp: Array | None,
        queries: Array,
        keys: Array,
        values: Array,
        heads: int,
        causal: bool,
        scale: float,
        probability: float,
        key: int,
        workspace: Array,
    ) -> None:
        """``output (B, T, H D)`` of ``queries (B, T, H D)`` and ``keys``, ``values (B, S, H D)``; causal: S = T."""
        call = _Call.of(self, queries, keys, heads, causal, scale, probability, key, workspace, _forward_demand)
        q, k, v, y = (call.sizes.stack(x) for x in (queries, keys, values, output))
        statistics = None if log_sum_exp is None else log_sum_exp[:, :, None]
        blocks = -(-call.length // call.tiling.rows)

        def attend(item: int, scratch: Array) -> None:
            pair, block = divmod(item, blocks)
            b, own = call.heads_of(pair)
            # Of a causal call later blocks see more keys; the largest first leaves the least waiting at the end.
            start = (blocks - 1 - block) * call.tiling.rows
            stop = min(call.length, start + call.tiling.rows)
            span = call.span(start, stop)

            def drop_weights(weights: Array) -> None:
                if call.dropout is not None:
                    rest = scratch[weights.shape[0] * weights.shape[1] * call.needs.row :]
                    call.dropout.apply(weights, weights, b, own.start, start, rest)

            call.tile.forward(
                y[b, own, :, start:stop],
                None if statistics is None else statistics[b, own, :, start:stop],
                q[b, own, :, start:stop],
                (k[b, own, 0, : span.last],),
                (v[b, own, 0, : span.last],),
                span,
                scratch,
                drop_weights,
            )

        share_out(self, call.scratches, call.tiling.workers, call.pairs * blocks, attend)

    def context_attention_forward_workspace(
        self, length: int, context_length: int, heads: int, head_dim: int, probability: float
    ) -> int:
        """Elements of ``context_attention_forward``'s workspace, the same for any batch and number of threads."""
        needs = _forward_demand(length, context_length, Heads(heads, heads, head_dim))
        return needs.total + _drawing(length, context_length, heads, probability)

    def context_attention_backward(
        self,
        dqueries: Array,
        dkeys: Array,
        dvalues: Array,
        log_sum_exp: Array,
        dy: Array,
        output: Array,
        queries: Array,
        keys: Array,
        values: Array,
        heads: int,
        causal: bool,
        scale: float,
        probability: float,
        key: int,
        workspace: Array,
    ) -> None:
        """Gradients of ``context_attention_forward``: every worker owns whole heads."""
        call = _Call.of(self, queries, keys, heads, causal, scale, probability, key, workspace, _backward_demand)
        stacked = [call.sizes.stack(x)[:, :, 0] for x in (dqueries, dkeys, dvalues, dy, output, queries, keys, values)]

        def differentiate(item: int, scratch: Array) -> None:
            b, own = call.heads_of(item)
            views = _Views(log_sum_exp[b, own], *(x[b, own] for x in stacked))
            starts = range(0, call.length, call.tiling.rows)
            # The block that sees all keys comes first: it writes their gradients, and the others have to add.
            for order, start in enumerate(reversed(starts) if causal else starts):
                views.differentiate(call, b, own.start, start, order == 0, scratch)

        share_out(self, call.scratches, call.tiling.workers, call.pairs, differentiate)

    def context_attention_backward_workspace(
        self, length: int, context_length: int, heads: int, head_dim: int, probability: float
    ) -> int:
        """Elements of ``context_attention_backward``'s workspace, the same for any batch and number of threads."""
        needs = _backward_demand(length, context_length, Heads(heads, heads, head_dim))
        return needs.total + _drawing(length, context_length, heads, probability)


@dataclass(frozen=True, slots=True)
class _Call:
    """What all tiles of one call share: sizes, tiling, tables, and the workers' part of the workspace."""

    sizes: Heads
    length: int
    context_length: int
    causal: bool
    needs: Demand
    tiling: Tiling
    groups: int
    pairs: int
    tile: TileAttention
    scratches: Array
    dropout: WeightDropout | None

    @staticmethod
    def of(
        family: CpuFamily,
        queries: Array,
        keys: Array,
        heads: int,
        causal: bool,
        scale: float,
        probability: float,
        key: int,
        workspace: Array,
        demand_of: Callable[[int, int, Heads], Demand],
    ) -> _Call:
        batch, length, width = queries.shape
        context_length = keys.shape[1]
        sizes = Heads(heads, heads, width // heads)
        needs = demand_of(length, context_length, sizes)
        tiling = Tiling.choose(needs, sizes, batch, length, context_length, family.workers.threads)
        groups = tiling.head_groups(heads)
        used = needs.total + _drawing(length, context_length, heads, probability)
        tile, scratches = tile_attention(workspace[:used], length, context_length, scale)
        dropout = WeightDropout(probability, key, (heads, length, context_length)) if probability else None
        pairs = batch * groups
        return _Call(sizes, length, context_length, causal, needs, tiling, groups, pairs, tile, scratches, dropout)

    def span(self, start: int, stop: int) -> Span:
        """The keys that queries ``start`` to ``stop`` see."""
        return Span.of(start, stop, self.context_length, self.causal, 0)

    def heads_of(self, pair: int) -> tuple[int, slice]:
        """The row and the neighbouring heads of a pair of both."""
        row, group = divmod(pair, self.groups)
        first = group * self.tiling.head_step
        return row, slice(first, first + self.tiling.head_step)


@dataclass(frozen=True, slots=True)
class _Views:
    """Views of h neighbouring heads of one row: statistics ``(h, T)``, all others ``(h, T, D)`` or ``(h, S, D)``."""

    log_sum_exp: Array
    dqueries: Array
    dkeys: Array
    dvalues: Array
    dy: Array
    output: Array
    queries: Array
    keys: Array
    values: Array

    def differentiate(self, call: _Call, row: int, head: int, start: int, is_first: bool, scratch: Array) -> None:
        """Add what the queries from ``start`` on contribute; the first ones to be visited overwrite.

        As in self-attention (Dao et al. 2022, algorithm 4). With M the mask of dropout, weights P and output O:
        ``dV = (P M)ᵀ dO``, ``dS = P (M dO Vᵀ - rowsum(dO O))``.
        """
        tile, dropout = call.tile, call.dropout
        stop = min(call.length, start + call.tiling.rows)
        span = call.span(start, stop)
        block, seen = np.s_[:, start:stop], np.s_[:, : span.last]
        keys, values = self.keys[seen], self.values[seen]
        slices = Slices(scratch)
        queries, weights = tile.scaled_scores(self.queries[block][:, None], (keys,), span, slices)
        heads, rows, size = queries.shape
        dy, dscores = slices.take(*queries.shape), slices.take(*weights.shape)
        delta, products = slices.take(heads, rows), slices.take(heads * _COLLECTING * rows * size)
        drawing = scratch[heads * rows * call.needs.row :]
        np.copyto(dy, self.dy[block])
        np.copyto(delta, self.log_sum_exp[block])
        weights -= delta[..., None]
        np.exp(weights, out=weights)
        kept = weights
        if dropout is not None:
            dropout.apply(dscores, weights, row, head, start, drawing)
            kept = dscores
        fresh = keys.shape[1] if is_first else 0
        collect(self.dvalues[seen], kept, dy, fresh, products)
        np.matmul(dy, values.transpose(0, 2, 1), out=dscores)
        if dropout is not None:
            dropout.apply(dscores, dscores, row, head, start, drawing)
        np.vecdot(self.dy[block], self.output[block], out=delta)
        dscores -= delta[..., None]
        dscores *= weights
        collect(self.dkeys[seen], dscores, queries, fresh, products)
        np.matmul(dscores, keys, out=dy)
        np.multiply(dy, tile.scale, out=self.dqueries[block])
