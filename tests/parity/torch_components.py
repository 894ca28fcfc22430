"""Single components in plain PyTorch, each a function of its config, its inputs and its parameters by Mila's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from mila.components import (
    ActivationConfig,
    AttentionConfig,
    HeadNormConfig,
    LayerNormConfig,
    LearnedPositionEncodingConfig,
    LinearConfig,
    ResidualConfig,
    RmsNormConfig,
    RopeConfig,
    SoftmaxConfig,
    SoftmaxCrossEntropyConfig,
    SwigluConfig,
    TokenEmbeddingConfig,
)
from mila.components.activation import ActivationOptions
from mila.kernels.signatures import Array
from tests.parity.component_cases import ComponentCase
from tests.parity.torch_models import ACTIVATIONS, Tensor, attend, cross_entropy, rotary_tables, rotate, split_heads

Inputs = tuple[Tensor, ...]
Parameters = Mapping[str, Tensor]


def _activation(x: Tensor, kind: str, config: ActivationOptions) -> Tensor:
    with_options = {
        "leaky_relu": lambda: functional.leaky_relu(x, config.leaky_relu_slope),
        "elu": lambda: functional.elu(x, config.elu_alpha),
        "softplus": lambda: functional.softplus(x, config.softplus_beta, config.softplus_threshold),
    }
    return with_options[kind]() if kind in with_options else ACTIVATIONS[kind](x)


def activation(config: ActivationConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    return _activation(inputs[0], config.kind, config)


def swiglu(config: SwigluConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    gate, value = inputs[0].chunk(2, dim=-1)
    return _activation(gate, config.gate_activation, config) * value


def layer_norm(config: LayerNormConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    shape = (config.normalized_dim,)
    return functional.layer_norm(inputs[0], shape, parameters.get("weight"), parameters.get("bias"), config.epsilon)


def rms_norm(config: RmsNormConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    weight = parameters["weight"] + config.unit_offset if config.affine else None
    y = functional.rms_norm(inputs[0], (config.normalized_dim,), weight, config.epsilon)
    return y + parameters["bias"] if config.bias else y


def softmax(config: SoftmaxConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    return functional.softmax(inputs[0], dim=config.axis)


def softmax_cross_entropy(config: SoftmaxCrossEntropyConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    logits, targets = inputs
    return cross_entropy(logits, targets, config.ignore_index).reshape(1)


def attention(config: AttentionConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    widths = [heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    q, k, v = (split_heads(part, config.head_dim) for part in inputs[0].split(widths, dim=-1))
    return attend(q, k, v, causal=config.causal, window=config.sliding_window, scale=config.scale)


def rope(config: RopeConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    x = inputs[0]
    tables = rotary_tables(x.shape[1], config.turning_dim, config.theta, config.scaling)
    width = (config.num_heads + config.num_kv_heads) * config.head_dim
    turned = rotate(split_heads(x[..., :width], config.head_dim), *(table.to(x.dtype) for table in tables))
    return torch.cat((turned.transpose(1, 2).flatten(2), x[..., width:]), dim=-1)


def head_norm(config: HeadNormConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    heads = inputs[0].unflatten(-1, (-1, config.head_dim))
    q, k, v = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=-2)
    shape = (config.head_dim,)
    q = functional.rms_norm(q, shape, parameters["query_weight"], config.epsilon)
    k = functional.rms_norm(k, shape, parameters["key_weight"], config.epsilon)
    return torch.cat((q, k, v), dim=-2).flatten(-2)


def positions(config: LearnedPositionEncodingConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    return inputs[0] + parameters["wpe"][: inputs[0].shape[1]]


def linear(config: LinearConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    return functional.linear(inputs[0], parameters["weight"], parameters.get("bias"))


def token_embedding(config: TokenEmbeddingConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    return functional.embedding(inputs[0], parameters["wte"]) * config.embedding_scale


def residual(config: ResidualConfig, inputs: Inputs, parameters: Parameters) -> Tensor:
    return inputs[0] + config.scale * inputs[1]


#: The function of each component, by the class of its config.
FUNCTIONS: dict[type, Callable[[Any, Inputs, Parameters], Tensor]] = {
    ActivationConfig: activation,
    AttentionConfig: attention,
    HeadNormConfig: head_norm,
    LayerNormConfig: layer_norm,
    LearnedPositionEncodingConfig: positions,
    LinearConfig: linear,
    ResidualConfig: residual,
    RmsNormConfig: rms_norm,
    RopeConfig: rope,
    SoftmaxConfig: softmax,
    SoftmaxCrossEntropyConfig: softmax_cross_entropy,
    SwigluConfig: swiglu,
    TokenEmbeddingConfig: token_embedding,
}


def run_torch_component(case: ComponentCase, dtype: str, drawn: Mapping[str, Array]) -> dict[str, Array]:
    """What PyTorch makes of ``drawn``, under the names of ``component_cases.run_component``."""
    leaves = {}
    for name, array in drawn.items():
        tensor = torch.from_numpy(array.copy())
        is_ids = not tensor.is_floating_point()
        leaves[name] = tensor.long() if is_ids else tensor.to(getattr(torch, dtype)).requires_grad_(name != "gradient")
    inputs = tuple(leaves[name] for name in drawn if name.startswith("input."))
    prefix = "parameter."
    parameters = {name.removeprefix(prefix): leaves[name] for name in drawn if name.startswith(prefix)}
    output = FUNCTIONS[type(case.config)](case.config, inputs, parameters)
    output.backward(leaves["gradient"])
    results = {"output": output.detach().numpy()}
    for name, leaf in leaves.items():
        if leaf.requires_grad:
            results[f"{name}.gradient"] = leaf.grad.numpy()
    return results
