"""Small calls of every operator, with every option: what gradients are checked on, and what is compared with PyTorch.

A call stands for its operator with all defaults. Every choice, every flag and another number for every other option
follow from the declarations; options that change shapes have calls of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mila
from mila import DefinedNetwork
from mila.network_language import BUILT_IN, Argument
from tests.promises.case import SEED

Shape = tuple[int, ...]
#: What other number an option gets, by its name; by its type where nothing stands here.
NUMBERS: Mapping[str, float] = {"mlp_ratio": 2, "layer_scale_init": 0.7, "eps": 0.01, "threshold": 0.5}
OTHER_NUMBERS: Mapping[str, float] = {"float": 0.3, "int": 1}


@dataclass(frozen=True)
class Call:
    """One call of one operator.

    Attributes:
        source: the definition, a single call or an assignment.
        inputs: shapes without the batch.
        outputs: shapes without the batch, by the names that the source binds; ``out`` is the only output.
        ids: inputs that are int64.
        options: whether further options may be added before the last bracket.
    """

    source: str
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    ids: tuple[str, ...] = ()
    options: bool = True

    @property
    def alias(self) -> str:
        """The name of the operator."""
        return self.source.split("(")[0].split()[-1]

    def contracts(self) -> dict[str, Any]:
        """Keywords of ``network`` and ``resolve``."""
        outputs: Any = {name: ("B", *shape) for name, shape in self.outputs.items()}
        return {
            "input_shape": {name: ("B", *shape) for name, shape in self.inputs.items()},
            "output_shape": outputs["out"] if [*outputs] == ["out"] else outputs,
            "input_dtype": dict.fromkeys(self.ids, "int64"),
        }

    def network(self, **changes: Any) -> DefinedNetwork:
        """The network of this call alone."""
        return mila.network(self.source, **self.contracts(), **{"device": "cpu", "seed": SEED, **changes})

    def __str__(self) -> str:
        return self.source


def unary(source: str, shape: Shape, output: Shape | None = None, *, options: bool = True) -> Call:
    """A call with one input."""
    return Call(source, {"x": shape}, {"out": output or shape}, options=options)


def binary(source: str, first: Shape, second: Shape, output: Shape, *, options: bool = True) -> Call:
    """A call with two inputs."""
    return Call(source, {"x": first, "y": second}, {"out": output}, options=options)


CALLS: list[Call] = [
    Call("embedding(ids, 7)", {"ids": (5,)}, {"out": (5, 3)}, ids=("ids",)),
    unary("linear()", (4,), (3,)),
    unary("linear()", (5, 4), (5, 3), options=False),
    unary("pos_embed(7)", (5, 4)),
    unary("cls_token()", (5, 4), (6, 4)),
    unary("attention(2)", (5, 8)),
    binary("cross_attention(x, y, 2)", (5, 8), (4, 6), (5, 8)),
    unary("feed_forward(6)", (5, 4)),
    unary("feed_forward(6)", (4,), options=False),
    unary("swiglu(6)", (5, 4)),
    unary("swiglu(6)", (4,), options=False),
    unary("transformer_block(2)", (5, 8)),
    unary("moe(3, 6)", (5, 4)),
    Call("gather_token(x, ids)", {"x": (5, 4), "ids": (5,)}, {"out": (4,)}, ids=("ids",)),
    unary("pool_tokens()", (5, 4), (4,)),
    *(unary(f"{alias}()", (5, 4)) for alias in ("elu", "gelu", "hardswish", "identity", "leaky_relu", "mish")),
    *(unary(f"{alias}()", (5, 4)) for alias in ("quick_gelu", "relu", "sigmoid", "silu", "softplus", "tanh")),
    unary("softmax()", (5, 4)),
    unary("softmax()", (2, 3, 4), options=False),
    unary("layer_norm()", (5, 4)),
    unary("rms_norm()", (2, 3, 4)),
    unary("dropout()", (5, 4)),
    *(binary(f"{alias}(x, y)", (5, 4), (5, 4), (5, 4)) for alias in ("add", "sub", "mul")),
    binary("broadcast_add(x, y)", (5, 1), (1, 4), (5, 4)),
    unary("scale(-0.3)", (5, 4)),
    unary("clamp(-0.5, 1)", (5, 4)),
    unary("constant(x, 2, 3)", (4,), (2, 3)),
    unary("learned_scale()", (5, 4)),
    binary("matmul(x, y)", (2, 3), (3, 4), (2, 4)),
    Call("p, q = split(x, 2)", {"x": (5, 4)}, {"p": (2, 4), "q": (3, 4)}),
    Call("p, q = split(x, 1, dim=2)", {"x": (5, 4)}, {"p": (5, 1), "q": (5, 3)}, options=False),
    Call("p, q = chunk(x, 2)", {"x": (6, 4)}, {"p": (3, 4), "q": (3, 4)}),
    Call("p, q = chunk(x, 2, dim=2)", {"x": (5, 4)}, {"p": (5, 2), "q": (5, 2)}, options=False),
    Call("p, q = chunk(concat(x, y, axis=0), 2, dim=0)", {"x": (5,), "y": (5,)}, {"p": (5,), "q": (5,)}, options=False),
    binary("concat(x, y)", (5, 4), (2, 4), (7, 4)),
    binary("concat(x, y, x, axis=2)", (5, 4), (5, 3), (5, 11), options=False),
    unary("reshape(2, 10)", (5, 4), (2, 10)),
    unary("flatten()", (5, 4), (20,)),
    unary("transpose(1, 3)", (2, 3, 4), (4, 3, 2)),
    unary("permute(3, 1, 2)", (2, 3, 4), (4, 2, 3)),
    unary("pad(1, 2, 0, 3)", (5, 4), (8, 7)),
    *(unary(f"{alias}(2)", (5, 4, 3), (5, 3)) for alias in ("mean", "sum")),
    *(unary(f"{alias}(1, keepdim=True)", (5, 4), (1, 4), options=False) for alias in ("mean", "sum")),
]
#: Options that change shapes, which have calls of their own, and what an operator does not support.
WITHOUT_VARIANTS = {
    ("split", "dim"),
    ("chunk", "dim"),
    ("concat", "axis"),
    ("mean", "keepdim"),
    ("sum", "keepdim"),
    ("linear", "spectral_norm"),
}


def variants(call: Call) -> Iterator[Call]:
    """The call itself, and one with another value for each of its options in turn."""
    yield call
    for argument in BUILT_IN[call.alias].arguments if call.options else ():
        if argument.default is None or (call.alias, argument.name) in WITHOUT_VARIANTS:
            continue
        for value in other_values(argument):
            start = call.source.removesuffix(")")
            separator = "" if start.endswith("(") else ", "
            yield Call(f"{start}{separator}{argument.name}={value!r})", call.inputs, call.outputs, call.ids)


def other_values(argument: Argument) -> list[Any]:
    """Every value that is not the default of choices and flags, another number else."""
    if argument.type == "bool":
        return [not argument.default]
    if argument.choices:
        return [choice for choice in argument.choices if choice != argument.default]
    return [NUMBERS.get(argument.name, OTHER_NUMBERS[argument.type])]


ALL_CALLS = [variant for call in CALLS for variant in variants(call)]
