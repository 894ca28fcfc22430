"""Attention of queries to keys and values that lie apart."""

from __future__ import annotations

from typing import Protocol

from mila.kernels.signatures.arrays import Array


class ContextAttentionKernels(Protocol):
    """Attention of queries (B, T, H D) to keys and values (B, S, H D).

    All of them are seen or, with ``causal``, keys 0 to t by query t, where T = S.
    """

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
        """``output (B, T, H D)``, and ``log_sum_exp (B, H, T)`` where backward needs it.

        With a ``probability`` above 0 weights are dropped as ``dropout`` does with ``key``: weight (b, h, t, s) is
        element ``((b H + h) T + t) S + s``. Backward takes the same key.
        """

    def context_attention_forward_workspace(
        self, length: int, context_length: int, heads: int, head_dim: int, probability: float
    ) -> int:
        """Elements of ``context_attention_forward``'s workspace: linear in both lengths, independent of the batch."""

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
        """Gradients of ``context_attention_forward``; weights are computed again, block by block."""

    def context_attention_backward_workspace(
        self, length: int, context_length: int, heads: int, head_dim: int, probability: float
    ) -> int:
        """Elements of ``context_attention_backward``'s workspace."""
