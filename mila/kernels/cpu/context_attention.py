"""Attention of one sequence to another, in the tiles of self-attention; dropped weights are drawn tile by tile."""

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

        ``weights (h, rows, S)``; ``scratch`` holds the integers. ``output`` may be ``weights``.
        """
        heads, length, keys = self.shape
        integers = _as_integers(scratch)
        step = integers.size // INTEGERS
        for index in range(weights.shape[0]):
            number = ((row * heads + head + index) * length + start) * keys
            target, source = output[index].reshape(-1), weights[index].reshape(-1)
            for low in range(0, source.size, step):
                part = slice(low, low + step)
                drop(target[part], source[part], number + low, self.probability, self.key, integers)


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
        scale: float,
        probability: float,
        key: int,
        workspace: Array,
    ) -> None:
        """``output (B, T, H D)`` of ``queries (B, T, H D)`` and ``keys``, ``values (B, S, H D)``."""
        call = _Call.of(self, queries, keys, heads, scale, probability, key, workspace, _forward_demand)
        q, k, v, y = (call.sizes.stack(x) for x in (queries, keys, values, output))
        statistics = None if log_sum_exp is None else log_sum_exp[:, :, None]
        blocks = -(-call.length // call.tiling.rows)

        def attend(item: int, scratch: Array) -> None:
            pair, block = divmod(item, blocks)
            b, own = call.heads_of(pair)
            start = block * call.tiling.rows
            stop = min(call.length, start + call.tiling.rows)

            def drop_weights(weights: Array) -> None:
                if call.dropout is not None:
                    rest = scratch[weights.shape[0] * weights.shape[1] * call.needs.row :]
                    call.dropout.apply(weights, weights, b, own.start, start, rest)

            call.tile.forward(
                y[b, own, :, start:stop],
                None if statistics is None else statistics[b, own, :, start:stop],
                q[b, own, :, start:stop],
                (k[b, own, 0],),
                (v[b, own, 0],),
                call.span,
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
        scale: float,
        probability: float,
        key: int,
        workspace: Array,
    ) -> None:
        """Gradients of ``context_attention_forward``: every worker owns whole heads."""
        call = _Call.of(self, queries, keys, heads, scale, probability, key, workspace, _backward_demand)
        stacked = [call.sizes.stack(x)[:, :, 0] for x in (dqueries, dkeys, dvalues, dy, output, queries, keys, values)]

        def differentiate(item: int, scratch: Array) -> None:
            b, own = call.heads_of(item)
            views = _Views(log_sum_exp[b, own], *(x[b, own] for x in stacked))
            for start in range(0, call.length, call.tiling.rows):
                views.differentiate(call, b, own.start, start, scratch)

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
    span: Span
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
        span = Span(0, context_length, None, None)
        return _Call(sizes, length, span, needs, tiling, groups, batch * groups, tile, scratches, dropout)

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

    def differentiate(self, call: _Call, row: int, head: int, start: int, scratch: Array) -> None:
        """Add what the queries from ``start`` on contribute; the first ones overwrite.

        As in self-attention (Dao et al. 2022, algorithm 4). With M the mask of dropout, weights P and output O:
        ``dV = (P M)ᵀ dO``, ``dS = P (M dO Vᵀ - rowsum(dO O))``.
        """
        tile, dropout = call.tile, call.dropout
        block = np.s_[:, start : min(call.length, start + call.tiling.rows)]
        slices = Slices(scratch)
        queries, weights = tile.scaled_scores(self.queries[block][:, None], (self.keys,), call.span, slices)
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
        fresh = 0 if start else self.keys.shape[1]
        collect(self.dvalues, kept, dy, fresh, products)
        np.matmul(dy, self.values.transpose(0, 2, 1), out=dscores)
        if dropout is not None:
            dropout.apply(dscores, dscores, row, head, start, drawing)
        np.vecdot(self.dy[block], self.output[block], out=delta)
        dscores -= delta[..., None]
        dscores *= weights
        collect(self.dkeys, dscores, queries, fresh, products)
        np.matmul(dscores, self.keys, out=dy)
        np.multiply(dy, tile.scale, out=self.dqueries[block])
