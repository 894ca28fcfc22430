"""Attention with rings of keys and values on CUDA: prefill in chunks and decode, each row at a position of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from mila.kernels.cuda.attention import forward_bytes, launch_forward
from mila.kernels.cuda.attention_sizes import THREADS, AttentionCall, check_head, head_size
from mila.kernels.cuda.family import BLOCK, CudaFamily, ceiling
from mila.kernels.cuda.row_positions import MOST_ROWS, row_blocks, row_positions
from mila.kernels.signatures import Array

#: Keys of a split, at least; most splits of a row; keys of a step, of which a split is a multiple.
_LEAST_SPLIT: Final = 256
_MOST_SPLITS: Final = 64
_STEP: Final = 128
#: Rows whose splits the workspace holds at once.
_ROWS_AT_ONCE: Final = 8
#: Statistics of a split: the largest score, and the sum of exponentials.
_STATISTICS: Final = 2

#: ``CacheSizes`` of ``attention_cached.cu``.
_SIZES: Final = np.dtype(
    [
        ("rows", np.int64),
        ("length", np.int64),
        ("slots", np.int64),
        ("width", np.int64),
        ("window", np.int64),
        ("splits", np.int64),
        ("scale", np.float32),
        ("heads", np.int32),
        ("key_heads", np.int32),
        ("size", np.int32),
    ],
    align=True,
)


class CudaAttentionCached(CudaFamily):
    """Attention kernels with a cache."""

    def attention_cached(
        self,
        output: Array,
        keys: Array,
        values: Array,
        qkv: Array,
        starts: Sequence[int],
        lengths: Sequence[int],
        heads: int,
        window: int,
        scale: float,
        workspace: Array,
    ) -> None:
        """Append the keys and values of ``qkv`` to rings ``(B, K, S, D)``; attend causally to what they keep."""
        batch, length, _ = qkv.shape
        if not output.size:
            return
        if length > 1:
            for rows in row_blocks(batch):
                block = _Block(output[rows], keys[rows], values[rows], qkv[rows], starts[rows], lengths[rows])
                _append(self, block, heads)
                _attend_to_chunk(self, block, heads, window, scale)
            return
        seen = max(_seen(start, valid, window) for start, valid in zip(starts, lengths, strict=True))
        splits = _splits(seen)
        row_elements = _row_elements(splits, heads, keys.shape[3])
        for rows in row_blocks(batch, min(MOST_ROWS, workspace.size // row_elements) if splits > 1 else MOST_ROWS):
            block = _Block(output[rows], keys[rows], values[rows], qkv[rows], starts[rows], lengths[rows])
            _append(self, block, heads)
            _decode(self, block, heads, window, scale, splits, workspace)

    def attention_cached_workspace(
        self, length: int, capacity: int, heads: int, kv_heads: int, head_dim: int, window: int
    ) -> int:
        """Elements of ``attention_cached``'s workspace: what the splits of a few rows leave, whatever the length."""
        if length > 1:
            check_head(self.launcher, head_dim, forward_bytes)
        head_size(head_dim)
        splits = _splits(min(capacity, window) if window > 0 else capacity)
        return _ROWS_AT_ONCE * _row_elements(splits, heads, head_dim) if splits > 1 else 0

    def bind_attention_cached(
        self,
        output: Array,
        keys: Array,
        values: Array,
        qkv: Array,
        heads: int,
        window: int,
        scale: float,
        workspace: Array,
    ) -> Callable[[int], None]:
        """``attention_cached`` for one position of row 0."""
        row_keys, row_values = keys[:1], values[:1]
        result, packed = (array.reshape(1, 1, -1) for array in (output, qkv))

        def attend(position: int) -> None:
            self.attention_cached(
                result, row_keys, row_values, packed, (position,), (1,), heads, window, scale, workspace
            )

        return attend


class _Block:
    """The rows of one launch: ``output (B, T, H D)``, ``keys``, ``values`` ``(B, K, S, D)``, ``qkv (B, T, ...)``."""

    def __init__(
        self,
        output: Array,
        keys: Array,
        values: Array,
        qkv: Array,
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        self.output, self.keys, self.values, self.qkv = output, keys, values, qkv
        self.positions = row_positions(starts, lengths)

    def sizes(self, heads: int, window: int, scale: float, splits: int) -> np.void:
        """What the kernels of ``attention_cached.cu`` take."""
        rows, length, width = self.qkv.shape
        _, kv_heads, slots, size = self.keys.shape
        values = (rows, length, slots, width, window, splits, scale, heads, kv_heads, size)
        structure: np.void = np.array([values], _SIZES)[0]
        return structure


def _append(family: CudaFamily, block: _Block, heads: int) -> None:
    rows, length, _ = block.qkv.shape
    arguments = (block.keys, block.values, block.qkv, block.sizes(heads, 0, 1.0, 1), block.positions)
    family.launch("attention_cached", "append_positions", block.qkv.dtype, rows * length, BLOCK, arguments)


def _attend_to_chunk(family: CudaFamily, block: _Block, heads: int, window: int, scale: float) -> None:
    rows, length, width = block.qkv.shape
    _, kv_heads, slots, size = block.keys.shape
    call = AttentionCall(
        rows=rows,
        length=length,
        keys=slots,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size,
        causal=True,
        scale=scale,
        query_stride=width,
        key_stride=size,
        key_head_stride=slots * size,
        key_row_stride=kv_heads * slots * size,
        window=window,
        is_ring=True,
    )
    launch_forward(family, call, block.output, None, (block.qkv, block.keys, block.values), block.positions)


def _decode(
    family: CudaFamily, block: _Block, heads: int, window: int, scale: float, splits: int, workspace: Array
) -> None:
    """Attend with the only query of each row, and merge what the splits leave."""
    rows, kv_heads, _, size = block.keys.shape
    head_size(size)
    sizes, pairs = block.sizes(heads, window, scale, splits), rows * heads
    sums = statistics = None
    if splits > 1:
        end = pairs * splits * size
        sums, statistics = workspace[:end], workspace[end : end + pairs * splits * _STATISTICS]
    arguments = (block.output, sums, statistics, block.qkv, block.keys, block.values, sizes, block.positions)
    dtype = block.qkv.dtype
    family.launch("attention_cached", "attention_decode", dtype, splits * kv_heads * rows, THREADS, arguments)
    if splits > 1:
        merged = (block.output, sums, statistics, sizes, block.positions)
        family.launch("attention_cached", "attention_merge", dtype, pairs, THREADS, merged)


def _seen(start: int, valid: int, window: int) -> int:
    """How many positions a row's only query sees."""
    if not valid:
        return 0
    return min(start + 1, window) if window > 0 else start + 1


def _splits(seen: int) -> int:
    """Blocks that share ``seen`` keys of a row; the kernels compute the same."""
    share = ceiling(ceiling(seen, _MOST_SPLITS), _STEP) * _STEP
    return max(1, ceiling(seen, max(_LEAST_SPLIT, share)))


def _row_elements(splits: int, heads: int, head_dim: int) -> int:
    """Elements of workspace that the splits of a row take."""
    return splits * heads * (head_dim + _STATISTICS)
