"""Scaled dot-product attention over packed projections, with grouped heads, windows and a key/value cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from pydantic import Field, model_validator

from mila.core import BuildContext, ComponentConfig, ComponentType, LeafContext, Run
from mila.core.component import Component
from mila.core.shapes import require_rank, require_width
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, gradient, output, persistent, saved, workspace
from mila.memory.storage import Shape


class AttentionConfig(ComponentConfig):
    """Config of :class:`Attention`.

    Attributes:
        num_heads: query heads H.
        num_kv_heads: key/value heads K, a divisor of H; each serves H / K query heads.
        head_dim: size D of a head.
        causal: whether a position sees only itself and those before it.
        sliding_window: how many positions, itself included, a position sees at most; all by default.
        scale: factor of the scores; 1/sqrt(D) by default.
        kv_cache: whether an inference build keeps keys and values of earlier calls; needs ``causal``.
    """

    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    causal: bool = True
    sliding_window: int | None = Field(default=None, gt=0)
    scale: float | None = Field(default=None, gt=0)
    kv_cache: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} must divide num_heads {self.num_heads}")
        if self.kv_cache and not self.causal:
            raise ValueError("kv_cache needs causal attention")
        return self

    @property
    def packed_width(self) -> int:
        """Width (H + 2 K) D of the input."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


class Attention(Component[AttentionConfig]):
    """Attention of packed q, k, v heads (B, T, (H + 2 K) D) to (B, T, H D), block by block.

    No matrix of T x T scores of all heads exists: forward keeps one number per row and head, and backward computes the
    probabilities again (Dao et al. 2022).
    """

    config_class = AttentionConfig
    component_type = ComponentType.ATTENTION
    reads: ClassVar[tuple[str, ...]] = ("input", "output")
    required_kernels = ("attention_forward", "attention_backward", "attention_cached")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(B, T, (H + 2 K) D) to (B, T, H D)."""
        shape = require_width(
            self, require_rank(self, context.input_shape, "B, T, (H + 2 K) D"), self.config.packed_width
        )
        return ((*shape[:2], self.config.num_heads * self.config.head_dim),)

    def default_prefill_size(self, length: int) -> int:
        """One position where a cache holds the others."""
        return 1 if self.config.kv_cache else length

    def on_building(self, context: BuildContext) -> None:
        """The cache is empty."""
        self._filled: dict[int, int] = {}

    @property
    def accepts_prefill_size(self) -> bool:
        """Without a cache, a chunk would not see the chunks before it."""
        return self.config.kv_cache

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output, row statistics or cache, and blocks of scores."""
        (batch, length, _), config, kernels = context.input_shape, self.config, context.kernels
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        yield output((batch, length, heads * size), context.dtype)
        if context.is_training:
            yield saved("log_sum_exp", (batch, heads, length), context.statistics_dtype)
            yield gradient("input", context.input_shape, context.dtype)
            elements = kernels.attention_backward_workspace(length, heads, kv_heads, size)
            yield workspace("backward_workspace", (elements,), context.statistics_dtype, during=Lifetime.BACKWARD)
        if config.kv_cache and not context.is_training:
            capacity = context.max_seq_len
            yield persistent("keys", (batch, kv_heads, capacity, size), context.dtype)
            yield persistent("values", (batch, kv_heads, capacity, size), context.dtype)
            elements = kernels.attention_cached_workspace(length, capacity, heads, kv_heads, size)
        else:
            elements = kernels.attention_forward_workspace(length, heads, kv_heads, size)
        yield workspace("workspace", (elements,), context.statistics_dtype, during=Lifetime.FORWARD)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Attend to this call's positions or, with a cache, to all positions kept so far."""
        (qkv,), config = inputs, self.config
        batch, length, _ = qkv.shape
        result = self.view("output", (batch, length, config.num_heads * config.head_dim))
        if self.has_buffer("keys"):
            self._attend_to_cache(run, result, qkv)
            return result
        if not config.causal and any(valid < length for valid in run.lengths):
            raise ShapeError(f"{self.path}: without a causal mask rows would see padding; expected rows of {length}")
        statistics = (
            self.view("log_sum_exp", (batch, config.num_heads, length)) if self.has_buffer("log_sum_exp") else None
        )
        self.kernels.attention_forward(
            result,
            statistics,
            qkv,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.causal,
            config.sliding_window or 0,
            self._scale,
            self.workspace(),
        )
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Gradient of the packed projections."""
        (qkv,), (dy,), config = inputs, gradients, self.config
        dx = self.view("input.gradient", qkv.shape)
        self.kernels.attention_backward(
            dx,
            self.view("log_sum_exp", (qkv.shape[0], config.num_heads, qkv.shape[1])),
            dy,
            self.view("output", dy.shape),
            qkv,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.causal,
            config.sliding_window or 0,
            self._scale,
            self.workspace("backward_workspace"),
        )
        return (dx,)

    @property
    def _scale(self) -> float:
        return self.config.head_dim**-0.5 if self.config.scale is None else self.config.scale

    def _attend_to_cache(self, run: Run, result: Array, qkv: Array) -> None:
        context, config = self.build_context, self.config
        batch = 0 if context is None else context.input_shapes["input"][0]
        cache = (batch, config.num_kv_heads, -1, config.head_dim)
        keys, values = self.workspace("keys").reshape(cache), self.workspace("values").reshape(cache)
        self._advance(run, keys.shape[2])
        self.kernels.attention_cached(
            result,
            keys,
            values,
            qkv,
            run.starts,
            run.lengths,
            config.num_heads,
            config.sliding_window or 0,
            self._scale,
            self.workspace(),
        )

    def _advance(self, run: Run, capacity: int) -> None:
        """Note how far each row is filled; a row goes on from what it holds, or from anywhere before."""
        for row, (start, length) in enumerate(zip(run.starts, run.lengths, strict=True)):
            held = self._filled.get(row, 0)
            if start > held or start + length > capacity:
                raise ShapeError(
                    f"{self.path}: the cache of row {row} holds {held} of at most {capacity} positions; "
                    f"expected a start of at most {held}, got positions {start} to {start + length}"
                )
        for row, (start, length) in enumerate(zip(run.starts, run.lengths, strict=True)):
            self._filled[row] = start + length
