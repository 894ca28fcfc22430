"""Matrix products."""

from __future__ import annotations

from typing import Protocol

from mila.kernels.signatures.arrays import Array


class LinearKernels(Protocol):
    """Matrix products of ``Linear``."""

    def linear_forward(self, output: Array, x: Array, weight: Array, bias: Array | None) -> None:
        """``output (N, O) = x (N, I) @ weight.T + bias`` for ``weight (O, I)``, ``bias (O,)``."""

    def linear_forward_narrow(
        self, output: Array, x: Array, weight: Array, scales: Array | None, bias: Array | None, workspace: Array
    ) -> None:
        """As ``linear_forward`` for a ``weight (O, I)`` of a narrower dtype, widened by tiles.

        float8_e4m3fn comes with ``scales (O,)`` float32, bfloat16 and float16 without.
        """

    def linear_forward_narrow_workspace(self, out_features: int, in_features: int) -> int:
        """Elements of ``linear_forward_narrow``'s workspace."""

    def linear_backward_input(self, dx: Array, dy: Array, weight: Array) -> None:
        """``dx (N, I) = dy (N, O) @ weight``."""

    def linear_backward_input_narrow(self, dx: Array, dy: Array, weight: Array, workspace: Array) -> None:
        """As ``linear_backward_input`` for a bfloat16 or float16 ``weight (O, I)``, widened by tiles."""

    def linear_backward_input_narrow_workspace(self, rows: int, out_features: int, in_features: int) -> int:
        """Elements of ``linear_backward_input_narrow``'s workspace."""

    def linear_backward_weight(self, dweight: Array, dy: Array, x: Array, accumulate: bool, workspace: Array) -> None:
        """``dweight (O, I) (+)= dy.T @ x``; a ``dweight`` of a narrower dtype is rounded once."""

    def linear_backward_weight_workspace(self, rows: int, out_features: int, in_features: int) -> int:
        """Elements of ``linear_backward_weight``'s workspace."""

    def linear_backward_bias(self, dbias: Array, dy: Array, accumulate: bool, workspace: Array) -> None:
        """``dbias (O,) (+)= dy.sum(axis=0)``."""

    def linear_backward_bias_workspace(self, rows: int, out_features: int) -> int:
        """Elements of ``linear_backward_bias``'s workspace."""
