"""Mean and sum along an axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from pydantic import Field

from mila.core import ComponentConfig, ComponentType, LeafContext, Run
from mila.core.component import Component
from mila.core.shapes import require_axis
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, gradient, output
from mila.memory.storage import Shape


class ReductionConfig(ComponentConfig):
    """What the configs of :class:`Mean` and :class:`Sum` have in common.

    Attributes:
        dim: the axis that is summed over, 1 to 3; 0 is the batch.
        keepdim: whether the axis stays, with extent 1.
    """

    dim: int = Field(ge=1, le=3)
    keepdim: bool = False


ReductionConfigT = TypeVar("ReductionConfigT", bound=ReductionConfig)


class Reduction(Component[ReductionConfigT]):
    """Base of ``factor * x.sum(dim)``, where the factor follows from the extent."""

    required_kernels = ("sum_axis", "spread_axis")

    def factor(self, extent: int) -> float:
        """The factor of a sum of ``extent`` elements."""
        raise NotImplementedError

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape without the axis, or with extent 1 there."""
        return (self._reduced(context.input_shape),)

    @property
    def accepts_prefill_size(self) -> bool:
        """Axis 1 may be that of the positions."""
        return self.config.dim != 1

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output and gradient."""
        yield output(self._reduced(context.input_shape), context.dtype)
        if context.is_training:
            yield gradient("input", context.input_shape, context.dtype)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Add up."""
        (x,), dim = inputs, self.config.dim
        result = self.view("output", self._reduced(x.shape))
        self.kernels.sum_axis(result, x, dim, self.factor(x.shape[dim]))
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The same to every element."""
        dx, dim = self.view("input.gradient", inputs[0].shape), self.config.dim
        self.kernels.spread_axis(dx, gradients[0], dim, self.factor(dx.shape[dim]))
        return (dx,)

    def _reduced(self, shape: Shape) -> Shape:
        dim = require_axis(self, shape, self.config.dim)
        return (*shape[:dim], *(1,) * self.config.keepdim, *shape[dim + 1 :])


class MeanConfig(ReductionConfig):
    """Config of :class:`Mean`."""


class Mean(Reduction[MeanConfig]):
    """The mean over the elements of an axis, all that a call gives it."""

    config_class = MeanConfig
    component_type = ComponentType.MEAN

    def factor(self, extent: int) -> float:
        """One share."""
        return 1.0 / extent


class SumConfig(ReductionConfig):
    """Config of :class:`Sum`."""


class Sum(Reduction[SumConfig]):
    """The sum over the elements of an axis, all that a call gives it."""

    config_class = SumConfig
    component_type = ComponentType.SUM

    def factor(self, extent: int) -> float:
        """Whole shares."""
        return 1.0
