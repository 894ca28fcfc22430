"""Feed-forward experts of which each token uses a few (Shazeer et al. 2017)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import ClassVar, Self

from pydantic import Field, model_validator

from mila.components.activation import ActivationKind
from mila.core import ComponentType, LeafContext, ParameterizedConfig, Run
from mila.core.component import Component
from mila.core.initializers import uniform
from mila.core.shapes import require_rank, require_width, row_count
from mila.kernels.signatures import ActivationFunction, Array
from mila.memory.declarations import Declaration, Lifetime, gradient, output, parameter, saved, workspace
from mila.memory.storage import INT32, Shape


class MixtureOfExpertsConfig(ParameterizedConfig):
    """Config of :class:`MixtureOfExperts`.

    Attributes:
        embedding_dim: width C of input and output.
        hidden_dim: width F between the projections of an expert.
        num_experts: experts E.
        top_k: experts k that each token uses.
        activation: the function between the projections.
    """

    embedding_dim: int = Field(gt=0)
    hidden_dim: int = Field(gt=0)
    num_experts: int = Field(gt=0)
    top_k: int = Field(default=2, gt=0)
    activation: ActivationKind = "gelu"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} must be at most num_experts {self.num_experts}")
        return self


class MixtureOfExperts(Component[MixtureOfExpertsConfig]):
    """``sum(w_e * down_e(activation(up_e(x))))`` over the k experts e of each token: (B, T, C) to itself.

    A router without bias scores all experts. The k best are used, of equal scores the first, with the softmax of their
    k scores as weights ``w``. An expert computes the rows of its tokens and no others, one expert after the other.
    """

    config_class = MixtureOfExpertsConfig
    component_type = ComponentType.MIXTURE_OF_EXPERTS
    reads: ClassVar[tuple[str, ...]] = ("input",)
    is_per_position = True
    required_kernels = (
        "top_k_forward",
        "top_k_backward",
        "group_slots",
        "gather_rows",
        "scatter_add_rows",
        "scatter_add_rows_backward",
        "softmax_forward",
        "softmax_backward",
        "linear_forward",
        "linear_forward_narrow",
        "linear_backward_input",
        "linear_backward_input_narrow",
        "linear_backward_weight",
        "linear_backward_bias",
        "activation_forward",
        "activation_backward",
        "add_in_place",
        "fill",
    )

    def parameters(self) -> Iterator[Declaration]:
        """``router.weight``, then ``up`` and ``down`` of each expert, all uniform within 1/sqrt(fan-in)."""
        config = self.config
        width, hidden = config.embedding_dim, config.hidden_dim
        shapes: list[tuple[str, Shape, int]] = [("router.weight", (config.num_experts, width), width)]
        for expert in range(config.num_experts):
            shapes += [
                (f"experts.{expert}.up.weight", (hidden, width), width),
                (f"experts.{expert}.up.bias", (hidden,), width),
                (f"experts.{expert}.down.weight", (width, hidden), hidden),
                (f"experts.{expert}.down.bias", (width,), hidden),
            ]
        for name, shape, fan_in in shapes:
            yield parameter(name, shape, self.dtype, uniform(1 / math.sqrt(fan_in)), trainable=config.trainable)

    def takes_stored(self, parameter: str) -> bool:
        """The weights: widened, those of all experts at once would be more than the network."""
        return parameter.endswith(".weight")

    def adds_to_stored(self, parameter: str) -> bool:
        """The weights."""
        return parameter.endswith(".weight")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's shape."""
        shape = require_rank(self, context.input_shape, "B, T, C")
        return (require_width(self, shape, self.config.embedding_dim),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Who works on what, the rows of one expert (at worst all), and for backward what the activations were of."""
        config, shape, dtype = self.config, context.input_shape, context.dtype
        rows, top_k = row_count(shape), config.top_k
        yield output(shape, dtype)
        yield saved("experts", (rows, top_k), INT32)
        yield saved("weights", (rows, top_k), dtype)
        yield workspace("scores", (rows, config.num_experts), dtype, during=Lifetime.BOTH)
        yield workspace("slots", (rows * top_k,), INT32, during=Lifetime.BOTH)
        yield workspace("rows", shape, dtype, during=Lifetime.BOTH)
        yield workspace("activated", (rows, config.hidden_dim), dtype, during=Lifetime.BOTH)
        size = self._forward_workspace(context, rows)
        yield workspace("forward_workspace", (size,), context.statistics_dtype, during=Lifetime.FORWARD)
        if context.is_training:
            yield saved("hidden", (rows * top_k, config.hidden_dim), dtype)
            yield gradient("input", shape, dtype)
            yield workspace("derivative", (rows, config.hidden_dim), dtype, during=Lifetime.BACKWARD)
            yield workspace("weights_gradient", (rows, top_k), dtype, during=Lifetime.BACKWARD)
            size = self._backward_workspace(context, rows)
            yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.BACKWARD)

    def _forward_workspace(self, context: LeafContext, rows: int) -> int:
        config, kernels = self.config, context.kernels
        sizes = [
            kernels.top_k_forward_workspace(rows, config.num_experts),
            kernels.softmax_workspace((rows, config.top_k), -1),
            kernels.activation_forward_workspace(rows, config.hidden_dim),
            kernels.scatter_add_rows_workspace(rows, config.embedding_dim),
        ]
        if self.dtype != context.dtype:
            sizes += [kernels.linear_forward_narrow_workspace(*shape) for shape in self._weight_shapes()]
        return max(sizes)

    def _backward_workspace(self, context: LeafContext, rows: int) -> int:
        config, kernels = self.config, context.kernels
        sizes = [
            kernels.softmax_workspace((rows, config.top_k), -1),
            kernels.activation_forward_workspace(rows, config.hidden_dim),
            kernels.scatter_add_rows_workspace(rows, config.embedding_dim),
            kernels.scatter_add_rows_backward_workspace(rows, config.embedding_dim),
        ]
        for shape in {d.shape for d in self.declared_parameters() if d.trainable}:
            if len(shape) == 1:
                sizes.append(kernels.linear_backward_bias_workspace(rows, *shape))
            else:
                sizes.append(kernels.linear_backward_weight_workspace(rows, *shape))
        if self.dtype != context.dtype:
            shapes = self._weight_shapes()
            sizes += [kernels.linear_forward_narrow_workspace(*shape) for shape in shapes]
            sizes += [kernels.linear_backward_input_narrow_workspace(rows, *shape) for shape in shapes]
        return max(sizes)

    def _weight_shapes(self) -> set[Shape]:
        return {d.shape for d in self.declared_parameters() if len(d.shape) == 2}

    # ------------------------------------------------------------------ forward

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Route all rows, then run one expert after the other on its rows."""
        (x,) = inputs
        result = self.view("output", x.shape)
        x = x.reshape(-1, self.config.embedding_dim)
        kernels, scratch, count = self.kernels, self.workspace("forward_workspace"), x.shape[0]
        self._route(x)
        kernels.fill(result, 0.0)
        for expert, first, last in self._used_experts(count):
            slots = self.workspace("slots")[first:last]
            rows, hidden, activated = self._rows_of_expert(first, last)
            kernels.gather_rows(rows, x, slots, self.config.top_k)
            self._project(hidden, rows, f"experts.{expert}.up", scratch)
            kernels.activation_forward(activated, None, hidden, self._function, scratch)
            self._project(rows, activated, f"experts.{expert}.down", scratch)
            weights = self._per_slot("weights", count)
            kernels.scatter_add_rows(result.reshape(x.shape), rows, weights, slots, self.config.top_k, scratch)
        return result

    def _route(self, x: Array) -> None:
        """Leave each row's experts, and their weights."""
        scores = self.view("scores", (x.shape[0], self.config.num_experts))
        weights, scratch = self._per_slot("weights", x.shape[0]), self.workspace("forward_workspace")
        self._project(scores, x, "router", scratch)
        self.kernels.top_k_forward(weights, self._per_slot("experts", x.shape[0]), scores, scratch)
        self.kernels.softmax_forward(weights, weights, -1, scratch)

    def _used_experts(self, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield each expert that any of the ``count`` rows uses, and between which bounds its slots stand."""
        slots = self.view("slots", (count * self.config.top_k,))
        bounds = self.kernels.group_slots(slots, self._per_slot("experts", count), self.config.num_experts)
        for expert, (first, last) in enumerate(itertools.pairwise(bounds)):
            if first < last:
                yield expert, first, last

    def _rows_of_expert(self, first: int, last: int) -> tuple[Array, Array, Array]:
        """Rows of width C, and of width F before the activation, which training saves, and after it."""
        width, count = self.config.hidden_dim, last - first
        activated = self.view("activated", (count, width))
        hidden = activated
        if self.has_buffer("hidden"):
            hidden = self.view("hidden", (last, width))[first:]
        return self.view("rows", (count, self.config.embedding_dim)), hidden, activated

    # ------------------------------------------------------------------ backward

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Through the experts, one after the other, then through the weights to the router."""
        width = self.config.embedding_dim
        x, dy = inputs[0].reshape(-1, width), gradients[0].reshape(-1, width)
        result = self.view("input.gradient", inputs[0].shape)
        dx = result.reshape(x.shape)
        self.kernels.fill(dx, 0.0)
        for expert, first, last in self._used_experts(x.shape[0]):
            self._expert_backward(expert, first, last, x, dy, dx)
        self._router_backward(x, dx)
        return (result,)

    def _expert_backward(self, expert: int, first: int, last: int, x: Array, dy: Array, dx: Array) -> None:
        """Add to the gradients of the expert's parameters and rows; leave those of its weights."""
        kernels, scratch, count = self.kernels, self.workspace(), x.shape[0]
        slots = self.workspace("slots")[first:last]
        rows, hidden, activated = self._rows_of_expert(first, last)
        derivative = self.view("derivative", hidden.shape)
        kernels.activation_forward(activated, derivative, hidden, self._function, scratch)
        self._project(rows, activated, f"experts.{expert}.down", scratch)
        kernels.scatter_add_rows_backward(
            rows,
            self._per_slot("weights_gradient", count),
            dy,
            rows,
            self._per_slot("weights", count),
            slots,
            scratch,
        )
        self._parameters_backward(f"experts.{expert}.down", rows, activated)
        hidden_gradient = activated
        self._input_backward(hidden_gradient, rows, f"experts.{expert}.down")
        kernels.activation_backward(hidden_gradient, hidden_gradient, derivative)
        kernels.gather_rows(rows, x, slots, self.config.top_k)
        self._parameters_backward(f"experts.{expert}.up", hidden_gradient, rows)
        self._input_backward(rows, hidden_gradient, f"experts.{expert}.up")
        kernels.scatter_add_rows(dx, rows, None, slots, self.config.top_k, scratch)

    def _router_backward(self, x: Array, dx: Array) -> None:
        kernels, count = self.kernels, x.shape[0]
        scores_gradient = self.view("scores", (count, self.config.num_experts))
        weights_gradient = self._per_slot("weights_gradient", count)
        kernels.softmax_backward(
            weights_gradient, weights_gradient, self._per_slot("weights", count), -1, self.workspace()
        )
        kernels.top_k_backward(scores_gradient, weights_gradient, self._per_slot("experts", count))
        self._parameters_backward("router", scores_gradient, x)
        rows = self.view("rows", x.shape)
        self._input_backward(rows, scores_gradient, "router")
        kernels.add_in_place(dx, rows)

    def _input_backward(self, dx: Array, dy: Array, name: str) -> None:
        """``dx`` through a projection, with its weight as it is stored."""
        weight = self.parameter_array(f"{name}.weight")
        if weight.dtype == dx.dtype:
            self.kernels.linear_backward_input(dx, dy, weight)
        else:
            self.kernels.linear_backward_input_narrow(dx, dy, weight, self.workspace())

    def _parameters_backward(self, name: str, dy: Array, x: Array) -> None:
        """Add to the gradients of a projection of ``x``, those of them that there are."""
        weight, bias = self.parameter_gradient(f"{name}.weight"), self.parameter_gradient(f"{name}.bias")
        if weight is not None:
            target, accumulate = weight.contribute()
            self.kernels.linear_backward_weight(target, dy, x, accumulate, self.workspace())
        if bias is not None:
            target, accumulate = bias.contribute()
            self.kernels.linear_backward_bias(target, dy, accumulate, self.workspace())

    # ------------------------------------------------------------------ projections and arrays

    @property
    def _function(self) -> ActivationFunction:
        return ActivationFunction(self.config.activation)

    def _project(self, target: Array, x: Array, name: str, scratch: Array) -> None:
        """A projection of ``x``, with its weight as it is stored; the router has no bias."""
        weight = self.parameter_array(f"{name}.weight")
        bias = None if name == "router" else self.parameter_array(f"{name}.bias")
        if weight.dtype == x.dtype:
            self.kernels.linear_forward(target, x, weight, bias)
        else:
            self.kernels.linear_forward_narrow(target, x, weight, None, bias, scratch)

    def _per_slot(self, name: str, count: int) -> Array:
        return self.view(name, (count, self.config.top_k))
