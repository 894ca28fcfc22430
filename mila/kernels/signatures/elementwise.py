"""Activations, gated activations, residual sums, dropout, copies."""

from __future__ import annotations

from typing import Protocol

from mila.kernels.signatures.activation_function import ActivationFunction
from mila.kernels.signatures.arrays import Array


class ElementwiseKernels(Protocol):
    """Activations, gated activations, residual sums, dropout, copies."""

    def copy(self, output: Array, x: Array) -> None:
        """``output = x``; equal shapes and dtypes."""

    def cast(self, output: Array, x: Array) -> None:
        """``output = x``; equal shapes, float dtypes. Rounds to nearest, ties to even, overflows to infinity."""

    def fill(self, output: Array, value: float) -> None:
        """``output = value``, for any dtype."""

    def add_in_place(self, output: Array, x: Array) -> None:
        """``output += x``; equal shapes. An ``output`` of a narrower dtype than the sums is rounded once."""

    def activation_forward(
        self, output: Array, derivative: Array | None, x: Array, function: ActivationFunction, workspace: Array
    ) -> None:
        """``output = f(x)`` and, where it is given, ``derivative = f'(x)``.

        ``derivative`` may be ``x`` itself (it is overwritten after use); ``output`` may be ``x`` when no derivative is
        asked for.
        """

    def activation_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``activation_forward``'s workspace."""

    def activation_backward(self, dx: Array, dy: Array, derivative: Array) -> None:
        """``dx = dy * derivative``; ``dx`` may be ``dy`` or ``derivative``."""

    def gated_forward(self, output: Array, x: Array, function: ActivationFunction, workspace: Array) -> None:
        """``output (N, F) = f(x[:, :F]) * x[:, F:]`` for ``x (N, 2F)``: contiguous halves, gate first."""

    def gated_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``gated_forward``'s workspace; ``columns`` is F."""

    def gated_backward(self, dx: Array, dy: Array, x: Array, function: ActivationFunction, workspace: Array) -> None:
        """``dx[:, :F] = dy f'(gate) up``, ``dx[:, F:] = dy f(gate)``; ``dx`` may be ``x``."""

    def gated_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``gated_backward``'s workspace; ``columns`` is F."""

    def residual_forward(self, output: Array, a: Array, b: Array, scale: float) -> None:
        """``output = a + scale * b``; ``output`` may be ``a`` or ``b``."""

    def scale(self, output: Array, x: Array, factor: float) -> None:
        """``output = factor * x``; ``output`` may be ``x``."""

    def dropout(self, output: Array, x: Array, probability: float, key: int, workspace: Array) -> None:
        """``output = x * mask / (1 - p)``; ``output`` may be ``x``. Forward (on x) and backward (on dy) use one key.

        The mask of flat element i is a pure function of (key, i): bit mixing of SplitMix64 on ``key + (i + 1) *
        0x9E3779B97F4A7C15`` (mod 2**64), kept where the upper 32 bits of the result are at least ``round(p * 2**32)``.
        ``key`` is a 64-bit integer.
        """

    def dropout_workspace(self, rows: int, columns: int) -> int:
        """Elements (of the stored dtype) of ``dropout``'s workspace, which holds 64-bit integers too."""
