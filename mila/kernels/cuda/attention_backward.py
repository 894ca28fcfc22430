"""Gradient of attention on CUDA: a pass over tiles of keys, and one over tiles of queries."""

from __future__ import annotations

from mila.kernels.cuda.attention_sizes import THREADS, AttentionCall, head_size, tile_bytes
from mila.kernels.cuda.family import CudaFamily, ceiling
from mila.kernels.signatures import Array

#: Positions of a tile that passes by; those that a block owns are ``_OWNED``, or half as many of large heads.
_OTHERS = 32
_OWNED = 64
_LARGE_HEAD = 128

Parts = tuple[Array, Array, Array]


def launch_backward(
    family: CudaFamily,
    call: AttentionCall,
    gradients: Parts,
    log_sum_exp: Array,
    dy: Array,
    output: Array,
    inputs: Parts,
) -> None:
    """Write the gradients of queries, keys and values, which lie as these do.

    ``dy``, ``output`` ``(B, T, H D)``; ``log_sum_exp (B, H, T)``.
    """
    size = head_size(call.head_dim)
    owned = _OWNED if size <= _LARGE_HEAD else _OWNED // 2
    tiles = 2 * tile_bytes(owned, size) + 2 * tile_bytes(_OTHERS, size)
    weights = tile_bytes(owned, _OTHERS)
    dqueries, dkeys, dvalues = gradients
    shared_arguments = (log_sum_exp, dy, output, *inputs, call.sizes)
    family.launch(
        "attention_backward",
        f"attention_key_gradients_{size}",
        dy.dtype,
        ceiling(call.keys, owned) * call.kv_heads * call.rows,
        THREADS,
        (dkeys, dvalues, *shared_arguments),
        tiles + 2 * weights,
    )
    family.launch(
        "attention_backward",
        f"attention_query_gradients_{size}",
        dy.dtype,
        ceiling(call.length, owned) * call.heads * call.rows,
        THREADS,
        (dqueries, *shared_arguments),
        tiles + weights,
    )
