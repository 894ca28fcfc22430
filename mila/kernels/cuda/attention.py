"""Attention over packed projections on CUDA; only the log-sum-exp of every row is kept for the backward step."""

from __future__ import annotations

import numpy as np

from mila.kernels.cuda.attention_backward import backward_bytes, launch_backward
from mila.kernels.cuda.attention_sizes import (
    THREADS,
    AttentionCall,
    check_head,
    head_size,
    packed_call,
    packed_parts,
    tile_bytes,
)
from mila.kernels.cuda.family import CudaFamily, ceiling
from mila.kernels.cuda.row_positions import NO_POSITIONS
from mila.kernels.signatures import Array

#: Queries of a tile.
_QUERIES = 64


class CudaAttention(CudaFamily):
    """Attention kernels without a cache: ``attention.cu`` and ``attention_backward.cu``."""

    def attention_forward(
        self,
        output: Array,
        log_sum_exp: Array | None,
        qkv: Array,
        heads: int,
        kv_heads: int,
        head_dim: int,
        causal: bool,
        window: int,
        scale: float,
        workspace: Array,
    ) -> None:
        """Attention of ``qkv (B, T, (H + 2 K) D)`` to itself: ``output (B, T, H D)``, ``log_sum_exp (B, H, T)``."""
        if not output.size:
            return
        call = packed_call(qkv, heads, kv_heads, head_dim, causal, window, scale)
        launch_forward(self, call, output, log_sum_exp, packed_parts(qkv, heads, kv_heads, head_dim))

    def attention_forward_workspace(self, length: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``attention_forward``'s workspace: none, for any head that the kernels take."""
        check_head(self.launcher, head_dim, forward_bytes)
        return 0

    def attention_backward(
        self,
        dqkv: Array,
        log_sum_exp: Array,
        dy: Array,
        output: Array,
        qkv: Array,
        heads: int,
        kv_heads: int,
        head_dim: int,
        causal: bool,
        window: int,
        scale: float,
        workspace: Array,
    ) -> None:
        """Gradient of ``attention_forward``: all of ``dqkv``, from ``dy`` and what forward read and wrote."""
        if not output.size:
            return
        call = packed_call(qkv, heads, kv_heads, head_dim, causal, window, scale)
        gradients, inputs = (packed_parts(array, heads, kv_heads, head_dim) for array in (dqkv, qkv))
        launch_backward(self, call, gradients, log_sum_exp, dy, output, inputs)

    def attention_backward_workspace(self, length: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``attention_backward``'s workspace: none, for any head that the kernels take."""
        check_head(self.launcher, head_dim, backward_bytes)
        return 0


def forward_bytes(size: int) -> int:
    """Shared memory of a block for heads of at most ``size`` elements, one of ``HEAD_SIZES``."""
    keys = 64 if size == 64 else 32  # of a tile
    return tile_bytes(_QUERIES, size) + 2 * tile_bytes(keys, size) + tile_bytes(_QUERIES, keys)


def launch_forward(
    family: CudaFamily,
    call: AttentionCall,
    output: Array,
    log_sum_exp: Array | None,
    inputs: tuple[Array, Array, Array],
    rows: np.void = NO_POSITIONS,
) -> None:
    """``output (B, T, H D)`` and ``log_sum_exp (B, H, T)`` of queries, keys and values that lie as ``call`` says.

    One block per tile, head and row. ``rows``: where the rows stand, of a call with rings.
    """
    size = head_size(call.head_dim)
    blocks = ceiling(call.length, _QUERIES) * call.heads * call.rows
    arguments = (output, log_sum_exp, *inputs, call.sizes, rows)
    family.launch(
        "attention", f"attention_forward_{size}", output.dtype, blocks, THREADS, arguments, forward_bytes(size)
    )
