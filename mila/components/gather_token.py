"""One position per row: that of the largest id, or of a certain one, such as the end-of-text token of CLIP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from mila.core import ComponentConfig, ComponentType, LeafContext, Port, Run
from mila.core.component import Component
from mila.core.shapes import require_rank
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, gradient, output
from mila.memory.storage import Shape


class GatherTokenConfig(ComponentConfig):
    """Config of :class:`GatherToken`.

    Attributes:
        mode: how the position is chosen; ``argmax``: the first of the largest id.
        token_id: the first position of this id instead, position 0 where there is none; an int64.
    """

    mode: Literal["argmax"] = "argmax"
    token_id: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)


class GatherToken(Component[GatherTokenConfig]):
    """``output[b] = x[b, argmax(ids[b])]``: x (B, T, C) and ids (B, T), int32 or int64, to (B, C).

    The first maximum wins; with ``token_id`` the first position of that id, and the first of all where there is none.
    Ids are compared, never looked up: any value is allowed. They have no gradient.
    """

    config_class = GatherTokenConfig
    component_type = ComponentType.GATHER_TOKEN
    ports = (Port("x"), Port("ids", is_ids=True))
    reads: ClassVar[tuple[str, ...]] = ("ids",)
    required_kernels = ("gather_token_forward", "gather_token_backward")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(B, T, C) and (B, T) to (B, C)."""
        x, ids = context.input_shapes
        batch, length, width = require_rank(self, x, "B, T, C")
        if ids != (batch, length):
            raise ShapeError(f"{self.path}: expected ids of shape {(batch, length)} for x of shape {x}, got {ids}")
        return ((batch, width),)

    @property
    def accepts_prefill_size(self) -> bool:
        """The position is one of the whole sequence."""
        return False

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """The output and the gradient of ``x``."""
        yield output(self.output_shapes(context)[0], context.dtype)
        if context.is_training:
            yield gradient("x", context.input_shape, context.dtype)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Copy one position per row."""
        x, ids = inputs
        result = self.view("output", (x.shape[0], x.shape[2]))
        self.kernels.gather_token_forward(result, x, ids, self.config.token_id)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The gradient goes back to the positions that were chosen; the others have exactly 0."""
        (dy,), ids = gradients, inputs[1]
        dx = self.view("x.gradient", (*ids.shape, dy.shape[1]))
        self.kernels.gather_token_backward(dx, dy, ids, self.config.token_id)
        return dx, None
