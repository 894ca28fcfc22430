"""Attention of decoding one row, bound to its arrays: views are made once, and a call is a few NumPy calls."""

from __future__ import annotations

import numpy as np

from mila.kernels.cpu.attention_decode import attend_each, attend_one
from mila.kernels.cpu.attention_tiles import INLINE_EFFORT, Heads
from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array
from mila.kernels.signatures.single_row import BoundAt


def bind_attention(
    family: CpuFamily,
    output: Array,
    keys: Array,
    values: Array,
    qkv: Array,
    heads: Heads,
    window: int,
    scale: float,
    workspace: Array,
) -> BoundAt:
    """``attend_each`` for row 0 of caches ``(B, K, S, D)``: all heads at once while that is worth one thread only."""
    capacity, packed = keys.shape[2], qkv.reshape(-1, heads.size)
    queries = packed[: heads.query].reshape(heads.key_value, heads.group, heads.size)
    new_keys, new_values = packed[heads.query : -heads.key_value], packed[-heads.key_value :]
    row_keys, row_values, result = keys[0], values[0], output.reshape(queries.shape)
    most = _most_keys(family, heads, workspace.size)
    copy = np.copyto

    def attend(position: int) -> None:
        last = position + 1
        first = max(0, last - window) if window > 0 else 0
        if min(last, capacity) > most:
            attend_each(family, output, keys, values, qkv, (position,), (1,), heads, window, scale, workspace)
            return
        slot = position % capacity
        copy(row_keys[:, slot], new_keys)
        copy(row_values[:, slot], new_values)
        attend_one(result, queries, row_keys, row_values, first, last, scale, workspace)

    return attend


def _most_keys(family: CpuFamily, heads: Heads, room: int) -> int:
    """Up to how many keys one thread attends to, all heads at once, in a workspace of ``room`` elements."""
    most = room // heads.query - heads.size - 1
    if family.workers.threads == 1:
        return most
    per_key = heads.effort(1, 1, 1)
    return min(most, (INLINE_EFFORT - 1) // per_key)
