"""Attention with rings of keys and values: prefill in chunks and decode, each row at a position of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mila.kernels.cpu.attention_decode import attend_each
from mila.kernels.cpu.attention_tiles import Demand, Heads, Span, Tiling, demand, share_out, tile_attention
from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array


def cached_demand(length: int, capacity: int, heads: Heads, window: int) -> Demand:
    """The workspace for ``length`` queries; only with a window may a tile's keys wrap, and take one vector more."""
    return demand(length, capacity, heads, 1, extra_vectors=1 if window > 0 else 0)


def attend_to_cache(
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
    """Append ``lengths[b]`` positions at ``starts[b]``, then attend; outputs beyond ``lengths[b]`` are zero.

    ``output (B, T, H D)``, ``keys``, ``values`` ``(B, K, S, D)``, ``qkv (B, T, (H + 2 K) D)``; what the caller has to
    check stands in ``AttentionKernels.attention_cached``.
    """
    if qkv.shape[1] == 1:
        attend_each(family, output, keys, values, qkv, starts, lengths, heads, window, scale, workspace)
        return
    queries, new_keys, new_values = heads.split(qkv)
    for b, (start, valid) in enumerate(zip(starts, lengths, strict=True)):
        _write(keys[b], new_keys[b], start, valid)
        _write(values[b], new_values[b], start, valid)
        output[b, valid:] = 0
    _attend_to_chunks(
        family, heads.stack(output), keys, values, queries, starts, lengths, heads, window, scale, workspace
    )


def _attend_to_chunks(
    family: CpuFamily,
    outputs: Array,
    keys: Array,
    values: Array,
    queries: Array,
    starts: Sequence[int],
    lengths: Sequence[int],
    heads: Heads,
    window: int,
    scale: float,
    workspace: Array,
) -> None:
    """Attend tile by tile: ``outputs``, ``queries`` ``(B, K, H / K, T, D)``."""
    batch, length, capacity = len(queries), queries.shape[3], keys.shape[2]
    needs = cached_demand(length, capacity, heads, window)
    seen = min(capacity, max(start + valid for start, valid in zip(starts, lengths, strict=True)))
    # Tiles are larger while there are few keys.
    needs_now = replace(needs, row=cached_demand(length, seen, heads, window).row)
    tiling = Tiling.choose(needs_now, heads, batch, length, seen, family.workers.threads)
    tile, scratches = tile_attention(workspace[: needs.total], length, capacity, scale)
    groups = tiling.head_groups(heads.key_value)
    blocks = -(-length // tiling.rows)

    def attend(item: int, scratch: Array) -> None:
        block, pair = divmod(item, batch * groups)
        b, group = divmod(pair, groups)
        start = (blocks - 1 - block) * tiling.rows
        stop = min(lengths[b], start + tiling.rows)
        if start >= stop:
            return
        span = Span.of(starts[b] + start, starts[b] + stop, starts[b] + stop, True, window)
        slots = _slots(span.first, span.last, capacity)
        own = slice(group * tiling.head_step, (group + 1) * tiling.head_step)
        tile.forward(
            outputs[b, own, :, start:stop],
            None,
            queries[b, own, :, start:stop],
            [keys[b, own, part] for part in slots],
            [values[b, own, part] for part in slots],
            span,
            scratch,
        )

    share_out(family, scratches, tiling.workers, batch * groups * blocks, attend)


def _write(ring: Array, new: Array, start: int, valid: int) -> None:
    """Put the first ``valid`` positions of ``new (K, T, D)`` into ``ring (K, S, D)``, from position ``start`` on."""
    done = 0
    for part in _slots(start, start + valid, ring.shape[1]):
        count = part.stop - part.start
        np.copyto(ring[:, part], new[:, done : done + count])
        done += count


def _slots(first: int, last: int, capacity: int) -> tuple[slice, ...]:
    """Where a ring holds positions ``first`` to ``last``, at most ``capacity``, in order; two slices where it wraps."""
    start = first % capacity
    stop = start + last - first
    if stop <= capacity:
        return (slice(start, stop),)
    return slice(start, capacity), slice(0, stop - capacity)
