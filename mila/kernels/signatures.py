"""The one table of kernel signatures that every backend implements.

Conventions, for every kernel:

* outputs come first, then saved values, then inputs, then scalars, then ``workspace``;
* arrays are C-contiguous and belong to the backend; results are written in place, and no array of their size is made;
* runtime sizes come from the arrays, never from build time; rows are all leading axes flattened;
* ``accumulate=False`` overwrites an output gradient, ``True`` adds to it;
* ``workspace`` is a flat array of the compute dtype with at least the elements that the ``…_workspace`` function of the
  same name returns; that size depends on shapes alone, never on the number of threads, so that a plan is the same on
  every machine;
* the letters are B batch, T sequence, C model width, V vocabulary, N rows (leading axes flattened), H query heads,
  K key/value heads, D head size.

Ids and targets are int32 or int64; everything else has the stored dtype of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class ElementwiseKernels(Protocol):
    """Activations, gated activations, residual sums, dropout, copies."""

    def copy(self, output: Array, x: Array) -> None:
        """``output = x``; equal shapes and dtypes."""

    def add_in_place(self, output: Array, x: Array) -> None:
        """``output += x``; equal shapes."""

    def activation_forward(
        self, output: Array, derivative: Array | None, x: Array, kind: str, alpha: float, workspace: Array
    ) -> None:
        """``output = f(x)`` and, where it is given, ``derivative = f'(x)``.

        ``derivative`` may be ``x`` itself (it is overwritten after use); ``output`` may be ``x`` when no derivative is
        asked for.
        Kinds: ``none relu gelu gelu_tanh quick_gelu silu tanh sigmoid leaky_relu mish`` (alpha: slope of leaky_relu).
        """

    def activation_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``activation_forward``'s workspace."""

    def activation_backward(self, dx: Array, dy: Array, derivative: Array) -> None:
        """``dx = dy * derivative``; ``dx`` may be ``dy`` or ``derivative``."""

    def gated_forward(self, output: Array, x: Array, kind: str, alpha: float, workspace: Array) -> None:
        """``output (N, F) = f(x[:, :F]) * x[:, F:]`` for ``x (N, 2F)``: contiguous halves, gate first."""

    def gated_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``gated_forward``'s workspace; ``columns`` is F."""

    def gated_backward(self, dx: Array, dy: Array, x: Array, kind: str, alpha: float, workspace: Array) -> None:
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


class LinearKernels(Protocol):
    """Matrix products of ``Linear``."""

    def linear_forward(self, output: Array, x: Array, weight: Array, bias: Array | None) -> None:
        """``output (N, O) = x (N, I) @ weight.T + bias`` for ``weight (O, I)``, ``bias (O,)``."""

    def linear_forward_per_channel(
        self, output: Array, x: Array, weight: Array, scales: Array, bias: Array | None, workspace: Array
    ) -> None:
        """As ``linear_forward`` for ``weight (O, I)`` float8_e4m3fn and ``scales (O,)`` float32, widened by tiles."""

    def linear_forward_per_channel_workspace(self, out_features: int, in_features: int) -> int:
        """Elements of ``linear_forward_per_channel``'s workspace."""

    def linear_backward_input(self, dx: Array, dy: Array, weight: Array) -> None:
        """``dx (N, I) = dy (N, O) @ weight``."""

    def linear_backward_weight(self, dweight: Array, dy: Array, x: Array, accumulate: bool, workspace: Array) -> None:
        """``dweight (O, I) (+)= dy.T @ x``."""

    def linear_backward_weight_workspace(self, rows: int, out_features: int, in_features: int) -> int:
        """Elements of ``linear_backward_weight``'s workspace."""

    def linear_backward_bias(self, dbias: Array, dy: Array, accumulate: bool, workspace: Array) -> None:
        """``dbias (O,) (+)= dy.sum(axis=0)``."""

    def linear_backward_bias_workspace(self, rows: int, out_features: int) -> int:
        """Elements of ``linear_backward_bias``'s workspace."""


class NormalizationKernels(Protocol):
    """Layer norm, RMS norm and softmax over the last axis (or an axis in the middle for softmax)."""

    def layer_norm_forward(
        self, output: Array, mean: Array, rstd: Array, x: Array, weight: Array, bias: Array | None, epsilon: float
    ) -> None:
        """``y = (x - mean) * rstd * weight + bias``, biased variance; ``mean``, ``rstd``: (N,).

        ``output`` may be ``x``.
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
        weight: Array,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """``dx = rstd (g - mean(g) - xhat mean(g xhat))``, ``g = dy weight``; ``None`` for a frozen parameter.

        ``accumulate`` speaks of ``dweight`` and ``dbias``.
        """

    def layer_norm_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``layer_norm_backward``'s workspace."""

    def rms_norm_forward(
        self,
        output: Array,
        rstd: Array,
        x: Array,
        weight: Array,
        bias: Array | None,
        epsilon: float,
        unit_offset: float,
        workspace: Array,
    ) -> None:
        """``y = x * rstd * (weight + unit_offset) + bias``, ``rstd = 1 / sqrt(mean(x²) + epsilon)``.

        ``output`` may be ``x``.
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
        weight: Array,
        unit_offset: float,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """``dx = rstd g - x rstd³ mean(g x)``, ``g = dy (weight + unit_offset)``."""

    def rms_norm_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``rms_norm_backward``'s workspace."""

    def softmax_forward(self, output: Array, x: Array, axis: int, workspace: Array) -> None:
        """Max-shifted softmax along ``axis``; ``output`` may be ``x``."""

    def softmax_backward(self, dx: Array, dy: Array, y: Array, axis: int, workspace: Array) -> None:
        """``dx = y (dy - sum(dy y))``; ``dx`` may be ``dy``."""

    def softmax_workspace(self, shape: Sequence[int], axis: int) -> int:
        """Elements of the workspace of both softmax kernels."""


