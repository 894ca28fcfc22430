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


def backward_bytes(size: int) -> int:
    """Shared memory of a block of the larger pass, for heads of at most ``size`` elements, one of ``HEAD_SIZES``."""
    return _tiles(size) + 2 * tile_bytes(_owned(size), _OTHERS)


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
    owned = _owned(size)
    dqueries, dkeys, dvalues = gradients
    shared_arguments = (log_sum_exp, dy, output, *inputs, call.sizes)
    family.launch(
        "attention_backward",
        f"attention_key_gradients_{size}",
        dy.dtype,
        ceiling(call.keys, owned) * call.kv_heads * call.rows,
        THREADS,
        (dkeys, dvalues, *shared_arguments),
        backward_bytes(size),
    )
    family.launch(
        "attention_backward",
        f"attention_query_gradients_{size}",
        dy.dtype,
        ceiling(call.length, owned) * call.heads * call.rows,
        THREADS,
        (dqueries, *shared_arguments),
        _tiles(size) + tile_bytes(owned, _OTHERS),
    )


def _owned(size: int) -> int:
    """Positions of the tile that a block owns."""
    return _OWNED if size <= _LARGE_HEAD else _OWNED // 2


def _tiles(size: int) -> int:
    """Bytes of the tiles of either pass."""
    return 2 * tile_bytes(_owned(size), size) + 2 * tile_bytes(_OTHERS, size)
