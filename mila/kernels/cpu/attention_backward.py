"""Gradient of attention: every worker owns whole key/value heads, so that their gradients need no locks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mila.kernels.cpu.attention_tiles import (
    SMALLEST_ROWS,
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
from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array


def backward_demand(length: int, heads: Heads) -> Demand:
    """The workspace: tiles of probabilities and of their gradients, each large enough to hold one key's vector too."""
    return demand(length, length, heads, 2, least_rows=-(-heads.size // SMALLEST_ROWS))


def backward(
    family: CpuFamily,
    dqkv: Array,
    log_sum_exp: Array,
    dy: Array,
    output: Array,
    qkv: Array,
    heads: Heads,
    causal: bool,
    window: int,
    scale: float,
    workspace: Array,
) -> None:
    """Write all of ``dqkv``; shapes as in ``attention_backward``.

    With P the probabilities and O the output: ``dV = Pᵀ dO``, ``dS = P (dO Vᵀ - rowsum(dO O))``, ``dQ = scale dS K``,
    ``dK = scale dSᵀ Q`` (Dao et al. 2022, algorithm 4).
    """
    batch, length, _ = qkv.shape
    statistics = log_sum_exp.reshape(batch, heads.key_value, heads.group, length)
    arrays = (*heads.split(dqkv), statistics, heads.stack(dy), heads.stack(output), *heads.split(qkv))
    needs = backward_demand(length, heads)
    tiling = Tiling.choose(needs, heads, batch, length, length, family.workers.threads)
    tile, scratches = tile_attention(workspace[: needs.total], length, length, scale)
    groups = tiling.head_groups(heads.key_value)

    def differentiate(item: int, scratch: Array) -> None:
        b, group = divmod(item, groups)
        own = slice(group * tiling.head_step, (group + 1) * tiling.head_step)
        head_group = HeadGroup(*(array[b, own] for array in arrays))
        untouched = length
        # The last block sees all keys of a causal call: it writes their gradients, and only the others have to add.
        for start in reversed(range(0, length, tiling.rows)):
            stop = min(length, start + tiling.rows)
            span = Span.of(start, stop, length, causal, window)
            head_group.differentiate(tile, start, stop, span, untouched, scratch)
            untouched = min(untouched, span.first)

    share_out(family, scratches, tiling.workers, batch * groups, differentiate)


@dataclass(frozen=True, slots=True)
class HeadGroup:
    """Views of h neighbouring key/value heads of one row, gradients first.

    Queries, output and their gradients ``(h, G, T, D)``; statistics ``(h, G, T)``; keys, values and their gradients
    ``(h, T, D)``.
    """

    dqueries: Array
    dkeys: Array
    dvalues: Array
    log_sum_exp: Array
    dy: Array
    output: Array
    queries: Array
    keys: Array
    values: Array

    def differentiate(
        self, tile: TileAttention, start: int, stop: int, span: Span, untouched: int, scratch: Array
    ) -> None:
        """Add what queries ``start`` to ``stop`` contribute; key gradients below ``untouched`` are overwritten."""
        block = np.s_[:, :, start:stop]
        seen = np.s_[:, span.first : span.last]
        keys, values = self.keys[seen], self.values[seen]
        slices = Slices(scratch)
        queries, probabilities = tile.scaled_scores(self.queries[block], (keys,), span, slices)
        dy = slices.take(*queries.shape)
        dscores = slices.take(*probabilities.shape)
        delta = slices.take(*probabilities.shape[:2])
        blocked = self.dy[block].shape
        np.copyto(dy.reshape(blocked), self.dy[block])
        np.copyto(delta.reshape(blocked[:3]), self.log_sum_exp[block])
        probabilities -= delta[..., None]
        np.exp(probabilities, out=probabilities)
        fresh = untouched - span.first
        # Each of the two tiles is free while the product of the other is collected.
        collect(self.dvalues[seen], probabilities, dy, fresh, dscores)
        np.matmul(dy, values.transpose(0, 2, 1), out=dscores)
        np.vecdot(self.dy[block], self.output[block], out=delta.reshape(blocked[:3]))
        dscores -= delta[..., None]
        dscores *= probabilities
        collect(self.dkeys[seen], dscores, queries, fresh, probabilities)
        np.matmul(dscores, keys, out=dy)
        np.multiply(dy.reshape(blocked), tile.scale, out=self.dqueries[block])


def collect(gradient: Array, weights: Array, vectors: Array, fresh: int, scratch: Array) -> None:
    """``gradient (h, keys, D) += weightsᵀ @ vectors``, where the first ``fresh`` keys are overwritten instead.

    ``weights (h, rows, keys)``, ``vectors (h, rows, D)``; ``scratch`` is a contiguous array as large as ``weights``.
    """
    heads, keys, size = gradient.shape
    if fresh >= keys:
        np.matmul(weights.transpose(0, 2, 1), vectors, out=gradient)
        return
    flat = scratch.reshape(-1)
    step = min(keys, flat.size // (heads * size))
    for start in range(0, keys, step):
        part = slice(start, min(keys, start + step))
        product = flat[: heads * (part.stop - start) * size].reshape(heads, part.stop - start, size)
        np.matmul(weights[:, :, part].transpose(0, 2, 1), vectors, out=product)
        new = min(max(fresh - start, 0), part.stop - start)
        np.copyto(gradient[:, start : start + new], product[:, :new])
        gradient[:, start + new : part.stop] += product[:, new:]
