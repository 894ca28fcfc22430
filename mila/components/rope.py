"""Rotary positions (Su et al. 2021) on query and key heads, packed or apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from mila.components.positions import blocks_within, require_positions
from mila.components.rope_scaling import RopeScaling
from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Run
from mila.core.bound import Cursor
from mila.core.component import Component
from mila.core.shapes import require_rank, require_width
from mila.kernels.signatures import Array, Kernels
from mila.memory.declarations import Declaration, Initializer, Lifetime, Over, gradient, output, table, workspace
from mila.memory.storage import Shape


class RopeConfig(ComponentConfig):
    """Config of :class:`Rope`.

    Attributes:
        num_heads: query heads H.
        num_kv_heads: key heads K, and as many value heads, which pass unchanged; 0 where the input is queries alone, or
            keys alone.
        head_dim: size D of a head.
        theta: base of the wavelengths.
        rotary_dim: how much of each head turns; all of it by default.
        scaling: of the frequencies ``theta ** (-2 i / rotary_dim)``; none by default.
        max_seq_len: the longest sequence allowed.
    """

    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(ge=0)
    head_dim: int = Field(gt=0)
    theta: float = Field(default=10000.0, gt=0)
    rotary_dim: int | None = Field(default=None, gt=0)
    scaling: RopeScaling | None = None
    max_seq_len: int = Field(gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.turning_dim % 2 or self.turning_dim > self.head_dim:
            raise ValueError(f"rotary_dim must be even and at most head_dim {self.head_dim}, got {self.turning_dim}")
        return self

    @property
    def turning_dim(self) -> int:
        """How many elements of each head turn."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def frequencies(self) -> tuple[float, ...]:
        """Radians per position of each pair, after scaling."""
        half = self.turning_dim // 2
        unscaled = np.float64(self.theta) ** (np.arange(half, dtype=np.float64) * (-1.0 / half))
        return tuple((unscaled if self.scaling is None else self.scaling.scaled(unscaled)).tolist())

    @property
    def packed_width(self) -> int:
        """Width (H + 2 K) D of the input."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


class Rope(Component[RopeConfig]):
    """Turns the pairs (i, i + rotary_dim / 2) of every query and key head of (B, T, (H + 2 K) D) by position."""

    config_class = RopeConfig
    component_type = ComponentType.ROPE
    is_per_position = True
    required_kernels = ("rope", "rope_tables")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        shape = require_width(
            self, require_rank(self, context.input_shape, "B, T, (H + 2 K) D"), self.config.packed_width
        )
        return (require_positions(self, shape, context.max_seq_len, self.config.max_seq_len),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Tables shared by all layers; output and gradient in place where the graph allows it."""
        shape, config = context.input_shape, self.config
        table_shape = (max(shape[1], context.max_seq_len), config.turning_dim // 2)
        # Angles of float32, whatever the network is stored in: bfloat16 would turn everything by up to 1/256 too much.
        dtype = context.statistics_dtype
        key = ("rope", config.theta, config.scaling, table_shape, dtype.name)
        for name in ("cosine", "sine"):
            yield table(name, table_shape, dtype, (*key, name), self._table(context.kernels, name == "sine"))
        yield output(shape, context.dtype, over=0 if context.overwritable[0] is Overwrite.FORWARD else None)
        size = context.kernels.rope_workspace(shape[1], self._turning_heads, config.head_dim)
        yield workspace("workspace", (size,), dtype, during=Lifetime.BOTH)
        if context.is_training:
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", shape, context.dtype, over=over)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Turn."""
        result = self.view("output", inputs[0].shape)
        self._turn(run, result, inputs[0], inverse=False)
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """Turn one position."""
        (x,), config, half = inputs, self.config, self.config.turning_dim // 2
        cosine, sine = self.workspace("cosine").reshape(-1, half), self.workspace("sine").reshape(-1, half)
        turn = self.kernels.bind_rope(
            self.view("output", x.shape), x, cosine, sine, self._turning_heads, config.head_dim, self.workspace()
        )
        return lambda: turn(cursor.position)

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Turn the gradient back."""
        dx = self.view("input.gradient", gradients[0].shape)
        self._turn(run, dx, gradients[0], inverse=True)
        return (dx,)

    @property
    def _turning_heads(self) -> int:
        return self.config.num_heads + self.config.num_kv_heads

    def _turn(self, run: Run, result: Array, x: Array, *, inverse: bool) -> None:
        half = self.config.turning_dim // 2
        cosine, sine = self.workspace("cosine").reshape(-1, half), self.workspace("sine").reshape(-1, half)
        heads, size = self._turning_heads, self.config.head_dim
        for rows, length, starts in blocks_within(run, x.shape[1], len(cosine)):
            inside, outside = (rows, slice(0, length)), (rows, slice(length, None))
            self.kernels.rope(result[inside], x[inside], cosine, sine, starts, heads, size, inverse, self.workspace())
            self.kernels.copy(result[outside], x[outside])

    def _table(self, kernels: Kernels, is_sine: bool) -> Initializer:
        frequencies = self.config.frequencies

        def fill(array: Array, generator: object) -> None:
            kernels.rope_tables(None if is_sine else array, array if is_sine else None, frequencies)

        return fill
