"""Scaled dot-product attention over packed projections, with grouped heads, windows and a key/value cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Self

from pydantic import Field, model_validator

from mila.core import BuildContext, ComponentConfig, ComponentType, LeafContext, Run
from mila.core.bound import Cursor
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
        kv_cache: whether an inference build keeps keys and values of earlier calls, with a window only as many as the
            window and one chunk reach; needs ``causal``.
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


class CachedRows:
    """What each row of a cache holds: the positions below ``held``, but for those that later ones have overwritten.

    A cache of S slots has lost all but the last S positions ever written since the row started at 0, also where the row
    went back since then. ``window``: how many positions, itself included, a position sees; 0 for all.
    """

    __slots__ = ("_before", "_slots", "_written", "held")

    def __init__(self, rows: int, slots: int, window: int) -> None:
        """All rows are empty."""
        self.held = [0] * rows
        self._written = [0] * rows
        self._slots = slots
        self._before = max(window - 1, 0)

    def lost(self, row: int) -> int:
        """How many positions from 0 on a row has lost."""
        return max(0, self._written[row] - self._slots)

    def earliest_start(self, row: int) -> int:
        """The first position whose window the row still holds; 0 where nothing is lost, or nothing lost is needed."""
        lost = self.lost(row)
        return lost + self._before if lost and self._before else 0

    def begin(self, starts: Sequence[int], lengths: Sequence[int]) -> None:
        """Positions are about to be written: true as well should the writing be interrupted."""
        for row, start in enumerate(starts):
            end = start + lengths[row]
            self.held[row] = start
            self._written[row] = max(end, self._written[row]) if start else end

    def end(self, starts: Sequence[int], lengths: Sequence[int]) -> None:
        """They have been written."""
        for row, start in enumerate(starts):
            self.held[row] = start + lengths[row]


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
        batch, length, _ = context.input_shapes["input"]
        self._max_seq_len = context.max_seq_len or length
        slots = self._slots(length, self._max_seq_len)
        self._rows = CachedRows(batch, slots, self._window)
        self._cache_shape = (batch, self.config.num_kv_heads, slots, self.config.head_dim)

    def earliest_start(self, row: int) -> int:
        """The smallest start from which a row of the cache can go on; a start of 0, which forgets the row, can always.

        It is 0 without a window, and while nothing was overwritten. Otherwise the sliding_window - 1 positions before
        the start must be among the last that were written, also where the row went back since then.

        Raises:
            LifecycleError: not built.
            ShapeError: the build has no such row.
        """
        self.require_built("earliest_start")
        if not 0 <= row < len(self._rows.held):
            raise ShapeError(f"{self.path}: expected a row from 0 to {len(self._rows.held) - 1}, got {row}")
        return self._rows.earliest_start(row)

    @property
    def accepts_prefill_size(self) -> bool:
        """Without a cache, a chunk would not see the chunks before it."""
        return self.config.kv_cache

    def check_run(self, run: Run) -> None:
        """A row of a cache goes on from what it holds, or from anywhere before that the cache still allows.

        Raises:
            ShapeError: a row that starts elsewhere.
        """
        if not self.has_buffer("keys"):
            return
        for row, start in enumerate(run.starts):
            held, earliest = self._rows.held[row], self._rows.earliest_start(row)
            if start and not earliest <= start <= held:
                lost = self._rows.lost(row)
                overwritten = f", the first {lost} of them overwritten" if lost else ""
                expected = f"0, or from {earliest} to {held}" if earliest else f"at most {held}"
                raise ShapeError(
                    f"{self.path}: the cache of row {row} holds {held} of at most {self._max_seq_len} positions"
                    f"{overwritten}; expected a start of {expected}, got {start}"
                )

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
            capacity = self._slots(length, context.max_seq_len)
            yield persistent("keys", (batch, kv_heads, capacity, size), context.dtype)
            yield persistent("values", (batch, kv_heads, capacity, size), context.dtype)
            elements = kernels.attention_cached_workspace(length, capacity, heads, kv_heads, size, self._window)
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
            self._window,
            self._scale,
            self.workspace(),
        )
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """One position against the cache of the only row."""
        if not self.has_buffer("keys"):
            return None
        qkv, config, rows = inputs[0], self.config, self._rows
        attend = self.kernels.bind_attention_cached(
            self.view("output", (1, 1, config.num_heads * config.head_dim)),
            self.workspace("keys").reshape(self._cache_shape),
            self.workspace("values").reshape(self._cache_shape),
            qkv,
            config.num_heads,
            self._window,
            self._scale,
            self.workspace(),
        )

        def step() -> None:
            starts, lengths = cursor.run.starts, cursor.run.lengths
            rows.begin(starts, lengths)
            attend(starts[0])
            rows.end(starts, lengths)

        return step

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
            self._window,
            self._scale,
            self.workspace("backward_workspace"),
        )
        return (dx,)

    @property
    def _scale(self) -> float:
        return self.config.head_dim**-0.5 if self.config.scale is None else self.config.scale

    @property
    def _window(self) -> int:
        return self.config.sliding_window or 0

    def _slots(self, length: int, max_seq_len: int) -> int:
        """Slots S of a row's cache: with a window, a ring that holds what it and a chunk of ``length`` reach."""
        window = self.config.sliding_window
        return max_seq_len if window is None else min(max_seq_len, window - 1 + length)

    def _attend_to_cache(self, run: Run, result: Array, qkv: Array) -> None:
        self._rows.begin(run.starts, run.lengths)
        self.kernels.attention_cached(
            result,
            self.workspace("keys").reshape(self._cache_shape),
            self.workspace("values").reshape(self._cache_shape),
            qkv,
            run.starts,
            run.lengths,
            self.config.num_heads,
            self._window,
            self._scale,
            self.workspace(),
        )
        self._rows.end(run.starts, run.lengths)
