"""Dropout whose masks are functions of seed, name and step (Srivastava et al. 2014)."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Run
from mila.core.component import Component
from mila.core.initializers import key_of
from mila.core.shapes import row_count
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, Over, gradient, output, workspace
from mila.memory.storage import Shape

_MASK_64 = (1 << 64) - 1


class DropoutConfig(ComponentConfig):
    """Config of :class:`Dropout`.

    Attributes:
        probability: share of elements that become zero; the others are divided by what is left.
    """

    probability: float = Field(default=0.1, ge=0, lt=1)


class Dropout(Component[DropoutConfig]):
    """Zeroes elements at random in training; absent where it would do nothing.

    The mask is not stored: backward draws it again from the same key.
    """

    config_class = DropoutConfig
    component_type = ComponentType.DROPOUT
    is_per_position = True
    is_random = True
    required_kernels = ("dropout", "copy")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        return (context.input_shape,)

    def is_identity(self, context: LeafContext) -> bool:
        """In inference, and at probability 0."""
        return not context.is_training or self.config.probability == 0

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output over the input, gradient over the output's gradient, where the graph allows it."""
        shape = context.input_shape
        yield output(shape, context.dtype, over=0 if context.overwritable[0] is Overwrite.FORWARD else None)
        if not self.is_identity(context):
            size = context.kernels.dropout_workspace(row_count(shape), shape[-1])
            yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.BOTH)
        if context.is_training:
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", shape, context.dtype, over=over)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Drop, or copy where dropout is off."""
        result = self.view("output", inputs[0].shape)
        self._apply(run, result, inputs[0])
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The same mask on the gradient."""
        dx = self.view("input.gradient", gradients[0].shape)
        self._apply(run, dx, gradients[0])
        return (dx,)

    def _apply(self, run: Run, result: Array, x: Array) -> None:
        if run.is_training and not self.is_eval_mode and self.config.probability > 0:
            key = key_of(f"{run.seed}/{self.state_path}/{run.step}") & _MASK_64
            self.kernels.dropout(result, x, self.config.probability, key, self.workspace())
        else:
            self.kernels.copy(result, x)
