"""Attention of decoding one row, bound to its arrays: views are made once, and a call is a few NumPy calls."""

from __future__ import annotations

import numpy as np

from mila.kernels.cpu.attention_decode import attend_each, attend_one
from mila.kernels.cpu.attention_tiles import Heads
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
    """``attend_each`` for row 0 of caches ``(B, K, S, D)``: all heads at once, as long as the workspace has room.

    On one thread: with one query, handing work to another takes longer than it saves, up to thousands of keys.
    """
    capacity, packed = keys.shape[2], qkv.reshape(-1, heads.size)
    queries = packed[: heads.query].reshape(heads.key_value, heads.group, heads.size)
    new_keys, new_values = packed[heads.query : -heads.key_value], packed[-heads.key_value :]
    row_keys, row_values, result = keys[0], values[0], output.reshape(queries.shape)
    most = workspace.size // heads.query - heads.size - 1  # keys
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
