"""Layer normalization (Ba, Kiros & Hinton 2016)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from mila.core import ComponentType, LeafContext, ParameterizedConfig, Run
from mila.core.bound import Cursor
from mila.core.component import Component
from mila.core.initializers import ones, zeros
from mila.core.shapes import require_width, row_count
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, gradient, output, parameter, saved, workspace
from mila.memory.storage import Shape


class LayerNormConfig(ParameterizedConfig):
    """Config of :class:`LayerNorm`.

    Attributes:
        normalized_dim: width C of the last axis.
        affine: whether there are a weight and a bias at all.
        bias: whether a bias is added; without ``affine`` it is ``False``.
        epsilon: added to the variance.
    """

    normalized_dim: int = Field(gt=0)
    affine: bool = True
    bias: bool = True
    epsilon: float = Field(default=1e-5, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_bias(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("affine") is False:
            return {"bias": False} | fields
        return fields

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.bias and not self.affine:
            raise ValueError("bias needs affine: without it a norm has neither weight nor bias")
        return self


class LayerNorm(Component[LayerNormConfig]):
    """``(x - mean) / sqrt(variance + epsilon) * weight + bias`` over the last axis, biased variance."""

    config_class = LayerNormConfig
    component_type = ComponentType.LAYER_NORM
    reads: ClassVar[tuple[str, ...]] = ("input",)
    is_per_position = True
    required_kernels = ("layer_norm_forward", "layer_norm_backward")

    def parameters(self) -> Iterator[Declaration]:
        """``weight`` and ``bias``."""
        shape, trainable = (self.config.normalized_dim,), self.config.trainable
        if self.config.affine:
            yield parameter("weight", shape, self.dtype, ones, trainable=trainable)
        if self.config.bias:
            yield parameter("bias", shape, self.dtype, zeros, trainable=trainable)

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        return (require_width(self, context.input_shape, self.config.normalized_dim),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output and row statistics, which backward reads together with the input."""
        shape, rows = context.input_shape, row_count(context.input_shape)
        yield output(shape, context.dtype)
        yield saved("mean", (rows,), context.statistics_dtype)
        yield saved("rstd", (rows,), context.statistics_dtype)
        if context.is_training:
            yield gradient("input", shape, context.dtype)
            size = context.kernels.layer_norm_backward_workspace(rows, shape[-1])
            yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.BACKWARD)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Normalize rows."""
        (x,) = inputs
        result, rows = self.view("output", x.shape), (row_count(x.shape),)
        self.kernels.layer_norm_forward(
            result, self.view("mean", rows), self.view("rstd", rows), x, *self._weight_and_bias(), self.config.epsilon
        )
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """Normalize one row."""
        return self.kernels.bind_layer_norm_forward(
            self.view("output", inputs[0].shape), inputs[0], *self._weight_and_bias(), self.config.epsilon
        )

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Gradients of input, weight and bias."""
        (x,), (dy,) = inputs, gradients
        dx, rows = self.view("input.gradient", x.shape), (row_count(x.shape),)
        (dweight, dbias), accumulate = self.contribute("weight", "bias")
        weight, _ = self._weight_and_bias()
        self.kernels.layer_norm_backward(
            dx,
            dweight,
            dbias,
            self.view("mean", rows),
            self.view("rstd", rows),
            dy,
            x,
            weight,
            accumulate,
            self.workspace(),
        )
        return (dx,)

    def _weight_and_bias(self) -> tuple[Array | None, Array | None]:
        """Each ``None`` where there is none."""
        config = self.config
        weight = self.parameter_array("weight") if config.affine else None
        return weight, self.parameter_array("bias") if config.bias else None
