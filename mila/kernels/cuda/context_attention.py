"""Attention of queries to keys and values that lie apart, on CUDA: the kernels of self-attention with other strides.

Dropped weights are drawn where they are computed, the same ones as on the CPU.
"""

from __future__ import annotations

from mila.kernels.cuda.attention import forward_bytes, launch_forward
from mila.kernels.cuda.attention_backward import backward_bytes, launch_backward
from mila.kernels.cuda.attention_sizes import AttentionCall, check_head
from mila.kernels.cuda.family import CudaFamily
from mila.kernels.signatures import Array


class CudaContextAttention(CudaFamily):
    """``ContextAttentionKernels`` in CUDA C++."""

    def context_attention_forward(
        self,
        output: Array,
        log_sum_exp: Array | None,
        queries: Array,
        keys: Array,
        values: Array,
        heads: int,
        causal: bool,
        scale: float,
        probability: float,
        key: int,
        workspace: Array,
    ) -> None:
        """``output (B, T, H D)`` of ``queries (B, T, H D)`` and ``keys``, ``values (B, S, H D)``; causal: S = T."""
        if not output.size:
            return
        call = _call(queries, keys, heads, causal, scale, probability, key)
        launch_forward(self, call, output, log_sum_exp, (queries, keys, values))

    def context_attention_forward_workspace(
        self, length: int, context_length: int, heads: int, head_dim: int, probability: float
    ) -> int:
        """Elements of ``context_attention_forward``'s workspace: none, for any head that the kernels take."""
        check_head(self.launcher, head_dim, forward_bytes)
        return 0

    def context_attention_backward(
        self,
        dqueries: Array,
        dkeys: Array,
        dvalues: Array,
        log_sum_exp: Array,
        dy: Array,
        output: Array,
        queries: Array,
        keys: Array,
        values: Array,
        heads: int,
        causal: bool,
        scale: float,
        probability: float,
        key: int,
        workspace: Array,
    ) -> None:
        """Gradients of ``context_attention_forward``, with the same weights dropped."""
        if not output.size:
            return
        call = _call(queries, keys, heads, causal, scale, probability, key)
        launch_backward(self, call, (dqueries, dkeys, dvalues), log_sum_exp, dy, output, (queries, keys, values))

    def context_attention_backward_workspace(
        self, length: int, context_length: int, heads: int, head_dim: int, probability: float
    ) -> int:
        """Elements of ``context_attention_backward``'s workspace: none, for any head that the kernels take."""
        check_head(self.launcher, head_dim, backward_bytes)
        return 0


def _call(
    queries: Array, keys: Array, heads: int, causal: bool, scale: float, probability: float, key: int
) -> AttentionCall:
    batch, length, width = queries.shape
    context_length = keys.shape[1]
    return AttentionCall(
        rows=batch,
        length=length,
        keys=context_length,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        causal=causal,
        scale=scale,
        query_stride=width,
        key_stride=width,
        key_head_stride=width // heads,
        key_row_stride=context_length * width,
        probability=probability,
        dropout_key=key,
    )
