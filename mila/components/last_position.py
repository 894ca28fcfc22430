"""The last position of each row: all that a language model's head needs in inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mila.core import BuildContext, ComponentConfig, ComponentType, LeafContext, Overwrite, Run
from mila.core.bound import Cursor
from mila.core.component import Component
from mila.core.shapes import require_rank
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Over, gradient, output
from mila.memory.storage import Shape


class LastPositionConfig(ComponentConfig):
    """Nothing to say."""


class LastPosition(Component[LastPositionConfig]):
    """(B, T, C) to the last valid position (B, 1, C) in inference, to itself in training or with ``all_logits``.

    In training it shares its input's bytes, so that ``TrainingStep.logits`` can gather there without a buffer of its
    own.
    """

    config_class = LastPositionConfig
    component_type = ComponentType.LAST_POSITION
    required_kernels = ("gather_last", "copy")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(B, 1, C), or the input's shape."""
        batch, length, width = require_rank(self, context.input_shape, "B, T, C")
        return ((batch, length if self._keeps_all(context) else 1, width),)

    @property
    def accepts_prefill_size(self) -> bool:
        """The last position is one of the whole sequence."""
        return False

    def is_identity(self, context: LeafContext) -> bool:
        """Where all positions are asked for and none can be asked for alone."""
        return context.all_logits and not context.is_training

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output over the input and gradient over the gradient where all positions are kept and the graph allows it."""
        (shape,) = self.output_shapes(context)
        over = 0 if self._keeps_all(context) and context.overwritable[0] is Overwrite.FORWARD else None
        yield output(shape, context.dtype, over=over)
        if context.is_training:
            gradient_over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("input", context.input_shape, context.dtype, over=gradient_over)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Gather, or pass on."""
        (x,) = inputs
        context = self.build_context
        if run.last_only or not (context is None or self._keeps_all(context)):
            result = self.view("output", (x.shape[0], 1, x.shape[2]))
            self.kernels.gather_last(result, x, run.lengths)
            return result
        result = self.view("output", x.shape)
        self.kernels.copy(result, x)
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """Pass on the only position."""
        return self.kernels.bind_copy(self.view("output", inputs[0].shape), inputs[0])

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """In training every position was passed on."""
        dx = self.view("input.gradient", gradients[0].shape)
        self.kernels.copy(dx, gradients[0])
        return (dx,)

    @staticmethod
    def _keeps_all(context: BuildContext | LeafContext) -> bool:
        return context.is_training or context.all_logits
