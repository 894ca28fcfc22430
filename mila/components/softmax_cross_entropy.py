"""Softmax cross-entropy, fused: probabilities are never stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from mila.components.token_ids import check_token_ids
from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Port, Run
from mila.core.component import Component
from mila.core.shapes import row_count
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, Over, gradient, output, saved, workspace
from mila.memory.storage import Shape


class SoftmaxCrossEntropyConfig(ComponentConfig):
    """Config of :class:`SoftmaxCrossEntropy`.

    Attributes:
        ignore_index: targets of this value do not count.
    """

    ignore_index: int | None = None


class SoftmaxCrossEntropy(Component[SoftmaxCrossEntropyConfig]):
    """Mean over valid targets of ``-log softmax(logits)[target]``: logits (…, V) and targets (…) to (1,).

    The gradient is written over the logits where nobody else needs them.
    """

    config_class = SoftmaxCrossEntropyConfig
    component_type = ComponentType.SOFTMAX_CROSS_ENTROPY
    ports = (Port("logits"), Port("targets", is_ids=True))
    output_names = ("loss",)
    wide_outputs: ClassVar[tuple[str, ...]] = ("loss",)
    reads: ClassVar[tuple[str, ...]] = ("logits", "targets")
    required_kernels = ("cross_entropy_forward", "cross_entropy_backward", "integer_range", "first_outside")

    @property
    def accepts_prefill_size(self) -> bool:
        """The mean is over all positions."""
        return False

    def input_shapes_of(self, shape: Shape) -> tuple[Shape, ...]:
        """One target per row of logits."""
        return shape, shape[:-1]

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """One number."""
        logits, targets = context.input_shapes
        if logits[:-1] != targets:
            raise ShapeError(
                f"{self.path}: expected targets of shape {logits[:-1]} for logits {logits}, got {targets}; a build "
                "context that names all inputs says the shape of the targets too"
            )
        return ((1,),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Loss, row statistics, a tile, and the gradient of the logits."""
        shape, rows = context.input_shape, row_count(context.input_shape)
        yield output((1,), context.statistics_dtype, name="loss")
        yield saved("log_sum_exp", (rows,), context.statistics_dtype)
        size = context.kernels.cross_entropy_forward_workspace(rows, shape[-1])
        yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.FORWARD)
        if context.is_training:
            over = None if context.overwritable[0] is Overwrite.NEVER else Over.INPUT
            yield gradient("logits", shape, context.dtype, over=over)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """The mean loss."""
        logits, targets = inputs
        check_token_ids(self, "target", targets, logits.shape[-1], except_for=self.config.ignore_index)
        loss = self.view("loss", (1,))
        statistics = self.view("log_sum_exp", (row_count(logits.shape),))
        self.kernels.cross_entropy_forward(
            loss, statistics, logits, targets, self.config.ignore_index, self.workspace()
        )
        return loss

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """``(softmax - onehot) / valid``."""
        logits, targets = inputs
        check_token_ids(self, "target", targets, logits.shape[-1], except_for=self.config.ignore_index)
        statistics = self.view("log_sum_exp", (row_count(logits.shape),))
        dlogits = self.view("logits.gradient", logits.shape)
        self.kernels.cross_entropy_backward(
            dlogits, statistics, gradients[0], logits, targets, self.config.ignore_index
        )
        return dlogits, None
