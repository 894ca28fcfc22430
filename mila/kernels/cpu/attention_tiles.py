"""What all attention kernels share: head views, the tiling of the work, masks, and the attention of one tile.

A tile is a block of queries of some neighbouring key/value heads against all the keys that the block may see. The query
heads of one key/value head are stacked, so that each product is as large as it can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.cpu.workers import worker_workspace
from mila.kernels.signatures import Array

#: Most queries of one head in a tile. More of them waste products above the diagonal, fewer make the products slow.
QUERY_ROWS: Final = 128
#: Short calls take smaller tiles, down to this many queries, so that the queries still make ``QUERY_BLOCKS`` blocks.
SHORT_QUERY_ROWS: Final = 64
QUERY_BLOCKS: Final = 4
#: Elements of one array of scores and what belongs to it, all workers together, as long as it can be cut so small:
#: two workers get 128 queries and 1,024 keys each, which stay in cache.
SCORE_ELEMENTS: Final = 294912
#: Workers that the smallest tiles are budgeted for; with more threads than fit, some stay idle.
WORKER_SLOTS: Final = 8
#: Stacked query rows of the smallest tile.
SMALLEST_ROWS: Final = 16
#: Less effort than this is not worth handing to another thread; in operations on one element, see ``Heads.effort``.
INLINE_EFFORT: Final = 524288
#: Operations on one element that a score takes: two products, an exponential and some more.
SCORE_EFFORT: Final = 16


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of the heads: ``query`` H, ``key_value`` K, elements of a head ``size`` D."""

    query: int
    key_value: int
    size: int

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.query // self.key_value

    def split(self, packed: Array) -> tuple[Array, Array, Array]:
        """Views of ``packed (B, T, (H + 2 K) D)``: queries ``(B, K, H / K, T, D)``, keys, values ``(B, K, T, D)``."""
        end_of_keys = (self.query + self.key_value) * self.size
        return (
            self.stack(packed[:, :, : self.query * self.size]),
            self.stack(packed[:, :, self.query * self.size : end_of_keys])[:, :, 0],
            self.stack(packed[:, :, end_of_keys:])[:, :, 0],
        )

    def effort(self, batch: int, queries: int, keys: int) -> int:
        """Operations on elements that attention takes; with few queries, keys and values are read for little else."""
        return batch * self.query * queries * keys * max(SCORE_EFFORT, 2 * self.size // (self.group * queries))

    def stack(self, x: Array) -> Array:
        """View of ``x (B, T, n K D)`` as ``(B, K, n, T, D)``."""
        batch, length, width = x.shape
        heads = x.reshape(batch, length, self.key_value, width // (self.key_value * self.size), self.size)
        return heads.transpose(0, 2, 3, 1, 4)


class Slices:
    """Hands out consecutive pieces of a flat array."""

    __slots__ = ("_flat", "_used")

    def __init__(self, flat: Array) -> None:
        self._flat = flat
        self._used = 0

    def take(self, *shape: int) -> Array:
        """The next ``prod(shape)`` elements, in this shape."""
        start = self._used
        self._used = start + math.prod(shape)
        return self._flat[start : self._used].reshape(shape)

    def rest(self) -> Array:
        """Everything not handed out yet."""
        return self._flat[self._used :]


@dataclass(frozen=True, slots=True)
class Demand:
    """Elements of workspace.

    ``shared`` by all workers; ``row`` per query and key/value head of a tile; ``parts`` for the tiles of all workers,
    none of which has fewer than ``smallest_rows`` queries.
    """

    shared: int
    row: int
    parts: int
    smallest_rows: int

    @property
    def total(self) -> int:
        """Elements of the whole workspace."""
        return self.shared + self.parts


def demand(
    queries: int, keys: int, heads: Heads, score_tiles: int, least_rows: int = 1, extra_vectors: int = 0
) -> Demand:
    """The workspace for ``queries`` queries and ``keys`` keys with ``score_tiles`` score-sized arrays in a tile.

    Linear in ``keys``, and no smaller for more queries or keys, so that smaller calls fit. A row takes, for each query
    head, ``score_tiles`` rows of scores, ``score_tiles + extra_vectors`` vectors of a head's size, and two statistics.
    No tile has fewer than ``least_rows`` queries, unless there are no more.
    """
    row = heads.group * (score_tiles * (keys + heads.size) + extra_vectors * heads.size + 2)
    smallest_rows = min(queries, QUERY_ROWS, max(least_rows, SMALLEST_ROWS // heads.group))
    everything = WORKER_SLOTS * heads.key_value * queries * row
    parts = max(min(score_tiles * SCORE_ELEMENTS, everything), WORKER_SLOTS * smallest_rows * row)
    return Demand(keys + Masks.elements(queries), row, parts, smallest_rows)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the work is cut: ``rows`` queries and ``head_step`` key/value heads per tile, ``workers`` workers."""

    rows: int
    head_step: int
    workers: int

    @staticmethod
    def choose(needs: Demand, heads: Heads, batch: int, queries: int, keys: int, threads: int) -> Tiling:
        """The largest tiles that the workers' shares of the workspace hold, in enough groups to keep all busy."""
        worthwhile = threads if heads.effort(batch, queries, keys) >= INLINE_EFFORT else 1
        workers = max(1, min(worthwhile, needs.parts // (needs.smallest_rows * needs.row)))
        # A lone worker takes half of the workspace: all of it would no longer stay in its cache.
        capacity = needs.parts // max(2, workers) // needs.row
        most = max(SHORT_QUERY_ROWS, needs.smallest_rows, -(-queries // QUERY_BLOCKS))
        rows = min(queries, capacity, QUERY_ROWS, most)
        if 32 <= rows < queries:
            rows -= rows % 8
        groups = -(-heads.key_value // min(heads.key_value, capacity // rows))
        step = workers // math.gcd(workers, batch)
        groups = min(heads.key_value, -(-groups // step) * step)
        return Tiling(rows, -(-heads.key_value // groups), workers)

    def head_groups(self, key_value_heads: int) -> int:
        """Number of groups of key/value heads."""
        return -(-key_value_heads // self.head_step)


class Masks:
    """Additive masks of a tile's corners, as views of one vector of 3 R - 2 elements: -inf, then 0, then -inf."""

    __slots__ = ("_corner", "_edge")

    def __init__(self, vector: Array) -> None:
        """Fill ``vector``, which has ``elements(rows)`` elements."""
        rows = (vector.size + 2) // 3
        vector.fill(-np.inf)
        vector[rows - 1 : 2 * rows - 1] = 0
        self._edge = _falling(vector[: 2 * rows - 1], rows)
        self._corner = _falling(vector[rows - 1 :], rows)

    @staticmethod
    def elements(queries: int) -> int:
        """Elements of the vector for tiles of a call with this many queries."""
        return 3 * min(queries, QUERY_ROWS) - 2

    def apply(self, scores: Array, span: Span, rows: int) -> None:
        """Add -inf to the entries of ``scores (…, rows, keys)`` that are not kept."""
        if rows == 1:
            return
        if span.diagonal is not None:
            scores[..., span.diagonal :] += self._corner[:rows, :rows]
        if span.edge is not None:
            columns = min(rows - span.edge, scores.shape[-1])
            if columns > 0:
                scores[..., :columns] += self._edge[:rows, span.edge : span.edge + columns]


@dataclass(frozen=True, slots=True)
class Span:
    """Keys ``first`` to ``last`` that a block of queries sees.

    ``diagonal``: column of the first query's own key, when later keys are hidden. ``edge``: how far ``first`` lies
    right of the oldest key in the first query's window, when there is a window.
    """

    first: int
    last: int
    diagonal: int | None
    edge: int | None

    @staticmethod
    def of(start: int, stop: int, keys: int, causal: bool, window: int) -> Span:
        """The span of the queries at positions ``start`` to ``stop`` of ``keys`` positions."""
        oldest = start - window + 1
        first = max(0, oldest) if window > 0 else 0
        diagonal = start - first if causal else None
        return Span(first, stop if causal else keys, diagonal, first - oldest if window > 0 else None)


def _falling(vector: Array, rows: int) -> Array:
    """The square view whose row i is ``vector[rows - 1 - i : 2 rows - 1 - i]``: each row begins one element earlier."""
    step = vector.itemsize
    return np.ndarray((rows, rows), vector.dtype, vector.data, (rows - 1) * step, (-step, step))


def share_out(
    family: CpuFamily, workspace: Array, workers: int, items: int, body: Callable[[int, Array], None]
) -> None:
    """Run ``body(item, scratch)`` for all items; each of the ``workers`` claims the next one when it is free.

    An item's result does not depend on who computes it, so results are the same however the claims fall. A single item
    that is worth several threads stays on the calling one, where BLAS may use them.
    """
    if items == 1 and workers > 1:
        with np.errstate(all="ignore"):
            body(0, workspace)
        return
    parts = min(workers, items)
    claims = count()

    def work(index: int) -> None:
        scratch = worker_workspace(workspace, index, parts)
        while (item := next(claims)) < items:
            body(item, scratch)

    family.run(work, parts)


@dataclass(frozen=True, slots=True)
class TileAttention:
    """Attention of single tiles: the scale of the scores, the masks, and a vector of ones for fast row sums."""

    scale: float
    masks: Masks
    ones: Array

    def scaled_scores(self, queries: Array, keys: Sequence[Array], span: Span, slices: Slices) -> tuple[Array, Array]:
        """Scaled queries ``(h, G rows, D)`` and masked scores ``(h, G rows, keys)``, both in scratch memory.

        ``queries (h, G, rows, D)``; ``keys (h, n, D)`` in one or more parts, in order of their positions. Scaling the
        queries costs less than scaling the scores.
        """
        heads, group, rows, size = queries.shape
        scaled = slices.take(heads, group, rows, size)
        np.multiply(queries, self.scale, out=scaled)
        stacked = scaled.reshape(heads, group * rows, size)
        scores = slices.take(heads, group * rows, sum(part.shape[1] for part in keys))
        column = 0
        for part in keys:
            end = column + part.shape[1]
            np.matmul(stacked, part.transpose(0, 2, 1), out=scores[:, :, column:end])
            column = end
        self.masks.apply(scores.reshape(heads, group, rows, -1), span, rows)
        return stacked, scores

    def forward(
        self,
        output: Array,
        log_sum_exp: Array | None,
        queries: Array,
        keys: Sequence[Array],
        values: Sequence[Array],
        span: Span,
        scratch: Array,
        drop: Callable[[Array], None] | None = None,
    ) -> None:
        """``output (h, G, rows, D)`` and ``log_sum_exp (h, G, rows)`` of one tile; every row keeps at least one key.

        Keys and values come in one part, or in two where a cache wraps; the second takes one more vector per row.
        ``drop`` changes the weights, not yet divided by their sums, in place.
        """
        slices = Slices(scratch)
        attended, scores = self.scaled_scores(queries, keys, span, slices)
        peak = slices.take(*scores.shape[:2])
        total = slices.take(*scores.shape[:2])
        np.maximum.reduce(scores, axis=-1, out=peak)
        scores -= peak[..., None]
        np.exp(scores, out=scores)
        columns = scores.shape[-1]
        np.matmul(scores.reshape(-1, columns), self.ones[:columns], out=total.reshape(-1))
        if drop is not None:
            drop(scores)
        column = values[0].shape[1]
        np.matmul(scores[:, :, :column], values[0], out=attended)
        for part in values[1:]:
            product = slices.take(*attended.shape)
            np.matmul(scores[:, :, column:], part, out=product)
            attended += product
        np.divide(attended.reshape(output.shape), total.reshape(output.shape[:-1])[..., None], out=output)
        if log_sum_exp is not None:
            np.log(total, out=total)
            np.add(peak.reshape(log_sum_exp.shape), total.reshape(log_sum_exp.shape), out=log_sum_exp)


def tile_attention(workspace: Array, queries: int, keys: int, scale: float) -> tuple[TileAttention, Array]:
    """The tile attention of a call, its tables at the front of ``workspace``, and the rest of it for the workers."""
    slices = Slices(workspace)
    ones = slices.take(keys)
    ones.fill(1)
    masks = Masks(slices.take(Masks.elements(queries)))
    return TileAttention(scale, masks, ones), slices.rest()
