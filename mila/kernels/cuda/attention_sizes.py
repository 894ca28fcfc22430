"""What launches of the attention kernels share: sizes passed by value, and which variant of a kernel takes a head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from mila.errors import DeviceError
from mila.kernels.cuda.family import FLOAT32, Launcher
from mila.kernels.signatures import Array

#: Elements of a head that kernels are compiled for; each takes all up to its own.
HEAD_SIZES: Final = (64, 128, 256)
#: Threads of a block, and the threads that share a row of a tile.
THREADS: Final = 256
SIDE: Final = 16
#: Elements behind a row of a tile.
PAD: Final = 4

_MODULUS: Final = 1 << 64
#: ``AttentionSizes`` of ``attention_tiles.cuh``.
_SIZES: Final = np.dtype(
    [
        ("rows", np.int64),
        ("length", np.int64),
        ("keys", np.int64),
        ("query_stride", np.int64),
        ("key_stride", np.int64),
        ("key_head_stride", np.int64),
        ("key_row_stride", np.int64),
        ("window", np.int64),
        ("dropout_key", np.uint64),
        ("threshold", np.uint64),
        ("keep_factor", np.float32),
        ("scale", np.float32),
        ("heads", np.int32),
        ("group", np.int32),
        ("size", np.int32),
        ("causal", np.int32),
        ("is_ring", np.int32),
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call: ``rows`` rows of ``length`` queries and ``keys`` keys, strides in elements."""

    rows: int
    length: int
    keys: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    scale: float
    query_stride: int
    key_stride: int
    key_head_stride: int
    key_row_stride: int
    window: int = 0
    probability: float = 0.0
    dropout_key: int = 0
    is_ring: bool = False

    @property
    def sizes(self) -> np.void:
        """What the kernels take."""
        threshold = round(self.probability * 2**32)
        drops_all = threshold >= 2**32
        values = (
            self.rows,
            self.length,
            self.keys,
            self.query_stride,
            self.key_stride,
            self.key_head_stride,
            self.key_row_stride,
            self.window,
            self.dropout_key % _MODULUS,
            threshold,
            0.0 if drops_all else 1.0 / (1.0 - self.probability),
            self.scale,
            self.heads,
            self.heads // self.kv_heads,
            self.head_dim,
            self.causal,
            self.is_ring,
        )
        structure: np.void = np.array([values], _SIZES)[0]
        return structure


def packed_call(
    qkv: Array, heads: int, kv_heads: int, head_dim: int, causal: bool, window: int, scale: float
) -> AttentionCall:
    """The call for ``qkv (B, T, (H + 2 K) D)`` that attends to itself."""
    batch, length, width = qkv.shape
    return AttentionCall(
        rows=batch,
        length=length,
        keys=length,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        causal=causal,
        scale=scale,
        query_stride=width,
        key_stride=width,
        key_head_stride=head_dim,
        key_row_stride=length * width,
        window=window,
    )


def packed_parts(qkv: Array, heads: int, kv_heads: int, head_dim: int) -> tuple[Array, Array, Array]:
    """Flat views of ``qkv (B, T, (H + 2 K) D)`` that begin at the queries, the keys and the values of position 0."""
    flat = qkv.reshape(-1)
    return flat, flat[heads * head_dim :], flat[(heads + kv_heads) * head_dim :]


def head_size(head_dim: int) -> int:
    """The smallest of ``HEAD_SIZES`` that holds a head.

    Raises:
        DeviceError: if none does.
    """
    for size in HEAD_SIZES:
        if head_dim <= size:
            return size
    raise DeviceError(f"attention on CUDA takes heads of at most {HEAD_SIZES[-1]} elements, got {head_dim}")


def check_head(launcher: Launcher, head_dim: int, shared_bytes: Callable[[int], int]) -> None:
    """Refuse heads that no kernel takes, or whose tiles are more than a block of this device has room for.

    Args:
        launcher: of the device.
        head_dim: D.
        shared_bytes: what a block takes for heads of one of ``HEAD_SIZES``.

    Raises:
        DeviceError: it is one of them.
    """
    needed, most = shared_bytes(head_size(head_dim)), launcher.most_shared_bytes
    if most is not None and needed > most:
        raise DeviceError(
            f"attention on CUDA takes {needed:,} bytes of shared memory for heads of {head_dim} elements, of which "
            f"this device gives a block {most:,}"
        )


def tile_bytes(rows: int, size: int) -> int:
    """Shared memory of a tile."""
    return rows * (size + PAD) * FLOAT32.itemsize
