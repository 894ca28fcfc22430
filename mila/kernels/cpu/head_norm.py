"""RMS norm of every query and key head of packed projections (Qwen3's q_norm and k_norm)."""

from __future__ import annotations

import numpy as np

from mila.kernels.cpu.normalization import CpuNormTiles, backward_workspace, invert_root
from mila.kernels.cpu.workers import tile_elements
from mila.kernels.signatures import Array
from mila.kernels.signatures.single_row import Bound


class CpuHeadNorm(CpuNormTiles):
    """The norms of heads in NumPy.

    Heads are scaled in contiguous tiles, and weights are repeated for every head once per call: NumPy is slow in
    strided arrays of three axes, and fast in long rows.
    """

    def head_norm_forward(
        self,
        output: Array,
        normal: Array | None,
        rstd: Array,
        x: Array,
        query_weight: Array,
        key_weight: Array,
        heads: int,
        kv_heads: int,
        epsilon: float,
        workspace: Array,
    ) -> None:
        """``normal = x * rstd``, ``y = normal * weight`` for the query and key heads of ``x (…, (H + 2 K) D)``.

        ``rstd (N, H + K) = 1 / sqrt(mean(x²) + epsilon)`` over each head; value heads are copied. ``normal``
        (N, (H + K) D) is for the backward step; ``output`` may be ``x``.
        """
        size, normed = query_weight.size, heads + kv_heads
        width, packed = normed * size, (normed + kv_heads) * size
        target, source = output.reshape(-1, packed), x.reshape(-1, packed)
        factor = _repeat_weights(query_weight, key_weight, heads, kv_heads, workspace)
        copies = not np.may_share_memory(output, x)

        def body(start: int, stop: int, scratch: Array) -> None:
            rows = stop - start
            scaled = scratch[: rows * width].reshape(rows, width) if normal is None else normal[start:stop]
            by_head, spread = scaled.reshape(rows * normed, size), rstd[start:stop].reshape(rows * normed)
            np.copyto(scaled, source[start:stop, :width])
            np.vecdot(by_head, by_head, out=spread)
            invert_root(spread, size, epsilon)
            by_head *= spread[:, None]
            np.multiply(scaled, factor, out=target[start:stop, :width])
            if copies:
                np.copyto(target[start:stop, width:], source[start:stop, width:])

        self.for_tiles(source.shape[0], packed, body, workspace[width:], width)

    def head_norm_forward_workspace(self, rows: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``head_norm_forward``'s workspace: the repeated weights, and a tile of heads."""
        width = (heads + kv_heads) * head_dim
        return width + tile_elements(rows, width)

    def bind_head_norm_forward(
        self,
        output: Array,
        x: Array,
        query_weight: Array,
        key_weight: Array,
        heads: int,
        kv_heads: int,
        epsilon: float,
        workspace: Array,
    ) -> Bound:
        """``head_norm_forward`` of a single row; weights are read where they lie, which may change between calls."""
        size, normed = query_weight.size, heads + kv_heads
        source, target = (array.reshape(-1, size) for array in (x, output))
        by_head, scaled, spread = source[:normed], target[:normed], workspace[:normed]
        roots, queries, keys = spread[:, None], target[:heads], target[heads:normed]
        copies = not np.may_share_memory(output, x)
        vecdot, divide, add, sqrt, multiply = np.vecdot, np.divide, np.add, np.sqrt, np.multiply

        def normalize() -> None:
            vecdot(by_head, by_head, spread)
            divide(spread, size, spread)
            add(spread, epsilon, spread)
            sqrt(spread, spread)
            divide(by_head, roots, scaled)
            multiply(queries, query_weight, queries)
            multiply(keys, key_weight, keys)
            if copies:
                np.copyto(target[normed:], source[normed:])

        return normalize

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
        size, normed = query_weight.size, heads + kv_heads
        width, packed = normed * size, (normed + kv_heads) * size
        target, upstream = dx.reshape(-1, packed), dy.reshape(-1, packed)
        factor = _repeat_weights(query_weight, key_weight, heads, kv_heads, workspace)
        sums_weights = dquery_weight is not None or dkey_weight is not None
        copies = not np.may_share_memory(dx, dy)

        def tile(start: int, stop: int, products: Array, sums: Array, values: Array) -> None:
            d, g, part = target[start:stop, :width], upstream[start:stop, :width], normal[start:stop]
            shape = (stop - start, normed, size)
            by_head = products.reshape(-1, size)
            if sums_weights:
                np.multiply(g, part, out=products)
                self.column_sums(sums[0], products, sums[2])
            np.multiply(g, factor, out=d)
            np.vecdot(d.reshape(shape), part.reshape(shape), out=values.reshape(shape[:2]))
            values /= size
            np.multiply(part.reshape(by_head.shape), values[:, None], out=by_head)
            d -= products
            np.copyto(by_head, rstd[start:stop].reshape(-1, 1))
            d *= products
            if copies:
                np.copyto(target[start:stop, width:], upstream[start:stop, width:])

        worker_sums = self.sum_tiles(tile, upstream.shape[0], width, normed, workspace[width:])
        for gradient, of in ((dquery_weight, slice(0, heads)), (dkey_weight, slice(heads, normed))):
            if gradient is None:
                continue
            if not accumulate:
                gradient.fill(0.0)
            for sums in worker_sums:
                np.add.reduce(sums[0].reshape(normed, size)[of], axis=0, out=sums[1, :size])
                gradient += sums[1, :size]

    def head_norm_backward_workspace(self, rows: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``head_norm_backward``'s workspace."""
        width = (heads + kv_heads) * head_dim
        return width + backward_workspace(rows, width, heads + kv_heads)


def _repeat_weights(query_weight: Array, key_weight: Array, heads: int, kv_heads: int, workspace: Array) -> Array:
    """The weight of every element of the query and key heads, at the start of ``workspace``."""
    size = query_weight.size
    repeated = workspace[: (heads + kv_heads) * size]
    by_head = repeated.reshape(heads + kv_heads, size)
    by_head[:heads] = query_weight
    by_head[heads:] = key_weight
    return repeated
