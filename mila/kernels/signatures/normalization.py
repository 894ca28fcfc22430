"""Norms and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mila.kernels.signatures.arrays import Array


class NormalizationKernels(Protocol):
    """Layer norm, RMS norm and softmax over the last axis (or an axis in the middle for softmax)."""

    def layer_norm_forward(
        self,
        output: Array,
        mean: Array,
        rstd: Array,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        epsilon: float,
    ) -> None:
        """``y = (x - mean) * rstd * weight + bias``, biased variance; ``mean``, ``rstd``: (N,).

        No weight is a weight of ones; ``output`` may be ``x``.
        """

    def layer_norm_backward(
        self,
        dx: Array,
        dweight: Array | None,
        dbias: Array | None,
        mean: Array,
        rstd: Array,
        dy: Array,
        x: Array,
        weight: Array | None,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """``dx = rstd (g - mean(g) - xhat mean(g xhat))``, ``g = dy weight``.

        ``dweight`` and ``dbias`` are each ``None`` where that parameter is frozen or does not exist; ``accumulate``
        speaks of them.
        """

    def layer_norm_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``layer_norm_backward``'s workspace."""

    def rms_norm_forward(
        self,
        output: Array,
        rstd: Array,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        epsilon: float,
        unit_offset: float,
        workspace: Array,
    ) -> None:
        """``y = x * rstd * (weight + unit_offset) + bias``, ``rstd = 1 / sqrt(mean(x²) + epsilon)``.

        Without a weight there is no factor, and ``unit_offset`` counts for nothing; ``output`` may be ``x``.
        """

    def rms_norm_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``rms_norm_forward``'s workspace."""

    def rms_norm_backward(
        self,
        dx: Array,
        dweight: Array | None,
        dbias: Array | None,
        rstd: Array,
        dy: Array,
        x: Array,
        weight: Array | None,
        unit_offset: float,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """``dx = rstd g - x rstd³ mean(g x)``, ``g = dy (weight + unit_offset)``.

        ``dweight`` and ``dbias`` are each ``None`` where that parameter is frozen or does not exist.
        """

    def rms_norm_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``rms_norm_backward``'s workspace."""

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

    def head_norm_forward_workspace(self, rows: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``head_norm_forward``'s workspace."""

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

    def head_norm_backward_workspace(self, rows: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``head_norm_backward``'s workspace."""

    def softmax_forward(self, output: Array, x: Array, axis: int, workspace: Array) -> None:
        """Max-shifted softmax along ``axis``; ``output`` may be ``x``."""

    def softmax_backward(self, dx: Array, dy: Array, y: Array, axis: int, workspace: Array) -> None:
        """``dx = y (dy - sum(dy y))``; ``dx`` may be ``dy``."""

    def softmax_workspace(self, shape: Sequence[int], axis: int) -> int:
        """Elements of the workspace of both softmax kernels."""
