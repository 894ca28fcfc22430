"""Normalizations of the last axis."""

from __future__ import annotations

from mila.components import LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig
from mila.network_language.arguments import Argument
from mila.network_language.operator import Example, NodeShapes, Operator


def _layer_norm(name: str, node: NodeShapes) -> LayerNorm:
    eps, affine = node.arguments["eps"], node.arguments["affine"]
    return LayerNorm(name, LayerNormConfig(normalized_dim=node.width, epsilon=eps, affine=affine))


def _rms_norm(name: str, node: NodeShapes) -> RmsNorm:
    eps, affine = node.arguments["eps"], node.arguments["affine"]
    return RmsNorm(name, RmsNormConfig(normalized_dim=node.width, epsilon=eps, affine=affine))


LAYER_NORM = Operator(
    alias="layer_norm",
    identity="layer_norm@1",
    category="normalization",
    summary="Mean 0 and variance 1 of the last axis, then a learned scale and shift.",
    documentation="`(x - mean) / sqrt(variance + eps) * weight + bias`, with the biased variance.",
    pattern="x[B, ..., D] -> out[B, ..., D]",
    arguments=(
        Argument(name="eps", type="float", default=1e-5, above=0, positional=False, help="Added to the variance."),
        Argument(
            name="affine", type="bool", default=True, positional=False, help="Whether scale and shift are learned."
        ),
    ),
    component=_layer_norm,
    examples=(
        Example(source="linear(64)\nlayer_norm()\nrelu()\nlinear()", input_shape=("B", 32), output_shape=("B", 10)),
    ),
)

RMS_NORM = Operator(
    alias="rms_norm",
    identity="rms_norm@1",
    category="normalization",
    summary="Root mean square 1 of the last axis, then a learned scale.",
    documentation=(
        "`x / sqrt(mean(x * x) + eps) * weight`; the mean is taken in float32, in float64 of a network of float64."
    ),
    pattern="x[B, ..., D] -> out[B, ..., D]",
    arguments=(
        Argument(
            name="eps", type="float", default=1e-6, above=0, positional=False, help="Added to the mean of the squares."
        ),
        Argument(name="affine", type="bool", default=True, positional=False, help="Whether the scale is learned."),
    ),
    component=_rms_norm,
    examples=(Example(source="rms_norm()\nlinear()", input_shape=("B", 6, 16), output_shape=("B", 6, 4)),),
)

OPERATORS = (LAYER_NORM, RMS_NORM)
