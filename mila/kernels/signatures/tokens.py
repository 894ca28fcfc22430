"""Gathering, prepending and pooling the positions of a sequence."""

from __future__ import annotations

from typing import Protocol

from mila.kernels.signatures.arrays import Array


class TokenKernels(Protocol):
    """Gathering, prepending and pooling the positions of a sequence."""

    def gather_token_forward(self, output: Array, x: Array, ids: Array, token_id: int | None = None) -> None:
        """``output[b] = x[b, p[b]]`` with ``p[b]`` the first position of the largest of ``ids[b]``.

        With ``token_id``, any int64, ``p[b]`` is the first position of that id, and 0 where there is none.

        ``output (B, C)``, ``x (B, T, C)``, ``ids (B, T)`` int32 or int64, any values; a copy, exact in every dtype.
        """

    def gather_token_backward(self, dx: Array, dy: Array, ids: Array, token_id: int | None = None) -> None:
        """``dx[b, p[b]] = dy[b]``, everything else exactly 0; ``p`` as in the forward kernel."""

    def prepend_forward(self, output: Array, x: Array, row: Array) -> None:
        """``output (B, T + 1, C)`` is ``row (C,)`` and then ``x (B, T, C)``, in every row of the batch."""

    def prepend_backward(self, dx: Array, drow: Array | None, dy: Array, accumulate: bool) -> None:
        """``dx = dy[:, 1:]`` and, where it is given, ``drow (+)= dy[:, 0].sum(axis=0)``."""

    def pool_maximum_forward(self, output: Array, positions: Array | None, x: Array) -> None:
        """``output (B, C) = x (B, T, C).max(axis=1)`` and, where given, the first position of each maximum.

        ``positions (B, C)`` int32. NaN counts as largest.
        """

    def pool_maximum_backward(self, dx: Array, dy: Array, positions: Array) -> None:
        """``dx[b, positions[b, c], c] = dy[b, c]``, everything else exactly 0."""
