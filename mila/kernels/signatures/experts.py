"""Choosing experts for rows, and moving rows to their experts and back."""

from __future__ import annotations

from typing import Protocol

from mila.kernels.signatures.arrays import Array


class ExpertKernels(Protocol):
    """Choosing experts for rows, and moving rows to their experts and back.

    Every row n of N has k different experts of E. Its *slots* are the numbers n k to n k + k - 1, one for each of them.
    An expert works on M slots, ``slots (M,)`` int32, which belong to M different rows; its ``x (M, C)`` has a row for
    each.
    """

    def top_k_forward(self, values: Array, indices: Array, x: Array, workspace: Array) -> None:
        """``values (N, k)``: the k largest of each row of ``x (N, E)``, largest first; ``indices (N, k)`` int32: where.

        Of equal values the one with the lower index comes first. NaN counts as largest, minus infinity as the smallest
        finite value. No index comes twice.
        """

    def top_k_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``top_k_forward``'s workspace; ``columns`` is E."""

    def top_k_backward(self, dx: Array, dvalues: Array, indices: Array) -> None:
        """``dx[n, indices[n, j]] = dvalues[n, j]``, everything else exactly 0."""

    def group_slots(self, slots: Array, experts: Array, count: int) -> list[int]:
        """``slots (N k,)`` int32: all slots, those of expert 0 first, then those of expert 1, …; each in order.

        ``experts (N, k)`` int32 are the experts of the slots. Returns ``count + 1`` bounds on the host: those of expert
        e stand from ``bounds[e]`` to ``bounds[e + 1]``.
        """

    def gather_rows(self, output: Array, x: Array, slots: Array, top_k: int) -> None:
        """``output[i] = x[slots[i] // top_k]`` for ``output (M, C)``, ``x (N, C)``."""

    def scatter_add_rows(
        self, output: Array, x: Array, weights: Array | None, slots: Array, top_k: int, workspace: Array
    ) -> None:
        """``output[slots[i] // top_k] += w[slots[i]] x[i]`` for ``output (N, C)``, ``x (M, C)``.

        ``w`` is the flattened ``weights (N, k)``, or 1 where there are none. Rows of ``output`` without a slot stay as
        they are.
        """

    def scatter_add_rows_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``scatter_add_rows``'s workspace for up to ``rows`` slots; ``columns`` is C."""

    def scatter_add_rows_backward(
        self, dx: Array, dweights: Array, dy: Array, x: Array, weights: Array, slots: Array, workspace: Array
    ) -> None:
        """``dx[i] = w[slots[i]] dy[n]``, ``dw[slots[i]] = sum(dy[n] x[i])`` with ``n = slots[i] // k``.

        ``dx (M, C)`` may be ``x (M, C)``; ``dy (N, C)``; ``w`` and ``dw`` are the flattened ``weights`` and ``dweights
        (N, k)``, whose other elements stay as they are.
        """

    def scatter_add_rows_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``scatter_add_rows_backward``'s workspace for up to ``rows`` slots; ``columns`` is C."""
