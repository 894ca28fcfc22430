"""Root-mean-square normalization (Zhang & Sennrich 2019)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Self

from pydantic import Field, model_validator

from mila.core import ComponentType, LeafContext, ParameterizedConfig, Run
from mila.core.bound import Cursor
from mila.core.component import Component
from mila.core.initializers import constant, zeros
from mila.core.shapes import require_width, row_count
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, gradient, output, parameter, saved, workspace
from mila.memory.storage import Shape


class RmsNormConfig(ParameterizedConfig):
    """Config of :class:`RmsNorm`.

    Attributes:
        normalized_dim: width C of the last axis.
        affine: whether there is a weight, and may be a bias and a ``unit_offset``.
        bias: whether a bias is added.
        epsilon: added to the mean square.
        unit_offset: added to the weight; 1 for checkpoints that store ``weight - 1``, which then starts at 0.
    """

    normalized_dim: int = Field(gt=0)
    affine: bool = True
    bias: bool = False
    epsilon: float = Field(default=1e-5, gt=0)
    unit_offset: float = Field(default=0.0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.affine and self.bias:
            raise ValueError("bias needs affine: without it a norm has neither weight nor bias")
        if not self.affine and self.unit_offset:
            raise ValueError(f"unit_offset {self.unit_offset} needs affine: without it there is no weight to add it to")
        return self


class RmsNorm(Component[RmsNormConfig]):
    """``x / sqrt(mean(x²) + epsilon) * (weight + unit_offset) + bias`` over the last axis."""

    config_class = RmsNormConfig
    component_type = ComponentType.RMS_NORM
    reads: ClassVar[tuple[str, ...]] = ("input",)
    is_per_position = True
    required_kernels = ("rms_norm_forward", "rms_norm_backward")

    def parameters(self) -> Iterator[Declaration]:
        """``weight`` and ``bias``."""
        shape, trainable = (self.config.normalized_dim,), self.config.trainable
        if self.config.affine:
            yield parameter("weight", shape, self.dtype, constant(1 - self.config.unit_offset), trainable=trainable)
        if self.config.bias:
            yield parameter("bias", shape, self.dtype, zeros, trainable=trainable)

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        return (require_width(self, context.input_shape, self.config.normalized_dim),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output and row statistics, which backward reads together with the input."""
        shape, rows, kernels = context.input_shape, row_count(context.input_shape), context.kernels
        yield output(shape, context.dtype)
        yield saved("rstd", (rows,), context.statistics_dtype)
        size = kernels.rms_norm_forward_workspace(rows, shape[-1])
        yield workspace("forward_workspace", (size,), context.statistics_dtype, during=Lifetime.FORWARD)
        if context.is_training:
            yield gradient("input", shape, context.dtype)
            size = kernels.rms_norm_backward_workspace(rows, shape[-1])
            yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.BACKWARD)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Normalize rows."""
        (x,) = inputs
        result = self.view("output", x.shape)
        self.kernels.rms_norm_forward(
            result,
            self.view("rstd", (row_count(x.shape),)),
            x,
            *self._weight_and_bias(),
            self.config.epsilon,
            self.config.unit_offset,
            self.workspace("forward_workspace"),
        )
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """Normalize one row."""
        config = self.config
        return self.kernels.bind_rms_norm_forward(
            self.view("output", inputs[0].shape),
            inputs[0],
            *self._weight_and_bias(),
            config.epsilon,
            config.unit_offset,
            self.workspace("forward_workspace"),
        )

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Gradients of input, weight and bias."""
        (x,), (dy,) = inputs, gradients
        dx = self.view("input.gradient", x.shape)
        (dweight, dbias), accumulate = self.contribute("weight", "bias")
        weight, _ = self._weight_and_bias()
        self.kernels.rms_norm_backward(
            dx,
            dweight,
            dbias,
            self.view("rstd", (row_count(x.shape),)),
            dy,
            x,
            weight,
            self.config.unit_offset,
            accumulate,
            self.workspace(),
        )
        return (dx,)

    def _weight_and_bias(self) -> tuple[Array | None, Array | None]:
        """Each ``None`` where there is none."""
        config = self.config
        weight = self.parameter_array("weight") if config.affine else None
        return weight, self.parameter_array("bias") if config.bias else None
