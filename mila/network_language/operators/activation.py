"""Activation functions: each element by itself, but for softmax; the shape stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from mila.components import Activation, ActivationConfig, Softmax, SoftmaxConfig
from mila.components.activation import ActivationKind
from mila.network_language.arguments import Argument
from mila.network_language.operator import Example, NodeShapes, Operator
from mila.network_language.relations import NodeView

#: Names of the arguments in the config of the component.
_FIELDS = {
    "negative_slope": "leaky_relu_slope",
    "alpha": "elu_alpha",
    "beta": "softplus_beta",
    "threshold": "softplus_threshold",
}

#: By operator.
_KINDS: Mapping[str, ActivationKind] = {**{kind: kind for kind in get_args(ActivationKind)}, "identity": "none"}


def _activation(alias: str, summary: str, formula: str, *arguments: Argument, source: str | None = None) -> Operator:
    kind = _KINDS[alias]

    def component(name: str, node: NodeShapes) -> Activation:
        options = {field: node.arguments[argument] for argument, field in _FIELDS.items() if argument in node.arguments}
        is_tanh = node.arguments.get("approximate") == "tanh"
        return Activation(name, ActivationConfig(kind="gelu_tanh" if is_tanh else kind, **options))

    return Operator(
        alias=alias,
        identity=f"{alias}@1",
        category="activation",
        summary=summary,
        documentation=formula,
        pattern="x[B, ...] -> out[B, ...]",
        arguments=arguments,
        component=component,
        examples=(Example(source=f"linear(8)\n{source or f'{alias}()'}", input_shape=("B", 6), output_shape=("B", 8)),),
    )


def _softmax(name: str, node: NodeShapes) -> Softmax:
    return Softmax(name, SoftmaxConfig(axis=node.arguments["dim"]))


def _axis_inside(view: NodeView) -> None:
    rank, dim = view.rank("x"), view.argument("dim")
    if rank is not None and not (1 <= dim < rank or -rank < dim < 0):
        allowed = f"1 to {rank - 1}, or {1 - rank} to -1"
        view.refuse(f"dim={dim}, but x has {rank} axes: dim is {allowed}; the batch is none of them", "E_ARGUMENT")


RELU = _activation("relu", "The positive part.", "`max(x, 0)`.")
GELU = _activation(
    "gelu",
    "The Gaussian error linear unit.",
    "`x * Phi(x)` with the normal distribution function Phi, or its approximation by a hyperbolic tangent.",
    Argument(
        name="approximate", type="str", default="none", choices=("none", "tanh"), help="Exact, or the approximation."
    ),
    source='gelu("tanh")',
)
QUICK_GELU = _activation("quick_gelu", "The approximation of GELU that CLIP uses.", "`x * sigmoid(1.702 * x)`.")
SILU = _activation("silu", "The sigmoid linear unit.", "`x * sigmoid(x)`.")
SIGMOID = _activation("sigmoid", "The logistic function.", "`1 / (1 + exp(-x))`.")
TANH = _activation("tanh", "The hyperbolic tangent.", "`tanh(x)`.")
LEAKY_RELU = _activation(
    "leaky_relu",
    "The positive part, and a little of the negative one.",
    "`x` where it is positive, else `negative_slope * x`.",
    Argument(name="negative_slope", type="float", default=0.01, help="Slope of the negative part."),
    source="leaky_relu(0.2)",
)
ELU = _activation(
    "elu",
    "The exponential linear unit.",
    "`x` where it is positive, else `alpha * (exp(x) - 1)`.",
    Argument(name="alpha", type="float", default=1.0, help="Minus the limit far below zero."),
)
MISH = _activation("mish", "A smooth function that keeps a little below zero.", "`x * tanh(softplus(x))`.")
HARDSWISH = _activation("hardswish", "SiLU in three pieces.", "`x * clamp(x + 3, 0, 6) / 6`.")
SOFTPLUS = _activation(
    "softplus",
    "A smooth positive part.",
    "`log(1 + exp(beta * x)) / beta`; `x` itself where `beta * x` is above `threshold`.",
    Argument(name="beta", type="float", default=1.0, above=0, help="How sharp the bend is."),
    Argument(name="threshold", type="float", default=20.0, positional=False, help="Where it counts as linear."),
)
IDENTITY = _activation("identity", "What came.", "`x`.")
SOFTMAX = Operator(
    alias="softmax",
    identity="softmax@1",
    category="activation",
    summary="Positive numbers that add up to one along an axis.",
    documentation="`exp(x) / sum(exp(x))` over one axis that is not the batch.",
    pattern="x[B, ...] -> out[B, ...]",
    arguments=(Argument(name="dim", type="int", default=-1, help="The axis, counted with the batch."),),
    relation=_axis_inside,
    component=_softmax,
    examples=(Example(source="linear(8)\nsoftmax()", input_shape=("B", 6), output_shape=("B", 8)),),
)

OPERATORS = (
    RELU,
    GELU,
    QUICK_GELU,
    SILU,
    SIGMOID,
    TANH,
    LEAKY_RELU,
    ELU,
    MISH,
    HARDSWISH,
    SOFTPLUS,
    SOFTMAX,
    IDENTITY,
)
