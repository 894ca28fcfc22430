"""Arithmetic of whole arrays: differences, products, broadcast sums, bounds, learned factors."""

from __future__ import annotations

from typing import Protocol

from mila.kernels.signatures.arrays import Array


class ArithmeticKernels(Protocol):
    """Arithmetic of whole arrays: differences, products, broadcast sums, bounds, learned factors."""

    def subtract(self, output: Array, a: Array, b: Array) -> None:
        """``output = a - b``; equal shapes; ``output`` may be ``a`` or ``b``."""

    def multiply(self, output: Array, a: Array, b: Array) -> None:
        """``output = a * b``; equal shapes; ``output`` may be ``a`` or ``b``."""

    def broadcast_add(self, output: Array, a: Array, b: Array) -> None:
        """``output = a + b``; equal ranks, axes of extent 1 stretch; ``output`` may be whichever has its shape."""

    def broadcast_sum(self, dx: Array, dy: Array) -> None:
        """``dx = dy`` summed over the axes in which ``dx`` has extent 1; ``dx`` of the same shape may be ``dy``."""

    def clamp_forward(self, output: Array, x: Array, minimum: float, maximum: float) -> None:
        """``output = min(max(x, minimum), maximum)``, NaN stays; ``output`` may be ``x``."""

    def clamp_backward(self, dx: Array, dy: Array, x: Array, minimum: float, maximum: float) -> None:
        """``dx = dy`` where ``minimum <= x <= maximum``, else exactly 0; ``dx`` may be ``dy`` or ``x``."""

    def learned_scale_forward(self, output: Array, x: Array, gamma: Array) -> None:
        """``output = gamma[0] * x``; ``gamma (1,)``; ``output`` may be ``x``."""

    def learned_scale_backward(
        self, dx: Array, dgamma: Array | None, dy: Array, x: Array, gamma: Array, accumulate: bool
    ) -> None:
        """``dx = gamma[0] * dy`` and, where it is given, ``dgamma (1,) (+)= sum(dy * x)``; ``dx`` may be ``dy``."""

    def layer_scale_forward(self, output: Array, x: Array, gamma: Array) -> None:
        """``output = gamma * x`` along the last axis; ``gamma (C,)``; ``output`` may be ``x``."""

    def layer_scale_backward(
        self,
        dx: Array,
        dgamma: Array | None,
        dy: Array,
        x: Array,
        gamma: Array,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """``dx = gamma * dy``; ``dgamma (C,) (+)= sum(dy * x)`` over rows, where it is given; ``dx`` may be ``dy``."""

    def layer_scale_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``layer_scale_backward``'s workspace."""

    def matrix_product_forward(self, output: Array, a: Array, b: Array) -> None:
        """``output (B, N, M) = a (B, N, K) @ b (B, K, M)``."""

    def matrix_product_backward(self, da: Array, db: Array, dy: Array, a: Array, b: Array) -> None:
        """``db = a.T @ dy`` and then ``da = dy @ b.T``, matrix by matrix; ``da`` may be ``a``."""
