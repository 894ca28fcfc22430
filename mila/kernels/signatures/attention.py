"""Rotary positions and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mila.kernels.signatures.arrays import Array


class AttentionKernels(Protocol):
    """Rotary positions and attention over packed projections ``qkv (B, T, (H + 2 K) D)``: q, then k, then v heads."""

    def rope_tables(self, cosine: Array | None, sine: Array | None, frequencies: Sequence[float]) -> None:
        """Fill those given (positions, R / 2) from the angles ``position * frequencies[i]``, rounded once.

        ``frequencies``: R / 2 angles per position, in radians. Tables are never narrower than float32.
        """

    def rope(
        self,
        output: Array,
        x: Array,
        cosine: Array,
        sine: Array,
        starts: Sequence[int],
        heads: int,
        head_dim: int,
        inverse: bool,
        workspace: Array,
    ) -> None:
        """Rotate the first ``heads`` heads of ``x (B, T, W)``, copy the rest; ``output`` may be ``x``.

        ``(x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)``; ``inverse`` rotates back (the backward step). With
        rotary_dim < head_dim the pairs are (i, i + rotary_dim / 2) within the first rotary_dim elements of a head and
        the others pass unchanged. ``cosine`` and ``sine``: (positions, R / 2), float32 where ``x`` is narrower.
        """

    def rope_workspace(self, length: int, heads: int, head_dim: int) -> int:
        """Elements of ``rope``'s workspace."""

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
        """Attention of ``qkv`` to itself: ``output (B, T, H D)``, ``log_sum_exp (B, H, T)`` where backward needs it.

        Query head h reads key/value head ``h // (H / K)``. Key p is kept for query t when ``p <= t`` (causal) and, with
        ``window > 0``, ``p > t - window``.
        """

    def attention_forward_workspace(self, length: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``attention_forward``'s workspace: linear in ``length``, independent of the batch."""

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
        """Gradient of ``attention_forward``; probabilities are recomputed from ``log_sum_exp`` block by block."""

    def attention_backward_workspace(self, length: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``attention_backward``'s workspace."""

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
        """Append k and v of ``qkv (B, T, …)`` to ``keys``, ``values (B, K, S, D)`` at ``starts[b]``, then attend.

        Row b holds ``lengths[b]`` valid positions; outputs beyond them are zero and nothing is written to the cache for
        them. A query sees the positions before it that ``attention_forward`` lets it see.

        A cache is a ring: position p lies in slot ``p % S``, where it overwrites position ``p - S``. Without a window
        positions stay below S. With one they may go on for ever if ``S >= window - 1 + T``: a chunk then overwrites
        nothing that its own queries see. The caller sees to all this, and that the positions before ``starts[b]``
        within the window of its query are in the cache.
        """

    def attention_cached_workspace(
        self, length: int, capacity: int, heads: int, kv_heads: int, head_dim: int, window: int
    ) -> int:
        """Elements of ``attention_cached``'s workspace: at most linear in ``capacity``, no less for more positions."""
