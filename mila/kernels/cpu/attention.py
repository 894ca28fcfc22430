"""Attention over packed projections, forward: only the log-sum-exp of every row is kept for the backward step."""

from __future__ import annotations

from collections.abc import Sequence

from mila.kernels.cpu.attention_backward import backward, backward_demand
from mila.kernels.cpu.attention_cached import attend_to_cache, cached_demand
from mila.kernels.cpu.attention_tiles import Heads, Span, Tiling, demand, share_out, tile_attention
from mila.kernels.cpu.family import CpuFamily
from mila.kernels.signatures import Array


class CpuAttention(CpuFamily):
    """Attention kernels: tiles of queries against the keys they may see, spread over the workers."""

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
        sizes = Heads(heads, kv_heads, head_dim)
        batch, length, _ = qkv.shape
        queries, keys, values = sizes.split(qkv)
        outputs = sizes.stack(output)
        statistics = None if log_sum_exp is None else log_sum_exp.reshape(batch, kv_heads, sizes.group, length)
        needs = demand(length, length, sizes, 1)
        tiling = Tiling.choose(needs, sizes, batch, length, length, self.workers.threads)
        tile, scratches = tile_attention(workspace[: needs.total], length, length, scale)
        groups = tiling.head_groups(kv_heads)
        blocks = -(-length // tiling.rows)

        def attend(item: int, scratch: Array) -> None:
            block, pair = divmod(item, batch * groups)
            b, group = divmod(pair, groups)
            # Later blocks see more keys; the largest first leaves the least waiting at the end.
            start = (blocks - 1 - block) * tiling.rows
            stop = min(length, start + tiling.rows)
            span = Span.of(start, stop, length, causal, window)
            own = slice(group * tiling.head_step, (group + 1) * tiling.head_step)
            tile.forward(
                outputs[b, own, :, start:stop],
                None if statistics is None else statistics[b, own, :, start:stop],
                queries[b, own, :, start:stop],
                (keys[b, own, span.first : span.last],),
                (values[b, own, span.first : span.last],),
                span,
                scratch,
            )

        share_out(self, scratches, tiling.workers, batch * groups * blocks, attend)

    def attention_forward_workspace(self, length: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``attention_forward``'s workspace: linear in ``length``, the same for any batch and threads."""
        return demand(length, length, Heads(heads, kv_heads, head_dim), 1).total

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
        sizes = Heads(heads, kv_heads, head_dim)
        backward(self, dqkv, log_sum_exp, dy, output, qkv, sizes, causal, window, scale, workspace)

    def attention_backward_workspace(self, length: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``attention_backward``'s workspace: linear in ``length``, the same for any batch and threads."""
        return backward_demand(length, Heads(heads, kv_heads, head_dim)).total

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
        _, kv_heads, _, head_dim = keys.shape
        sizes = Heads(heads, kv_heads, head_dim)
        attend_to_cache(self, output, keys, values, qkv, starts, lengths, sizes, window, scale, workspace)

    def attention_cached_workspace(
        self, length: int, capacity: int, heads: int, kv_heads: int, head_dim: int, window: int
    ) -> int:
        """Elements of ``attention_cached``'s workspace for ``length`` new positions and caches of ``capacity``."""
        return cached_demand(length, capacity, Heads(heads, kv_heads, head_dim), window).total
