"""Attention with a cache of keys and values: prefill in chunks and decode, each row at a position of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mila.kernels.cpu.attention_tiles import Heads, Span, Tiling, demand, share_out, tile_attention
from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array


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

    ``output (B, T, H D)``, ``keys``, ``values`` ``(B, K, S, D)``, ``qkv (B, T, (H + 2 K) D)``; that
    ``starts[b] + lengths[b] <= S`` is for the caller to check.
    """
    batch, length, _ = qkv.shape
    queries, new_keys, new_values = heads.split(qkv)
    for b, (start, valid) in enumerate(zip(starts, lengths, strict=True)):
        np.copyto(keys[b, :, start : start + valid], new_keys[b, :, :valid])
        np.copyto(values[b, :, start : start + valid], new_values[b, :, :valid])
        output[b, valid:] = 0
    outputs = heads.stack(output)
    needs = demand(length, keys.shape[2], heads, 1)
    seen = max(start + valid for start, valid in zip(starts, lengths, strict=True))
    tiling = Tiling.choose(needs, heads, batch, length, seen, family.workers.threads)
    tile, scratches = tile_attention(workspace[: needs.total], length, keys.shape[2], scale)
    groups = tiling.head_groups(heads.key_value)
    blocks = -(-length // tiling.rows)

    def attend(item: int, scratch: Array) -> None:
        block, pair = divmod(item, batch * groups)
        b, group = divmod(pair, groups)
        start = (blocks - 1 - block) * tiling.rows
        stop = min(lengths[b], start + tiling.rows)
        if start >= stop:
            return
        span = Span.of(starts[b] + start, starts[b] + stop, keys.shape[2], True, window)
        own = slice(group * tiling.head_step, (group + 1) * tiling.head_step)
        tile.forward(
            outputs[b, own, :, start:stop],
            None,
            queries[b, own, :, start:stop],
            keys[b, own, span.first : span.last],
            values[b, own, span.first : span.last],
            span,
            scratch,
        )

    share_out(family, scratches, tiling, batch * groups * blocks, attend)
