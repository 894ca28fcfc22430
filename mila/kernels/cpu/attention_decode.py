"""Decode: attention of a single query position per row to a ring of keys and values, in as few calls as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from mila.kernels.cpu.attention_tiles import INLINE_EFFORT, Heads, share_out
from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array

#: Keys in one product with a few queries: with more, OpenBLAS repacks them, which takes several times as long.
KEY_BLOCK: Final = 128


def attend_each(
    family: CpuFamily,
    output: Array,
    keys: Array,
    values: Array,
    qkv: Array,
    starts: Sequence[int],
    lengths: Sequence[int],
    heads: Heads,
    window: int,
    scale: float,
    workspace: Array,
) -> None:
    """``attend_to_cache`` for one position per row: ``output (B, 1, H D)``, ``qkv (B, 1, (H + 2 K) D)``."""
    batch, (_, key_value, capacity, size) = len(qkv), keys.shape
    packed = qkv.reshape(batch, -1, size)
    queries = packed[:, : heads.query].reshape(batch, key_value, heads.group, size)
    outputs = output.reshape(queries.shape)
    for b, start in enumerate(starts):
        if lengths[b]:
            slot = start % capacity
            keys[b, :, slot] = packed[b, heads.query : heads.query + key_value]
            values[b, :, slot] = packed[b, heads.query + key_value :]
        else:
            outputs[b] = 0
    seen = min(capacity, 1 + max(starts))
    workers = family.workers.threads if heads.effort(batch, 1, seen) >= INLINE_EFFORT else 1
    step, workers = _share(workspace.size // (heads.group * (seen + size + 1)), key_value, batch, workers)
    groups = -(-key_value // step)

    def attend(item: int, scratch: Array) -> None:
        b, group = divmod(item, groups)
        if lengths[b]:
            last = starts[b] + 1
            first = max(0, last - window) if window > 0 else 0
            own = slice(group * step, (group + 1) * step)
            attend_one(outputs[b, own], queries[b, own], keys[b, own], values[b, own], first, last, scale, scratch)

    share_out(family, workspace, workers, batch * groups, attend)


def _share(room: int, key_value: int, batch: int, workers: int) -> tuple[int, int]:
    """Key/value heads at a time, and workers, where the workspace has ``room`` for so many heads at once."""
    workers = min(workers, room)
    groups = -(-key_value // min(key_value, room // workers))
    spread = workers // math.gcd(workers, batch)
    groups = min(key_value, -(-groups // spread) * spread)
    return -(-key_value // groups), workers


def attend_one(
    output: Array,
    query: Array,
    keys: Array,
    values: Array,
    first: int,
    last: int,
    scale: float,
    scratch: Array,
) -> None:
    """Attention of one position of h key/value heads to positions ``first`` to ``last`` of a ring.

    ``output``, ``query`` ``(h, G, D)``; ``keys``, ``values`` ``(h, S, D)``, position p in slot ``p % S``; ``scratch``
    has at least ``h G (last - first + D + 1)`` elements. The result depends on no other head, and on no worker.
    """
    heads, group, size = query.shape
    rows, count, capacity = heads * group, last - first, keys.shape[1]
    used = rows * size
    vectors = scratch[:used].reshape(heads, group, size)
    scores = scratch[used : used + rows * count].reshape(heads, group, count)
    statistic = scratch[used + rows * count : used + rows * (count + 1)].reshape(heads, group, 1)
    start = first % capacity
    stop = min(start + count, capacity)
    column = stop - start
    wraps = column < count
    np.multiply(query, scale, out=vectors)
    _score(scores[:, :, :column], vectors, keys[:, start:stop])
    if wraps:
        _score(scores[:, :, column:], vectors, keys[:, : count - column])
    np.maximum.reduce(scores, axis=2, keepdims=True, out=statistic)
    np.subtract(scores, statistic, out=scores)
    np.exp(scores, out=scores)
    np.add.reduce(scores, axis=2, keepdims=True, out=statistic)
    np.matmul(scores[:, :, :column], values[:, start:stop], out=output)
    if wraps:
        np.matmul(scores[:, :, column:], values[:, : count - column], out=vectors)
        np.add(output, vectors, out=output)
    np.divide(output, statistic, out=output)


def _score(scores: Array, query: Array, keys: Array) -> None:
    """``scores (h, G, n) = query (h, G, D) @ keysᵀ (h, D, n)``, in blocks of keys where that is faster."""
    heads, group, count = scores.shape
    whole = count - count % KEY_BLOCK if group > 1 else 0
    if whole:
        blocks = keys[:, :whole].reshape(heads, -1, KEY_BLOCK, keys.shape[2])
        parts = scores[:, :, :whole].reshape(heads, group, -1, KEY_BLOCK)
        np.matmul(query[:, None], blocks.transpose(0, 1, 3, 2), out=parts.transpose(0, 2, 1, 3))
    if whole < count:
        np.matmul(query, keys[:, whole:].transpose(0, 2, 1), out=scores[:, :, whole:])
