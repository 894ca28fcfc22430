"""Token and position tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mila.kernels.signatures.arrays import Array


class EmbeddingKernels(Protocol):
    """Token and position tables."""

    def integer_range(self, ids: Array) -> tuple[int, int]:
        """Smallest and largest value of ``ids`` without narrowing; (0, -1) when there is none."""

    def first_outside(self, ids: Array, limit: int, except_for: int | None) -> int:
        """Flat index of the first id below 0 or from ``limit`` on that is not ``except_for``; -1 when there is none."""

    def embedding_forward(self, output: Array, table: Array, ids: Array, scale: float) -> None:
        """``output (N, C) = table[ids] * scale``; ids are already checked."""

    def embedding_forward_narrow(
        self, output: Array, table: Array, scales: Array | None, ids: Array, scale: float, workspace: Array
    ) -> None:
        """As above for a ``table (V, C)`` of a narrower dtype.

        float8_e4m3fn comes with ``scales (V,)`` float32, bfloat16 and float16 without.
        """

    def embedding_forward_narrow_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``embedding_forward_narrow``'s workspace."""

    def embedding_backward(
        self, dtable: Array, dy: Array, ids: Array, scale: float, accumulate: bool, workspace: Array
    ) -> None:
        """``dtable[ids] += scale * dy`` in row order; without ``accumulate`` the table is zeroed first."""

    def embedding_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``embedding_backward``'s workspace."""

    def embedding_backward_narrow(
        self, dtable: Array, dy: Array, ids: Array, scale: float, accumulate: bool, workspace: Array
    ) -> None:
        """As above for a ``dtable`` of bfloat16 or float16: each of its values is rounded once."""

    def embedding_backward_narrow_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``embedding_backward_narrow``'s workspace."""

    def position_forward(self, output: Array, x: Array, table: Array, starts: Sequence[int]) -> None:
        """``output[b, t] = x[b, t] + table[starts[b] + t]`` for ``x (B, T, C)``; ``output`` may be ``x``.

        ``table`` may be of a narrower dtype.
        """

    def position_backward(self, dtable: Array, dy: Array, starts: Sequence[int], accumulate: bool) -> None:
        """``dtable[starts[b] + t] += dy[b, t]``; without ``accumulate`` the table is zeroed first."""

    def gather_last(self, output: Array, x: Array, lengths: Sequence[int]) -> None:
        """``output[b, 0] = x[b, lengths[b] - 1]`` for ``x (B, T, C)``.

        ``output`` may be the first B C elements of ``x``.
        """
