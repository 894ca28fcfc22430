"""Dropout."""

from __future__ import annotations

from mila.components import Dropout, DropoutConfig
from mila.network_language.arguments import Argument
from mila.network_language.operator import Example, NodeShapes, Operator


def _dropout(name: str, node: NodeShapes) -> Dropout:
    return Dropout(name, DropoutConfig(probability=node.arguments["p"]))


DROPOUT = Operator(
    alias="dropout",
    identity="dropout@1",
    category="regularization",
    summary="Drops elements at random while training.",
    documentation="In training, each element is 0 with probability `p`; the others are divided by `1 - p`.",
    pattern="x[B, ...] -> out[B, ...]",
    arguments=(
        Argument(
            name="p", type="float", default=0.1, minimum=0, below=1, help="Probability that an element is dropped."
        ),
    ),
    component=_dropout,
    examples=(Example(source="linear(16)\ndropout(0.2)\nlinear()", input_shape=("B", 8), output_shape=("B", 4)),),
)

OPERATORS = (DROPOUT,)
