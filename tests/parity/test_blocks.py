"""Attention, feed-forward layers and the block made of both give what PyTorch gives, and all gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import pytest

from mila.components import (
    FeedForward,
    FeedForwardConfig,
    GatedFeedForward,
    GatedFeedForwardConfig,
    Linear,
    LinearConfig,
    SelfAttention,
    SelfAttentionConfig,
    TransformerBlock,
    TransformerBlockConfig,
)
from mila.components.activation import ActivationKind
from mila.core import BuildContext, Component, RuntimeMode
from mila.kernels.signatures import Array

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}
Tensors = Mapping[str, Any]

both_dtypes = pytest.mark.parametrize("dtype", TOLERANCE)


def assert_agrees(
    component: Component[Any], shape: tuple[int, ...], dtype: str, formula: Callable[[Any, Tensors], Any]
) -> None:
    """Compare output and all gradients with those of ``formula(x, parameters)``, for random numbers."""
    random = np.random.default_rng(5)
    component.build(BuildContext(shape, RuntimeMode.TRAINING))
    names = component.get_parameter_names()
    values: dict[str, Array] = {
        name: random.standard_normal(p.shape).astype(dtype)
        for name, p in zip(names, component.get_parameters(), strict=True)
    }
    for name, value in values.items():
        component.load_parameter(name, value)
    x, dy = (random.standard_normal(shape).astype(dtype) for _ in range(2))
    variable = torch.from_numpy(x.copy()).requires_grad_()
    parameters = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in values.items()}
    expected = formula(variable, parameters)
    expected.backward(torch.from_numpy(dy))
    made = [component.forward(x), component.backward(x, dy), *component.get_gradients()]
    wanted = [expected.detach(), variable.grad, *(parameters[name].grad for name in names)]
    for name, got, value in zip(["output", "x", *names], made, wanted, strict=True):
        limit = TOLERANCE[dtype]
        # The gradient of a bias adds up what that of its weight adds up too; that of the keys cancels out.
        weight = parameters.get(name.replace(".bias", ".weight"))
        terms = [value] if weight is None else [value, weight.grad]
        largest = max(1.0, *(float(term.abs().max()) for term in terms))
        np.testing.assert_allclose(got, value.numpy(), rtol=limit, atol=limit * largest, err_msg=name)


def project(x: Any, parameters: Tensors, name: str) -> Any:
    return torch.nn.functional.linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))


def attend(x: Any, parameters: Tensors, heads: int, causal: bool = False, rope: bool = False) -> Any:
    from tests.parity.torch_models import rotary_tables, rotate

    batch, length, width = x.shape
    queries, keys, values = (
        project(x, parameters, name).reshape(batch, length, heads, -1).transpose(1, 2)
        for name in ("q_proj", "k_proj", "v_proj")
    )
    if rope:
        tables = [table.to(x.dtype) for table in rotary_tables(length, width // heads, 10000.0)]
        queries, keys = rotate(queries, *tables), rotate(keys, *tables)
    attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=causal)
    return project(attended.transpose(1, 2).reshape(x.shape), parameters, "o_proj")


def below(parameters: Tensors, name: str) -> Tensors:
    """Return the parameters of a child, by their names in it."""
    return {key.removeprefix(f"{name}."): value for key, value in parameters.items() if key.startswith(f"{name}.")}


@both_dtypes
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "heads"), [((2, 7, 12), 3), ((1, 150, 8), 1)], ids=str)
def test_self_attention(shape: tuple[int, ...], heads: int, causal: bool, bias: bool, rope: bool, dtype: str) -> None:
    config = SelfAttentionConfig(embedding_dim=shape[2], num_heads=heads, causal=causal, bias=bias, rope=rope)
    component = SelfAttention("component", config, device="cpu", dtype=dtype)
    assert_agrees(component, shape, dtype, lambda x, parameters: attend(x, parameters, heads, causal, rope))


@both_dtypes
@pytest.mark.parametrize("kind", get_args(ActivationKind))
def test_feed_forward(kind: ActivationKind, dtype: str) -> None:
    from tests.parity.torch_models import ACTIVATIONS

    config = FeedForwardConfig(embedding_dim=6, hidden_dim=20, activation=kind)
    component = FeedForward("component", config, device="cpu", dtype=dtype)

    def formula(x: Any, parameters: Tensors) -> Any:
        return project(ACTIVATIONS[kind](project(x, parameters, "up")), parameters, "down")

    assert_agrees(component, (2, 5, 6), dtype, formula)


@both_dtypes
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", get_args(ActivationKind))
def test_gated_feed_forward(kind: ActivationKind, bias: bool, dtype: str) -> None:
    from tests.parity.torch_models import ACTIVATIONS

    config = GatedFeedForwardConfig(embedding_dim=6, hidden_dim=20, gate_activation=kind, bias=bias)
    component = GatedFeedForward("component", config, device="cpu", dtype=dtype)

    def formula(x: Any, parameters: Tensors) -> Any:
        gate = ACTIVATIONS[kind](project(x, parameters, "gate"))
        return project(gate * project(x, parameters, "up"), parameters, "down")

    assert_agrees(component, (2, 5, 6), dtype, formula)


@both_dtypes
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_a_block_is_an_encoder_layer(activation: ActivationKind, causal: bool, dtype: str) -> None:
    """With its norms first, in training without dropout: PyTorch computes it from the same parameters."""
    from tests.parity.torch_models import ACTIVATIONS

    config = TransformerBlockConfig(
        embedding_dim=12, num_heads=3, hidden_dim=20, activation=activation, causal=causal, epsilon=1e-3
    )
    component = TransformerBlock("component", config, device="cpu", dtype=dtype)
    layer = torch.nn.TransformerEncoderLayer(
        12,
        3,
        dim_feedforward=20,
        dropout=0.0,
        activation=ACTIVATIONS[activation],
        layer_norm_eps=1e-3,
        batch_first=True,
        norm_first=True,
    )
    mask = torch.nn.Transformer.generate_square_subsequent_mask(7, dtype=getattr(torch, dtype)) if causal else None

    def formula(x: Any, parameters: Tensors) -> Any:
        names = {"attn.o_proj": "self_attn.out_proj", "ffn.up": "linear1", "ffn.down": "linear2"}
        theirs = {}
        for end in ("weight", "bias"):
            packed = [parameters[f"attn.{name}_proj.{end}"] for name in ("q", "k", "v")]
            theirs[f"self_attn.in_proj_{end}"] = torch.cat(packed)
            for ours, their in {**names, "norm1": "norm1", "norm2": "norm2"}.items():
                theirs[f"{their}.{end}"] = parameters[f"{ours}.{end}"]
        return torch.func.functional_call(layer, theirs, (x,), {"src_mask": mask, "is_causal": causal}, strict=True)

    assert_agrees(component, (2, 7, 12), dtype, formula)


@both_dtypes
@pytest.mark.parametrize("layer_scale", [False, True])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_block_with_other_norms_and_scales(norm: Any, layer_scale: bool, dtype: str) -> None:
    config = TransformerBlockConfig(
        embedding_dim=12, num_heads=3, hidden_dim=20, norm=norm, layer_scale=layer_scale, epsilon=1e-3
    )
    component = TransformerBlock("component", config, device="cpu", dtype=dtype)
    functional = torch.nn.functional

    def normalize(x: Any, weights: Tensors) -> Any:
        if norm == "rms_norm":
            return functional.rms_norm(x, (12,), weights["weight"], 1e-3)
        return functional.layer_norm(x, (12,), weights["weight"], weights["bias"], 1e-3)

    def formula(x: Any, parameters: Tensors) -> Any:
        branch = attend(normalize(x, below(parameters, "norm1")), below(parameters, "attn"), 3)
        h = x + parameters.get("gamma1", 1) * branch
        up = project(normalize(h, below(parameters, "norm2")), parameters, "ffn.up")
        return h + parameters.get("gamma2", 1) * project(functional.gelu(up), parameters, "ffn.down")

    assert_agrees(component, (2, 7, 12), dtype, formula)


@pytest.mark.parametrize("bias", [False, True])
def test_initial_values_of_fan_in_are_distributed_as_those_of_pytorch(bias: bool) -> None:
    """The same bound, mean and deviation of many numbers, whose order no two programs share."""
    config = LinearConfig(in_features=400, out_features=700, bias=bias, initialization="fan_in")
    linear = Linear("linear", config, device="cpu", seed=3)
    linear.build(BuildContext((1, 400), RuntimeMode.TRAINING))
    torch.manual_seed(3)
    theirs = torch.nn.Linear(400, 700, bias=bias)
    for ours, parameter in zip(linear.get_parameters(), theirs.parameters(), strict=True):
        values = parameter.detach().numpy()
        assert values.shape == ours.shape
        for array in (ours, values):
            assert np.abs(array).max() == pytest.approx(0.05, rel=0.02)
            assert np.abs(array).max() <= np.float32(0.05)
            assert array.std() == pytest.approx(0.05 / 3**0.5, rel=0.05)
            assert abs(array.mean()) < 0.005
