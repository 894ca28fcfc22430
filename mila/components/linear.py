"""Linear projections: with a weight of their own, tied to an embedding, or with a weight installed from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import Field, model_validator

from mila.components.token_embedding import TokenEmbedding
from mila.core import ComponentType, LeafContext, ParameterizedConfig, Run
from mila.core.bound import Cursor
from mila.core.checking import check_array
from mila.core.component import Component
from mila.core.initializers import normal, uniform, xavier_uniform, zeros
from mila.core.parameters import ParameterGradient
from mila.core.shapes import require_width, row_count
from mila.devices import DeviceId
from mila.errors import ConfigurationError, DTypeError, LifecycleError, ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import (
    Declaration,
    Initializer,
    Lifetime,
    gradient,
    output,
    parameter,
    workspace,
)
from mila.memory.storage import FLOAT8_E4M3, FLOAT32, DType, Shape


class LinearConfig(ParameterizedConfig):
    """Config of :class:`Linear`.

    Attributes:
        in_features: width I of the input.
        out_features: width O of the output.
        bias: whether a bias is added.
        initialization: ``xavier``: a uniform weight (Glorot & Bengio 2010) and a bias of 0; ``fan_in``: both uniform
            within 1/sqrt(I), as in PyTorch (He et al. 2015 with a = sqrt(5)).
        initial_std: a normal weight of this standard deviation instead, and a bias of 0.
        shared_weight: the weight is not declared but given by ``install_shared_weight``; for inference.
    """

    in_features: int = Field(gt=0)
    out_features: int = Field(gt=0)
    bias: bool = True
    initialization: Literal["xavier", "fan_in"] = "xavier"
    initial_std: float | None = Field(default=None, gt=0)
    shared_weight: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.initial_std is not None and self.initialization == "fan_in":
            raise ValueError("initialization 'fan_in' and initial_std exclude each other")
        return self

    @property
    def initial_weight(self) -> Initializer:
        """Draws the weight."""
        if self.initial_std is not None:
            return normal(self.initial_std)
        if self.initialization == "fan_in":
            return uniform(self.in_features**-0.5)
        return xavier_uniform(self.in_features, self.out_features)

    @property
    def initial_bias(self) -> Initializer:
        """Draws the bias."""
        return uniform(self.in_features**-0.5) if self.initialization == "fan_in" else zeros


class Linear(Component[LinearConfig]):
    """``output = input @ weight.T + bias``: (…, I) to (…, O), weight (O, I).

    Args:
        tied_to: an embedding under the same root whose table (O, I) is the weight.
    """

    config_class = LinearConfig
    component_type = ComponentType.LINEAR
    reads: ClassVar[tuple[str, ...]] = ("input",)
    is_per_position = True
    required_kernels = (
        "linear_forward",
        "linear_forward_narrow",
        "linear_backward_input",
        "linear_backward_input_narrow",
        "linear_backward_weight",
        "linear_backward_bias",
    )

    def __init__(
        self,
        name: str,
        config: LinearConfig | None = None,
        *,
        tied_to: TokenEmbedding | None = None,
        device: str | DeviceId | None = None,
        dtype: DType | type[Any] | str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(name, config, device=device, dtype=dtype, seed=seed)
        expected = (self.config.out_features, self.config.in_features)
        if tied_to is not None and (tied_to.vocab_size, tied_to.embedding_dim) != expected:
            got = (tied_to.vocab_size, tied_to.embedding_dim)
            raise ShapeError(
                f"{name}: expected a table of shape {expected} to tie to, got {tied_to.path} of shape {got}"
            )
        if tied_to is not None and self.config.shared_weight:
            raise ConfigurationError(f"{name}: shared_weight and tied_to exclude each other")
        self.tied_to = tied_to
        self._installed: tuple[Array, Array | None] | None = None

    def parameters(self) -> Iterator[Declaration]:
        """``weight``, unless it is another's, and ``bias``."""
        config = self.config
        if self.tied_to is None and not config.shared_weight:
            shape = (config.out_features, config.in_features)
            yield parameter("weight", shape, self.dtype, config.initial_weight, trainable=config.trainable)
        if config.bias:
            width = (config.out_features,)
            yield parameter("bias", width, self.dtype, config.initial_bias, trainable=config.trainable)

    def takes_stored(self, parameter: str) -> bool:
        """The weight."""
        return parameter == "weight"

    def adds_to_stored(self, parameter: str) -> bool:
        """The weight."""
        return parameter == "weight"

    def check_build(self, context: LeafContext) -> None:
        """A tied table must be in the same tree; an installed weight has no gradient."""
        if self.config.shared_weight and context.is_training:
            raise LifecycleError(f"{self.path}: shared_weight is for inference, got RuntimeMode.TRAINING")
        if self.tied_to is not None and self.tied_to.root is not self.root:
            raise ConfigurationError(f"{self.path}: is tied to {self.tied_to.path}, which is not under the same root")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(…, I) to (…, O)."""
        shape = require_width(self, context.input_shape, self.config.in_features, minimum_rank=2)
        return ((*shape[:-1], self.config.out_features),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output, input gradient, and what the backward products need besides."""
        config, kernels, rows = self.config, context.kernels, row_count(context.input_shape)
        yield output((*context.input_shape[:-1], config.out_features), context.dtype)
        is_narrow = self.dtype != context.dtype
        if is_narrow or config.shared_weight or (self.tied_to is not None and self.tied_to.is_quantized):
            size = kernels.linear_forward_narrow_workspace(config.out_features, config.in_features)
            yield workspace("widening", (size,), context.statistics_dtype, during=Lifetime.FORWARD)
        if context.is_training:
            yield gradient("input", context.input_shape, context.dtype)
            size, trained = 0, self._trained()
            if "weight" in trained:
                size = kernels.linear_backward_weight_workspace(rows, config.out_features, config.in_features)
            if "bias" in trained:
                size = max(size, kernels.linear_backward_bias_workspace(rows, config.out_features))
            if is_narrow:
                narrow = kernels.linear_backward_input_narrow_workspace(rows, config.out_features, config.in_features)
                size = max(size, narrow)
            yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.BACKWARD)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """One matrix product."""
        (x,) = inputs
        result = self.view("output", (*x.shape[:-1], self.config.out_features))
        weight, scales = self._weight()
        bias = self.parameter_array("bias") if self.config.bias else None
        if weight.dtype == x.dtype:
            self.kernels.linear_forward(result, x, weight, bias)
        else:
            self.kernels.linear_forward_narrow(result, x, weight, scales, bias, self.workspace("widening"))
        return result

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """One matrix-vector product, with the weight where it lies."""
        weight, scales = (None, None) if self.config.shared_weight else self._weight()  # what is installed may change
        if weight is None or scales is not None:
            return None
        output_row = self.view("output", (1, 1, self.config.out_features))
        bias = self.parameter_array("bias") if self.config.bias else None
        return self.kernels.bind_linear_forward(output_row, inputs[0], weight, bias)

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """``dx = dy @ weight``, ``dweight = dy.T @ x``, ``dbias = dy.sum``."""
        (x,), (dy,) = inputs, gradients
        dx = self.view("input.gradient", x.shape)
        weight, _ = self._weight()
        if weight.dtype == x.dtype:
            self.kernels.linear_backward_input(dx, dy, weight)
        else:
            self.kernels.linear_backward_input_narrow(dx, dy, weight, self.workspace())
        weight_gradient, bias_gradient = self._weight_gradient(), self.parameter_gradient("bias")
        if weight_gradient is not None:
            target, accumulate = weight_gradient.contribute()
            self.kernels.linear_backward_weight(target, dy, x, accumulate, self.workspace())
        if bias_gradient is not None:
            target, accumulate = bias_gradient.contribute()
            self.kernels.linear_backward_bias(target, dy, accumulate, self.workspace())
        return (dx,)

    # ------------------------------------------------------------------ sharing

    def install_shared_weight(self, table: Array, scales: Array | None = None) -> None:
        """Compute with ``table (O, I)`` from now on.

        The table is float8_e4m3fn with ``scales (O,)`` float32, or of the network's dtype without scales.

        Raises:
            ConfigurationError: the config does not say ``shared_weight``.
            ShapeError, DTypeError: the table or the scales do not fit.
        """
        if not self.config.shared_weight:
            raise ConfigurationError(f"{self.path}: install_shared_weight needs LinearConfig(shared_weight=True)")
        table = check_array(self.device, f"{self.path}: the shared table", table, (self.dtype, FLOAT8_E4M3))
        if scales is not None:
            scales = check_array(self.device, f"{self.path}: the scales of the shared table", scales, (FLOAT32,))
        expected = (self.config.out_features, self.config.in_features)
        if table.shape != expected or (scales is not None and scales.shape != expected[:1]):
            got = (table.shape, None if scales is None else scales.shape)
            raise ShapeError(f"{self.path}: expected a table {expected} and scales {expected[:1]}, got {got}")
        if (table.dtype == FLOAT8_E4M3) is not (scales is not None):
            raise DTypeError(
                f"{self.path}: expected a table of {self.dtype.name} without scales, or float8_e4m3fn with scales; "
                f"got {table.dtype.name} {'with' if scales is not None else 'without'} scales"
            )
        self._installed = (table, scales)

    def _weight(self) -> tuple[Array, Array | None]:
        if self.tied_to is not None:
            return self.tied_to.get_weight_tensor_shared(), self.tied_to.get_weight_scales_tensor_shared()
        if not self.config.shared_weight:
            return self.parameter_array("weight"), None
        if self._installed is None:
            raise LifecycleError(f"{self.path}: has no weight yet; call install_shared_weight")
        return self._installed

    def _trained(self) -> set[str]:
        """Which of ``weight`` and ``bias`` get gradients; a tied weight as its table does."""
        trained = {declaration.name for declaration in self.declared_parameters() if declaration.trainable}
        if self.tied_to is not None and any(table.trainable for table in self.tied_to.declared_parameters()):
            trained.add("weight")
        return trained

    def _weight_gradient(self) -> ParameterGradient | None:
        return self.tied_to.parameter_gradient("wte") if self.tied_to is not None else self.parameter_gradient("weight")


class ProjectionOptions(Protocol):
    """What :func:`projection` asks of a config."""

    @property
    def bias(self) -> bool:
        """Whether there is a bias."""

    @property
    def trainable(self) -> bool:
        """Whether weight and bias are trained."""


def projection(name: str, in_features: int, out_features: int, options: ProjectionOptions) -> Linear:
    """A :class:`Linear` with the initial values of PyTorch's, for a component with a config of these ``options``."""
    config = LinearConfig(
        in_features=in_features,
        out_features=out_features,
        bias=options.bias,
        initialization="fan_in",
        trainable=options.trainable,
    )
    return Linear(name, config)