class EmbeddingKernels(Protocol):
    """Token and position tables."""

    def integer_range(self, ids: Array) -> tuple[int, int]:
        """Smallest and largest value of ``ids`` without narrowing; (0, -1) when there is none."""

    def first_outside(self, ids: Array, limit: int, except_for: int | None) -> int:
        """Flat index of the first id below 0 or from ``limit`` on that is not ``except_for``; -1 when there is none."""

    def embedding_forward(self, output: Array, table: Array, ids: Array, scale: float) -> None:
        """``output (N, C) = table[ids] * scale``; ids are already checked."""

    def embedding_forward_per_channel(
        self, output: Array, table: Array, scales: Array, ids: Array, scale: float, workspace: Array
    ) -> None:
        """As above for ``table (V, C)`` float8_e4m3fn with ``scales (V,)`` float32."""

    def embedding_forward_per_channel_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``embedding_forward_per_channel``'s workspace."""

    def embedding_backward(self, dtable: Array, dy: Array, ids: Array, scale: float, accumulate: bool) -> None:
        """``dtable[ids] += scale * dy`` in row order; without ``accumulate`` the table is zeroed first."""

    def position_forward(self, output: Array, x: Array, table: Array, starts: Sequence[int]) -> None:
        """``output[b, t] = x[b, t] + table[starts[b] + t]`` for ``x (B, T, C)``; ``output`` may be ``x``."""

    def position_backward(self, dtable: Array, dy: Array, starts: Sequence[int], accumulate: bool) -> None:
        """``dtable[starts[b] + t] += dy[b, t]``; without ``accumulate`` the table is zeroed first."""

    def gather_last(self, output: Array, x: Array, lengths: Sequence[int]) -> None:
        """``output[b, 0] = x[b, lengths[b] - 1]`` for ``x (B, T, C)``.

        ``output`` may be the first B C elements of ``x``.
        """


class AttentionKernels(Protocol):
    """Rotary positions and attention over packed projections ``qkv (B, T, (H + 2 K) D)``: q, then k, then v heads."""

    def rope_tables(self, cosine: Array | None, sine: Array | None, theta: float) -> None:
        """Fill those given (positions, R / 2) from the angles ``position * theta ** (-2 i / R)``, rounded once."""

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
        the others pass unchanged.
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
        them.
        """

    def attention_cached_workspace(self, length: int, capacity: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Elements of ``attention_cached``'s workspace: at most linear in ``capacity``."""


class LossKernels(Protocol):
    """Fused softmax cross-entropy."""

    def cross_entropy_forward(
        self,
        loss: Array,
        log_sum_exp: Array,
        logits: Array,
        targets: Array,
        ignore_index: int | None,
        workspace: Array,
    ) -> None:
        """``loss (1,)`` = mean of ``log_sum_exp (N,) - logits[target]`` over valid targets; 0 when there is none."""

    def cross_entropy_backward(
        self,
        dlogits: Array,
        log_sum_exp: Array,
        dloss: Array,
        logits: Array,
        targets: Array,
        ignore_index: int | None,
    ) -> None:
        """``dlogits (N, V) = dloss (softmax - onehot) / valid``, rows of ignored targets zero; it may be ``logits``."""

    def cross_entropy_forward_workspace(self, rows: int, vocabulary: int) -> int:
        """Elements of ``cross_entropy_forward``'s workspace."""


class OptimizerKernels(Protocol):
    """Flat passes over whole arenas."""

    def adamw(
        self,
        parameters: Array,
        first_moment: Array,
        second_moment: Array,
        gradients: Array,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
        step: int,
        gradient_scale: float,
        workspace: Array,
    ) -> None:
        """One decoupled AdamW step (Loshchilov & Hutter 2019) over flat arrays of one length, ``step`` from 1.

        The stored moments are ``m / (1 - beta1)`` and ``v / (1 - beta2)``: two passes fewer per step, same result.
        Gradients are used times ``gradient_scale`` and left as they are.
        """

    def adamw_workspace(self, elements: int) -> int:
        """Elements of ``adamw``'s workspace."""

    def global_norm(self, gradients: Array) -> float:
        """Euclidean norm of a flat array, tiles summed in float64; infinite or NaN exactly when an element is."""

    def first_non_finite(self, x: Array) -> int:
        """Flat index of the first element that is not finite, or -1."""


class Kernels(
    ElementwiseKernels,
    LinearKernels,
    NormalizationKernels,
    EmbeddingKernels,
    AttentionKernels,
    LossKernels,
    OptimizerKernels,
    Protocol,
):
    """Everything a backend offers."""

    #: Stored dtypes of networks that the backend computes in.
    dtypes: tuple[np.dtype[Any], ...]
