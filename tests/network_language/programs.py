"""Random definitions: chains and graphs of real calls that mostly make sense, and texts that were damaged."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from mila.network_language import BUILT_IN, Argument, Operator
from tests.network_language.network_cases import CASES

Sizes = tuple[int, ...]
SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 16])
FRAGMENTS = (
    "(", ")", ",", "=", "\n", " ", "x", "out", "name=", "init={'weight': 0.5}", "trainable=False", "policy='up2'",
    "None", "True", "-1", "1e400", "10**9", "9" * 30, "9" * 90, "*", "**", "[", "]", "{", "}", "'", '"', "\0", "\ud800",
    "é", "\t", "\r", "\\", "lambda: x", "x.y", "x[0]", "for i in x: relu()", "import os", "f'{x}'", "a, b = split(2)",
    "concat(x, x)", "reshape(", "linear()", "chunk(2, dim=0)", "0", "B", "...", ";", "#", "if ", "__a",
    "(((((((((", "-" * 200, "not ",
)  # fmt: skip


def values(argument: Argument) -> st.SearchStrategy[str]:
    """The text of a value that an argument may take."""
    if argument.choices:
        return st.sampled_from([repr(choice) for choice in argument.choices])
    if argument.type == "bool":
        return st.sampled_from(["False", "False", "True"])
    if argument.type == "float":
        return st.sampled_from(["0.5", "1", "0.0", "-2.5", "1e-5"])
    if argument.type == "ints":
        return st.lists(st.integers(0, 4), min_size=1, max_size=4).map(str)
    return SIZES.map(str)


@st.composite
def calls(draw: st.DrawFn, operator: Operator, names: list[str]) -> str:
    """A call of an operator with tensors of these names; now and then one that is wrong."""
    ports = operator.ports.inputs
    count = draw(st.integers(2, 3)) if ports[0].variadic else len(ports)
    is_explicit = count > 1 or draw(st.booleans())
    items = [draw(st.sampled_from(names)) for _ in range(count)] if is_explicit else []
    for argument in operator.arguments:
        if argument.name == "input_count" or not (argument.required or draw(st.integers(0, 3)) == 0):
            continue
        items.append(f"{argument.name}={draw(values(argument))}")
    return f"{operator.alias}({', '.join(items)})"


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    """A definition and contracts, as keywords of ``resolve``."""
    is_ids = draw(st.booleans())
    rank = 2 if is_ids else draw(st.sampled_from([2, 3, 3, 4]))
    batch = draw(st.sampled_from(["B", "B", 4]))
    input_shape = (batch, *(draw(SIZES) for _ in range(rank - 1)))
    names = ["x"]
    lines = ["h = embedding(x, 16)"] if is_ids else []
    names += ["h"] if is_ids else []
    operators = [*BUILT_IN.operators]
    for index in range(draw(st.integers(0, 6))):
        operator = draw(st.sampled_from(operators))
        call = draw(calls(operator, names))
        if draw(st.booleans()):
            target = f"t{index}, u{index}" if operator.alias in ("split", "chunk") else f"t{index}"
            lines.append(f"{target} = {call}")
            names += target.split(", ")
        else:
            lines.append(call)
    output_shape = (batch, *(draw(SIZES) for _ in range(draw(st.integers(1, 3)))))
    return {
        "source": "\n".join(lines),
        "input_shape": input_shape,
        "output_shape": draw(st.sampled_from([input_shape, output_shape])),
        "dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "input_dtype": "int64" if is_ids else None,
    }


ELEMENTWISE = (
    "identity(h)", "relu(h)", "gelu(h)", "gelu(h, 'tanh')", "quick_gelu(h)", "silu(h)", "sigmoid(h)", "tanh(h)",
    "mish(h)", "leaky_relu(h, 0.2)", "elu(h, 0.5)", "hardswish(h)", "softplus(h, 2, threshold=3)", "softmax(h)",
    "dropout(h, 0.2)", "scale(h, -0.5)", "clamp(h, -1, 1)", "learned_scale(h, init_value=0.5)", "layer_norm(h)",
    "layer_norm(h, affine=False)", "rms_norm(h)", "rms_norm(h, affine=False)", "add(h, constant(h, value=1.0))",
    "sub(tanh(h), h)", "mul(h, sigmoid(h))", "broadcast_add(h, h)",
)  # fmt: skip


def steps(shape: Sizes, length: int | None) -> dict[str, Sizes]:
    """Assignments that a tensor of these sizes (without the batch) can go through, and the sizes of h after each.

    With ``length``, x holds as many ids.
    """
    *front, width = shape
    framed = (*(1,) * (3 - len(shape)), *shape)
    steps: dict[str, Sizes] = {f"h = {call}": shape for call in ELEMENTWISE}
    steps |= {
        "h = linear(h, 5)": (*front, 5),
        "h = flatten(h)": (math.prod(shape),),
        "h = pad(h, 1, 2, mode='replicate')": (*front, width + 3),
        "h = concat(h, h, axis=1)": (2 * shape[0], *shape[1:]),
        "h, g = chunk(concat(h, h, axis=0), 2, dim=0)": shape,
        "h, g = split(concat(h, h), 1)": (1, *shape[1:]),
        f"h = reshape(h, {', '.join(map(str, framed))})": framed,
        "h = sum(h, 1, keepdim=True)": (1, *shape[1:]),
    }
    if len(shape) == 1 or len(shape) == 2:
        steps |= {"h = feed_forward(h, 3, dropout=0.1)": shape, "h = swiglu(h, 3)": shape}
    if len(shape) == 2:
        steps |= _token_steps(shape[0], width)
        if shape[0] == length:
            steps["h = gather_token(h, x)"] = (width,)
    if len(shape) == 3:
        del steps["h = linear(h, 5)"]
        steps["h = permute(h, 3, 1, 2)"] = (shape[2], shape[0], shape[1])
    return steps


def _token_steps(length: int, width: int) -> dict[str, Sizes]:
    shape = length, width
    same = [
        "pos_embed(h, 500)",
        "attention(h, 1, causal=True)",
        "cross_attention(h, transpose(h, 1, 2), 1)",
        "moe(h, 2, 3)",
    ]
    same += [f"attention(h, {width // 2}, rope=True)"] * (width % 2 == 0)
    same += ["transformer_block(h, 1, mlp_ratio=2)", "transformer_block(h, 1, norm='rms_norm', layer_scale=True)"]
    return {f"h = {call}": shape for call in same} | {
        "h = cls_token(h)": (length + 1, width),
        "h = transpose(h, 1, 2)": (width, length),
        "h = mean(h, 1)": (width,),
        "h = pool_tokens(h, 'first')": (width,),
        "h = matmul(tanh(h), transpose(tanh(h), 1, 2))": (length, length),
    }


@st.composite
def valid_programs(draw: st.DrawFn) -> tuple[dict[str, Any], list[Sizes]]:
    """A chain in which every call makes sense, as keywords of ``resolve``, and the sizes after each line."""
    is_ids = draw(st.booleans())
    shape: Sizes = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=2)))
    input_shape, length = (shape[:1], shape[0]) if is_ids else (shape, None)
    batch = draw(st.sampled_from(["B", 3]))
    lines = ["h = identity(x)"]
    if is_ids:
        shape = (shape[0], 4)
        lines = ["h = embedding(x, 9, 4)"]
    sizes = [shape]
    for _ in range(draw(st.integers(0, 6))):
        line, shape = draw(st.sampled_from(sorted(steps(sizes[-1], length).items())))
        lines.append(line)
        sizes.append(shape)
    arguments = {
        "source": "\n".join([*lines, "out = h"]),
        "input_shape": (batch, *input_shape),
        "output_shape": (batch, *sizes[-1]),
        "input_dtype": "int64" if is_ids else None,
    }
    return arguments, sizes


@st.composite
def damaged_texts(draw: st.DrawFn) -> dict[str, Any]:
    """A case whose text was cut, doubled or mixed with something else."""
    case = draw(st.sampled_from(CASES))
    text: str = case["config"]
    for _ in range(draw(st.integers(1, 3))):
        place, kind = draw(st.integers(0, len(text))), draw(st.integers(0, 3))
        end = min(len(text), place + draw(st.integers(1, 8)))
        if kind == 0:
            text = text[:place] + draw(st.sampled_from(FRAGMENTS)) + text[place:]
        elif kind == 1:
            text = text[:place] + text[end:]
        elif kind == 2:
            text = text[:place] + draw(st.sampled_from(FRAGMENTS)) + text[end:]
        else:
            text = text[:place] + text[place:end] * draw(st.integers(2, 40)) + text[end:]
    return {
        "source": text,
        "input_shape": case["input_shape"],
        "output_shape": case["output_shape"],
        "input_dtype": case["input_dtype"],
    }
