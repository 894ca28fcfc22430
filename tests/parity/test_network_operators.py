"""Every operator of the network language gives what PyTorch gives, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from mila import BuildContext, RuntimeMode, TrainingMode
from mila.network_language import BUILT_IN
from tests.network_language.building import input_shapes, inputs_of, named_gradients, named_parameters
from tests.network_language.operator_calls import ALL_CALLS, Call
from tests.promises.gradient_check import as_tuple, output_weights

torch = pytest.importorskip("torch")
functional = torch.nn.functional
pytestmark = pytest.mark.parity

BATCH = 3
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
Tensor = Any
#: Of the arguments, the inputs in order, and the parameters by name.
Reference = Callable[[Mapping[str, Any], "list[Tensor]", "Mapping[str, Tensor]"], Tensor]
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


def of_x(function: Callable[..., Tensor]) -> Reference:
    """A function of the only input and the arguments."""
    return lambda arguments, inputs, parameters: function(*inputs, **arguments)


def projected(x: Tensor, parameters: Mapping[str, Tensor], name: str) -> Tensor:
    return functional.linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))


def part(parameters: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The parameters of one child."""
    return {key.removeprefix(f"{name}."): value for key, value in parameters.items() if key.startswith(f"{name}.")}


def turned(x: Tensor) -> Tensor:
    """Rotary positions of (B, heads, T, width): halves against each other, base 10000."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * speeds
    cosine, sine = (torch.cat([table, table], -1).to(x.dtype) for table in (angles.cos(), angles.sin()))
    return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine


def attention(arguments: Mapping[str, Any], inputs: list[Tensor], parameters: Mapping[str, Tensor]) -> Tensor:
    x, context = inputs[0], inputs[-1]
    sources = {"q_proj": x, "k_proj": context, "v_proj": context}
    q, k, v = (
        projected(source, parameters, name).unflatten(-1, (arguments["heads"], -1)).transpose(1, 2)
        for name, source in sources.items()
    )
    if arguments.get("rope"):
        q, k = turned(q), turned(k)
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=arguments.get("causal", False))
    return projected(attended.transpose(1, 2).flatten(2), parameters, "o_proj")


def feed_forward(arguments: Mapping[str, Any], inputs: list[Tensor], parameters: Mapping[str, Tensor]) -> Tensor:
    hidden = FUNCTIONS[arguments["activation"]](projected(inputs[0], parameters, "up"))
    return projected(hidden, parameters, "down")


def swiglu(arguments: Mapping[str, Any], inputs: list[Tensor], parameters: Mapping[str, Tensor]) -> Tensor:
    gate = functional.silu(projected(inputs[0], parameters, "gate"))
    return projected(gate * projected(inputs[0], parameters, "up"), parameters, "down")


def moe(arguments: Mapping[str, Any], inputs: list[Tensor], parameters: Mapping[str, Tensor]) -> Tensor:
    (x,) = inputs
    scores = projected(x, parameters, "router").topk(arguments["top_k"])
    weights = torch.zeros(*x.shape[:-1], arguments["experts"], dtype=x.dtype)
    weights = weights.scatter(-1, scores.indices, scores.values.softmax(-1))
    results = [feed_forward(arguments, inputs, part(parameters, f"experts.{i}")) for i in range(arguments["experts"])]
    return (torch.stack(results, -1) * weights[..., None, :]).sum(-1)


def norm(kind: str, x: Tensor, parameters: Mapping[str, Tensor], eps: float) -> Tensor:
    weight, bias = parameters.get("weight"), parameters.get("bias")
    if kind == "rms_norm":
        return functional.rms_norm(x, x.shape[-1:], weight, eps)
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def normalized(kind: str) -> Reference:
    return lambda arguments, inputs, parameters: norm(kind, inputs[0], parameters, arguments["eps"])


def block(arguments: Mapping[str, Any], inputs: list[Tensor], parameters: Mapping[str, Tensor]) -> Tensor:
    """``torch.nn.TransformerEncoderLayer`` has neither RMS norms, scales of layers, nor all activations."""
    (x,) = inputs
    for index, name, function in ((1, "attn", attention), (2, "ffn", feed_forward)):
        y = norm(arguments["norm"], x, part(parameters, f"norm{index}"), arguments["eps"])
        x = x + function(arguments, [y], part(parameters, name)) * parameters.get(f"gamma{index}", 1)
    return x


def pooled(x: Tensor, mode: str) -> Tensor:
    return {"mean": x.mean(1), "first": x[:, 0], "last": x[:, -1], "max": x.max(1).values}[mode]


def padded(x: Tensor, padding: tuple[int, ...], value: float, mode: str) -> Tensor:
    return functional.pad(x, padding, mode, value if mode == "constant" else None)


#: The function of every operator; each of them is one of PyTorch, or written in its functions.
REFERENCES: dict[str, Reference] = {
    "embedding": lambda a, inputs, p: functional.embedding(inputs[0], p["weight"]),
    "linear": lambda a, inputs, p: functional.linear(inputs[0], p["weight"], p.get("bias")),
    "pos_embed": lambda a, inputs, p: inputs[0] + p["weight"][: inputs[0].shape[1]],
    "cls_token": lambda a, inputs, p: torch.cat([p["token"].expand(len(inputs[0]), -1, -1), inputs[0]], 1),
    "attention": attention,
    "cross_attention": attention,
    "feed_forward": feed_forward,
    "swiglu": swiglu,
    "moe": moe,
    "transformer_block": block,
    "gather_token": of_x(lambda x, ids, mode: x[torch.arange(len(ids)), ids.argmax(1)]),
    "pool_tokens": of_x(pooled),
    "elu": of_x(functional.elu),
    "gelu": of_x(functional.gelu),
    "hardswish": of_x(functional.hardswish),
    "identity": of_x(torch.clone),
    "leaky_relu": of_x(functional.leaky_relu),
    "mish": of_x(functional.mish),
    "quick_gelu": of_x(FUNCTIONS["quick_gelu"]),
    "relu": of_x(functional.relu),
    "sigmoid": of_x(torch.sigmoid),
    "silu": of_x(functional.silu),
    "softmax": of_x(functional.softmax),
    "softplus": of_x(functional.softplus),
    "tanh": of_x(torch.tanh),
    "layer_norm": normalized("layer_norm"),
    "rms_norm": normalized("rms_norm"),
    "dropout": of_x(lambda x, p: functional.dropout(x, p, training=False)),
    "add": of_x(torch.add),
    "sub": of_x(torch.sub),
    "mul": of_x(torch.mul),
    "broadcast_add": of_x(torch.add),
    "scale": of_x(lambda x, factor: factor * x),
    "clamp": of_x(torch.clamp),
    "constant": of_x(lambda x, shape, value: torch.full((len(x), *shape), value, dtype=x.dtype) + 0 * x.sum()),
    "learned_scale": lambda a, inputs, p: inputs[0] * p["gamma"],
    "matmul": of_x(torch.matmul),
    "split": of_x(lambda x, size, dim: x.split([size, x.shape[dim] - size], dim)),
    "chunk": of_x(torch.chunk),
    "concat": lambda a, inputs, p: torch.cat(inputs, a["axis"]),
    "reshape": of_x(lambda x, shape: x.reshape(len(x), *shape)),
    "flatten": of_x(lambda x: x.flatten(1)),
    "transpose": of_x(torch.transpose),
    "permute": of_x(lambda x, dims: x.permute(0, *dims)),
    "pad": of_x(padded),
    "mean": of_x(torch.mean),
    "sum": of_x(torch.sum),
}


def is_random(arguments: Mapping[str, Any]) -> bool:
    """Whether the call drops elements, which PyTorch does with other random numbers."""
    return bool(arguments.get("dropout") or arguments.get("p"))


def evaluated(call: Call, dtype: str) -> tuple[Any, list[Tensor], dict[str, Tensor], list[Tensor]]:
    """The built network of a call, and what PyTorch makes of its inputs and parameters, node by node."""
    made = call.network(compute_dtype="float64" if dtype == "float64" else None)
    made.build(BuildContext(input_shapes(made.resolved, BATCH), RuntimeMode.TRAINING))
    inputs = [torch.from_numpy(array.copy()) for array in inputs_of(made, BATCH)]
    parameters = {name: torch.from_numpy(array.copy()) for name, array in named_parameters(made).items()}
    for tensor in (*inputs, *parameters.values()):
        if tensor.is_floating_point():
            tensor.requires_grad_()
    values = {tensor.ref: value for tensor, value in zip(made.resolved.inputs, inputs, strict=True)}
    for node in made.resolved.nodes:
        arguments = {name: value for name, value in node.arguments.items() if name != "input_count"}
        given = [values[ref] for ref in node.inputs.values()]
        result = REFERENCES[node.operator.alias](arguments, given, part(parameters, node.id))
        results = result if isinstance(result, list | tuple) else (result,)
        for port, value in zip(node.output_shapes, results, strict=True):
            values[f"node:{node.id}/{port}"] = value
    return made, inputs, parameters, [values[tensor.ref] for tensor in made.resolved.outputs]


def assert_close(found: Any, expected: Tensor, dtype: str) -> None:
    wanted = expected.detach().numpy()
    assert found.dtype.name == dtype
    assert found.shape == wanted.shape
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("call", ALL_CALLS, ids=str)
def test_an_operator_agrees_with_torch(call: Call, dtype: str) -> None:
    made, given, parameters, expected = evaluated(call, dtype)
    inputs = [tensor.detach().numpy() for tensor in given]
    if any(is_random(node.arguments) for node in made.resolved.nodes):  # what is dropped is Mila's own draw
        made.set_training_mode(TrainingMode.EVAL)
    outputs = [array.copy() for array in as_tuple(made.forward(*inputs))]
    for found, tensor in zip(outputs, expected, strict=True):
        assert_close(found, tensor, dtype)
    if made.training_mode is TrainingMode.EVAL:
        return
    weights = output_weights(outputs)
    torch.autograd.backward(expected, [torch.from_numpy(weight) for weight in weights])
    gradients = as_tuple(made.backward(*inputs, *weights))
    for gradient, tensor in zip(gradients, given, strict=True):
        if tensor.is_floating_point():
            assert_close(gradient, tensor.grad, dtype)
    for name, found_gradient in named_gradients(made).items():
        assert found_gradient is not None
        assert_close(found_gradient, parameters[name].grad, dtype)


def test_every_operator_is_compared() -> None:
    assert {*REFERENCES} == {*BUILT_IN} == {call.alias for call in ALL_CALLS}
