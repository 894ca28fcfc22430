"""Steps of decoding: kernels for one position of one row, bound to their arrays ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from mila.kernels.signatures.activation_function import ActivationFunction
from mila.kernels.signatures.arrays import Array

#: A kernel with all its arguments; ``BoundAt`` still takes the position of the token.
Bound = Callable[[], object]
BoundAt = Callable[[int], object]


class SingleRowKernels(Protocol):
    """What a token costs besides its matrix products is mostly the preparation of calls; binding does that once.

    Each ``bind_…`` takes the arguments of the kernel of the same name, whose arrays hold a single row, and returns what
    runs it on them as often as it is called. Results are those of the kernel, but for rounding. Bound kernels are
    called inside a :meth:`region`, one at a time.
    """

    def region(self) -> AbstractContextManager[None]:
        """What bound kernels run in: prepared once for all of them."""

    def bind_linear_forward(self, output: Array, x: Array, weight: Array, bias: Array | None) -> Bound:
        """``output (1, O) = x (1, I) @ weight.T + bias``."""

    def bind_layer_norm_forward(
        self, output: Array, x: Array, weight: Array | None, bias: Array | None, epsilon: float
    ) -> Bound:
        """``layer_norm_forward`` without its statistics."""

    def bind_rms_norm_forward(
        self,
        output: Array,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        epsilon: float,
        unit_offset: float,
        workspace: Array,
    ) -> Bound:
        """``rms_norm_forward`` without its statistics."""

    def bind_head_norm_forward(
        self,
        output: Array,
        x: Array,
        query_weight: Array,
        key_weight: Array,
        heads: int,
        kv_heads: int,
        epsilon: float,
        workspace: Array,
    ) -> Bound:
        """``head_norm_forward`` without its statistics."""

    def bind_activation_forward(self, output: Array, x: Array, function: ActivationFunction, workspace: Array) -> Bound:
        """``activation_forward`` without a derivative."""

    def bind_gated_forward(self, output: Array, x: Array, function: ActivationFunction, workspace: Array) -> Bound:
        """``output (1, F) = f(x[:, :F]) * x[:, F:]``."""

    def bind_residual_forward(self, output: Array, a: Array, b: Array, scale: float) -> Bound:
        """``output = a + scale * b``."""

    def bind_position_forward(self, output: Array, x: Array, table: Array) -> BoundAt:
        """``output = x + table[position]``."""

    def bind_rope(
        self, output: Array, x: Array, cosine: Array, sine: Array, heads: int, head_dim: int, workspace: Array
    ) -> BoundAt:
        """``rope`` of the only position, forward."""

    def bind_attention_cached(
        self,
        output: Array,
        keys: Array,
        values: Array,
        qkv: Array,
        heads: int,
        window: int,
        scale: float,
        workspace: Array,
    ) -> BoundAt:
        """``attention_cached`` for one position of row 0 of ``keys``, ``values`` ``(B, K, S, D)``."""

    def bind_copy(self, output: Array, x: Array) -> Bound:
        """``output = x``."""
