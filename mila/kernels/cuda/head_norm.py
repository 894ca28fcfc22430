"""RMS norm of every query and key head of packed projections."""

from __future__ import annotations

import numpy as np

from mila.kernels.cuda.column_sums import CudaColumnSums, chunk_bound, rows_per_chunk
from mila.kernels.cuda.family import WARP, Argument, ceiling
from mila.kernels.signatures import Array

#: Most warps of a block, each of which works on one head at a time.
_MOST_WARPS = 8
#: Elements of a head that a lane holds in a backward pass, where the lanes of a warp share it; threads of a block.
_HELD = 8
_THREADS = 512
#: Shared memory for the sums of a block's warps, of which there are fewer where heads are very wide.
_SHARED_BYTES = 49152
#: Chunks of rows of a backward pass, each a block; and rows of a chunk at least.
_MOST_CHUNKS = 256
_LEAST_ROWS = 4


class CudaHeadNorm(CudaColumnSums):
    """The norms of heads in CUDA C++."""

    def head_norm_forward(
        self,
        output: Array,
        normal: Array | None,
        rstd: Array | None,
        x: Array,
        query_weight: Array,
        key_weight: Array,
        heads: int,
        kv_heads: int,
        epsilon: float,
        workspace: Array,
    ) -> None:
        """``normal = x * rstd``, ``y = normal * weight`` for the query and key heads of ``x (…, (H + 2 K) D)``.

        ``rstd (N, H + K) = 1 / sqrt(mean(x²) + epsilon)`` over each head, float32; value heads are copied. ``normal``
        (N, (H + K) D) and ``rstd`` are not written where they are ``None``; ``output`` may be ``x``.
        """
        head_dim = query_weight.size
        rows = x.size // ((heads + 2 * kv_heads) * head_dim)
        sizes = _integers(rows, heads, kv_heads, head_dim)
        arguments: list[Argument] = [output, normal, rstd, x, query_weight, key_weight, *sizes, np.float32(epsilon)]
        block = WARP * min(_MOST_WARPS, heads + kv_heads)
        self.launch("head_norm", "head_norm_forward", x.dtype, self.row_blocks(rows, block), block, arguments)

    def head_norm_forward_workspace(self, rows: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``head_norm_forward``'s workspace: none."""
        return 0

    def head_norm_backward(
        self,
        dx: Array,
        dquery_weight: Array | None,
        dkey_weight: Array | None,
        normal: Array,
        rstd: Array,
        dy: Array,
        query_weight: Array,
        key_weight: Array,
        heads: int,
        kv_heads: int,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """``dx = rstd (g - normal mean(g normal))``, ``g = dy weight``, over each head; ``None`` for a frozen weight.

        ``dweight`` sums ``dy normal`` over rows and the heads that share the weight; ``dx`` may be ``dy``.
        """
        head_dim = query_weight.size
        rows = dy.size // ((heads + 2 * kv_heads) * head_dim)
        per_chunk = rows_per_chunk(rows, _LEAST_ROWS, _MOST_CHUNKS)
        chunks, width = ceiling(rows, per_chunk), 2 * head_dim
        partial = workspace[: chunks * width]
        arguments: list[Argument] = [dx, partial, normal, rstd, dy, query_weight, key_weight]
        sizes = _integers(rows, heads, kv_heads, head_dim, per_chunk)
        lanes = 1 << (ceiling(head_dim, _HELD) - 1).bit_length()
        if lanes <= WARP:
            shared_bytes = 4 * (_THREADS // lanes) * head_dim
            arguments += [*sizes, np.int32(lanes)]
            self.launch("head_norm", "head_norm_backward", dy.dtype, chunks, _THREADS, arguments, shared_bytes)
        else:
            warps = max(1, min(_MOST_WARPS, heads + kv_heads, _SHARED_BYTES // (4 * width)))
            block, shared_bytes = WARP * warps, 4 * warps * width
            arguments += sizes
            self.launch("head_norm", "wide_head_norm_backward", dy.dtype, chunks, block, arguments, shared_bytes)
        for position, gradient in enumerate((dquery_weight, dkey_weight)):
            if gradient is not None:
                self.add_chunks(gradient, partial[position * head_dim :], chunks, width, accumulate)

    def head_norm_backward_workspace(self, rows: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``head_norm_backward``'s workspace: for each chunk of rows the sums of both weights."""
        return chunk_bound(rows, _LEAST_ROWS, _MOST_CHUNKS) * 2 * head_dim


def _integers(*values: int) -> list[np.int64]:
    return [np.int64(value) for value in values]
