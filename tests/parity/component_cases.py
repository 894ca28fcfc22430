"""The single components that are compared with PyTorch: their configs, inputs and outgoing gradients."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from mila.components import (
    Activation,
    ActivationConfig,
    Attention,
    AttentionConfig,
    HeadNorm,
    HeadNormConfig,
    LayerNorm,
    LayerNormConfig,
    LearnedPositionEncoding,
    LearnedPositionEncodingConfig,
    Linear,
    LinearConfig,
    LinearScaling,
    Llama3Scaling,
    Residual,
    ResidualConfig,
    RmsNorm,
    RmsNormConfig,
    Rope,
    RopeConfig,
    Softmax,
    SoftmaxConfig,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyConfig,
    Swiglu,
    SwigluConfig,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from mila.components.activation import ActivationKind
from mila.core import BuildContext, Component, ComponentConfig, RuntimeMode
from mila.kernels.signatures import Array
from tests.parity.model_cases import IGNORED, load_all, named_gradients, uniform

ACTIVATION_KINDS: tuple[ActivationKind, ...] = get_args(ActivationKind)


@dataclass(frozen=True)
class ComponentCase:
    """One component with one config.

    Attributes:
        shapes: of the inputs, in their order.
        vocab_size: ids among the inputs are below it.
        ignored: an id that is put among the targets as well.
        magnitude: of the inputs, a power of 2.
    """

    name: str
    component: type[Component[Any]]
    config: ComponentConfig
    shapes: tuple[tuple[int, ...], ...]
    vocab_size: int = 0
    ignored: int | None = None
    magnitude: float = 2.0

    def __str__(self) -> str:
        return self.name


def _activations() -> Iterator[ComponentCase]:
    # Products with beta are exact, so that both dtypes agree on where softplus is linear.
    options = {"leaky_relu_slope": 0.125, "elu_alpha": 0.75, "softplus_beta": 2.0, "softplus_threshold": 3.0}
    for kind in ACTIVATION_KINDS:
        config = ActivationConfig(kind=kind, **options)
        yield ComponentCase(f"activation_{kind}", Activation, config, ((2, 5, 7),), magnitude=8.0)
        gate = SwigluConfig(gate_activation=kind, **options)
        yield ComponentCase(f"swiglu_{kind}", Swiglu, gate, ((5, 14),), magnitude=4.0)


def _normalizations() -> Iterator[ComponentCase]:
    shape = ((2, 5, 13),)
    for bias in (True, False):
        layer_norm = LayerNormConfig(normalized_dim=13, bias=bias, epsilon=1e-5 if bias else 0.25)
        yield ComponentCase(f"layer_norm_bias_{bias}", LayerNorm, layer_norm, shape)
        for offset in (0.0, 1.0):
            rms_norm = RmsNormConfig(normalized_dim=13, bias=bias, epsilon=1e-6 if bias else 0.25, unit_offset=offset)
            yield ComponentCase(f"rms_norm_bias_{bias}_offset_{offset:g}", RmsNorm, rms_norm, shape)
    plain_layer_norm = LayerNormConfig(normalized_dim=13, affine=False)
    yield ComponentCase("layer_norm_without_parameters", LayerNorm, plain_layer_norm, shape)
    plain_rms_norm = RmsNormConfig(normalized_dim=13, affine=False)
    yield ComponentCase("rms_norm_without_parameters", RmsNorm, plain_rms_norm, shape)
    for epsilon in (1e-6, 0.25):
        heads = HeadNormConfig(num_heads=3, num_kv_heads=2, head_dim=6, epsilon=epsilon)
        yield ComponentCase(f"head_norm_epsilon_{epsilon:g}", HeadNorm, heads, ((2, 5, heads.packed_width),))
    for axis in (-1, 1, 0):
        yield ComponentCase(f"softmax_axis_{axis}", Softmax, SoftmaxConfig(axis=axis), ((3, 5, 7),), magnitude=8.0)


def _losses() -> Iterator[ComponentCase]:
    for ignored in (None, IGNORED, 3):
        config = SoftmaxCrossEntropyConfig(ignore_index=ignored)
        name = f"cross_entropy_ignoring_{ignored}"
        yield ComponentCase(name, SoftmaxCrossEntropy, config, ((2, 7, 11), (2, 7)), 11, ignored, magnitude=8.0)


def _attention(name: str, shape: tuple[int, int], config: AttentionConfig) -> ComponentCase:
    return ComponentCase(f"attention_{name}", Attention, config, ((*shape, config.packed_width),))


def _attentions() -> Iterator[ComponentCase]:
    yield _attention("causal", (1, 13), AttentionConfig(num_heads=3, num_kv_heads=3, head_dim=4))
    yield _attention("grouped", (2, 13), AttentionConfig(num_heads=6, num_kv_heads=2, head_dim=5))
    yield _attention("one_kv_head", (1, 13), AttentionConfig(num_heads=3, num_kv_heads=1, head_dim=8, scale=0.75))
    yield _attention(
        "window", (1, 13), AttentionConfig(num_heads=3, num_kv_heads=1, head_dim=4, sliding_window=5, scale=0.5)
    )
    yield _attention(
        "own_position_only", (1, 5), AttentionConfig(num_heads=1, num_kv_heads=1, head_dim=4, sliding_window=1)
    )
    yield _attention("not_causal", (1, 13), AttentionConfig(num_heads=3, num_kv_heads=1, head_dim=4, causal=False))
    yield _attention("one_position", (2, 1), AttentionConfig(num_heads=2, num_kv_heads=1, head_dim=4))


def _positions() -> Iterator[ComponentCase]:
    for rotary_dim in (None, 4):
        config = RopeConfig(num_heads=3, num_kv_heads=1, head_dim=8, theta=500.0, rotary_dim=rotary_dim, max_seq_len=13)
        yield ComponentCase(f"rope_{rotary_dim or 'all'}", Rope, config, ((2, 13, config.packed_width),))
    llama3 = Llama3Scaling(factor=8.0, low_frequency_factor=0.5, high_frequency_factor=4.0, original_max_seq_len=100)
    for name, scaling in (("linear", LinearScaling(factor=2.5)), ("llama3", llama3)):
        turned = RopeConfig(num_heads=3, num_kv_heads=1, head_dim=8, theta=500.0, scaling=scaling, max_seq_len=13)
        yield ComponentCase(f"rope_{name}", Rope, turned, ((2, 13, turned.packed_width),))
    table = LearnedPositionEncodingConfig(max_seq_len=9, embedding_dim=11)
    yield ComponentCase("positions", LearnedPositionEncoding, table, ((2, 7, 11),))


def _projections() -> Iterator[ComponentCase]:
    for bias in (True, False):
        linear = LinearConfig(in_features=7, out_features=11, bias=bias)
        yield ComponentCase(f"linear_bias_{bias}", Linear, linear, ((2, 5, 7),))
    embedding = TokenEmbeddingConfig(vocab_size=13, embedding_dim=7, embedding_scale=2.5)
    yield ComponentCase("embedding", TokenEmbedding, embedding, ((3, 9),), vocab_size=13)
    yield ComponentCase("residual", Residual, ResidualConfig(scale=0.3), ((2, 5, 7), (2, 5, 7)))


COMPONENT_CASES = (
    *_activations(),
    *_normalizations(),
    *_losses(),
    *_attentions(),
    *_positions(),
    *_projections(),
)


def build_component(case: ComponentCase, dtype: str) -> Component[Any]:
    """The component of a case, built for training."""
    component = case.component("component", case.config, device="cpu", dtype=dtype)
    shapes = {port.name: shape for port, shape in zip(component.ports, case.shapes, strict=True)}
    component.build(BuildContext(shapes, RuntimeMode.TRAINING))
    return component


def draw_component(case: ComponentCase) -> dict[str, Array]:
    """Inputs, parameters and the gradient of the output, float32 or int32."""
    generator = np.random.default_rng(zlib.crc32(case.name.encode()))
    component = build_component(case, "float32")
    drawn: dict[str, Array] = {}
    for port, shape in zip(component.ports, case.shapes, strict=True):
        if port.is_ids:
            ids = generator.integers(0, case.vocab_size, shape).astype(np.int32)
            if case.ignored is not None:
                ids[..., 1::3] = case.ignored
            drawn[f"input.{port.name}"] = ids
        else:
            drawn[f"input.{port.name}"] = uniform(generator, shape, case.magnitude).astype(np.float32)
    for name, parameter in zip(component.get_parameter_names(), component.get_parameters(), strict=True):
        drawn[f"parameter.{name}"] = uniform(generator, parameter.shape).astype(np.float32)
    output = component.forward(*_inputs(component, drawn))
    drawn["gradient"] = uniform(generator, output.shape).astype(np.float32)
    return drawn


def run_component(case: ComponentCase, dtype: str, drawn: Mapping[str, Array]) -> dict[str, Array]:
    """What Mila makes of ``drawn``: the output, gradients of inputs that have one, gradients of parameters."""
    component = build_component(case, dtype)
    load_all(component, {name: drawn[f"parameter.{name}"] for name in component.get_parameter_names()})
    inputs = _inputs(component, drawn)
    results = {"output": component.forward(*inputs).copy()}
    returned = component.backward(*inputs, drawn["gradient"].astype(dtype))
    gradients = returned if isinstance(returned, tuple) else (returned,)
    for port, gradient in zip(component.ports, gradients, strict=True):
        if not port.is_ids:
            results[f"input.{port.name}.gradient"] = gradient.copy()
    for name, gradient in named_gradients(component).items():
        results[f"parameter.{name}.gradient"] = gradient
    return results


def _inputs(component: Component[Any], drawn: Mapping[str, Array]) -> list[Array]:
    arrays = [(port, drawn[f"input.{port.name}"]) for port in component.ports]
    return [array if port.is_ids else array.astype(component.dtype) for port, array in arrays]
