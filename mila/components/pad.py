"""More elements at both ends of axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mila.core import ComponentConfig, ComponentType, LeafContext, Run
from mila.core.component import Component
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, gradient, output
from mila.memory.storage import Shape

_Count = Annotated[int, Field(ge=0)]


class PadConfig(ComponentConfig):
    """Config of :class:`Pad`.

    Attributes:
        pairs: how many elements come before and after, from the last axis backwards; never along the batch.
        mode: what they are: ``value``, the input mirrored at its edge, which is not repeated, or the edge itself.
        value: of the new elements, with ``constant``.
    """

    pairs: tuple[tuple[_Count, _Count], ...] = Field(min_length=1)
    mode: Literal["constant", "reflect", "replicate"] = "constant"
    value: float = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.value and self.mode != "constant":
            raise ValueError(f"value is for mode 'constant', got {self.value} with {self.mode!r}")
        return self


class Pad(Component[PadConfig]):
    """The input in the middle, and new elements at both ends of its last axes."""

    config_class = PadConfig
    component_type = ComponentType.PAD
    required_kernels = ("pad_forward", "pad_backward")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape, and what comes before and after."""
        return (self._padded(context.input_shape),)

    @property
    def accepts_prefill_size(self) -> bool:
        """Where there is an axis of positions, it is not the last."""
        return len(self.config.pairs) == 1

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output and gradient."""
        yield output(self._padded(context.input_shape), context.dtype)
        if context.is_training:
            yield gradient("input", context.input_shape, context.dtype)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Copy and fill."""
        (x,), config = inputs, self.config
        result = self.view("output", self._padded(x.shape))
        self.kernels.pad_forward(result, x, self._pads(x.shape), config.mode, config.value)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Every element collects the gradients of its copies."""
        dx = self.view("input.gradient", inputs[0].shape)
        self.kernels.pad_backward(dx, gradients[0], self._pads(dx.shape), self.config.mode)
        return (dx,)

    def _pads(self, shape: Shape) -> tuple[tuple[int, int], ...]:
        """One pair per axis, the first axis first."""
        pairs = self.config.pairs
        if len(shape) <= len(pairs):
            raise ShapeError(f"{self.path}: expected more than {len(pairs)} axes, one of them the batch, got {shape}")
        pads = (*((0, 0),) * (len(shape) - len(pairs)), *reversed(pairs))
        if self.config.mode == "reflect":
            for axis, (extent, pair) in enumerate(zip(shape, pads, strict=True)):
                if max(pair) >= extent:
                    raise ShapeError(
                        f"{self.path}: axis {axis} expected more than {max(pair)} elements to reflect, got {extent}"
                    )
        return pads

    def _padded(self, shape: Shape) -> Shape:
        return tuple(extent + sum(pair) for extent, pair in zip(shape, self._pads(shape), strict=True))
