"""The linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mila.components import Linear, LinearConfig
from mila.network_language.arguments import Argument
from mila.network_language.operator import Example, NodeShapes, Operator
from mila.network_language.operators.ranks import two_or_three_axes


def _linear(name: str, node: NodeShapes) -> Linear:
    arguments = node.arguments
    config = LinearConfig(
        in_features=arguments["in_features"],
        out_features=arguments["out_features"],
        bias=arguments["bias"],
        initialization="fan_in",
    )
    return Linear(name, config)


def _validate(arguments: Mapping[str, Any]) -> str | None:
    return "spectral_norm=True is not supported; leave it out" if arguments["spectral_norm"] else None


LINEAR = Operator(
    alias="linear",
    identity="linear@1",
    category="core",
    summary="An affine map of the last axis.",
    documentation="`out = x @ weight.T + bias`, for every row, or for every position of every row.",
    pattern="x[B, ..., D_in] -> out[B, ..., D_out]",
    arguments=(
        Argument(
            name="out_features",
            type="int",
            inferable=True,
            minimum=1,
            dimension="D_out",
            help="The last axis of the output.",
        ),
        Argument(
            name="in_features",
            type="int",
            inferable=True,
            positional=False,
            minimum=1,
            dimension="D_in",
            help="The last axis of the input.",
        ),
        Argument(name="bias", type="bool", default=True, positional=False, help="Whether it adds a bias."),
        Argument(
            name="spectral_norm",
            type="bool",
            default=False,
            positional=False,
            help="Part of saved plans; only False is supported.",
        ),
    ),
    component=_linear,
    relation=two_or_three_axes,
    validate=_validate,
    examples=(
        Example(
            note="The last width comes from the output contract.",
            source="linear(64)\nrelu()\nlinear()",
            input_shape=("B", 128),
            output_shape=("B", 10),
        ),
    ),
)

OPERATORS = (LINEAR,)
