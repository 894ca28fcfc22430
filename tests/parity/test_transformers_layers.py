"""The options of the Llama family, and GPT-2's attention scaling, against the layers of ``transformers``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mila.components import (
    GptBlock,
    HeadNorm,
    HeadNormConfig,
    LinearScaling,
    Llama3Scaling,
    LlamaBlock,
    RopeConfig,
)
from mila.core import BuildContext, Component, RuntimeMode
from mila.kernels.signatures import Array
from mila.models import GptConfig, LlamaConfig
from tests.parity.model_cases import load_all, named_gradients, relative_error, uniform

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

#: Their norms and softmax compute in float32 whatever they are given.
TOLERANCE = 1e-5
LENGTH = 13
#: Names of the tensors that a parameter of ours joins, and whether they are stored transposed.
Source = tuple[tuple[str, ...], bool]
SIZES: dict[str, Any] = {
    "vocab_size": 7,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-4,
    "attn_implementation": "eager",
}
LLAMA: dict[str, Any] = {
    "vocab_size": 7,
    "embedding_dim": 24,
    "hidden_dim": 20,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "max_seq_len": 64,
    "norm_epsilon": 1e-4,
}


def llama3(**changes: float) -> Llama3Scaling:
    fields = {"factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, **changes}
    return Llama3Scaling(original_max_seq_len=fields.pop("length", 8192), **fields)  # type: ignore[arg-type]


def rope_parameters(theta: float, scaling: LinearScaling | Llama3Scaling | None) -> dict[str, Any]:
    """What the ``config.json`` of a model with this rope holds."""
    if scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "rope_theta": theta, "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_max_seq_len,
    }


@pytest.mark.parametrize(
    ("theta", "scaling"),
    [
        (10000.0, LinearScaling(factor=4.0)),
        (1e6, LinearScaling(factor=0.5)),
        (500000.0, llama3()),
        (500000.0, llama3(factor=32.0)),
        (10000.0, llama3(low_frequency_factor=0.3, high_frequency_factor=90.0, length=100)),
        (3.0, llama3(low_frequency_factor=8.0, high_frequency_factor=8.5, length=70)),
    ],
    ids=str,
)
@pytest.mark.parametrize("head_dim", [2, 64, 128])
def test_scaled_frequencies(head_dim: int, theta: float, scaling: LinearScaling | Llama3Scaling) -> None:
    """As exact as their float32."""
    from transformers import LlamaConfig as TransformersConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = rope_parameters(theta, scaling)
    config = TransformersConfig(**{**SIZES, "head_dim": head_dim}, rope_parameters=parameters)
    expected, attention_factor = ROPE_INIT_FUNCTIONS[scaling.kind](config, "cpu")
    rope = RopeConfig(num_heads=1, num_kv_heads=1, head_dim=head_dim, theta=theta, scaling=scaling, max_seq_len=LENGTH)
    assert attention_factor == 1.0
    np.testing.assert_allclose(rope.frequencies, expected.numpy(), rtol=2e-6)


def draw(generator: np.random.Generator, module: Any) -> None:
    """New values for every parameter of a module."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = uniform(generator, tuple(parameter.shape), 0.25)
            is_norm_weight = name.endswith("weight") and values.ndim == 1
            parameter.copy_(torch.from_numpy(values + is_norm_weight))


def assert_same_layer(
    layer: Any, call: Callable[[Any], Any], component: Component[Any], width: int, sources: Mapping[str, Source]
) -> None:
    """Output, gradient of the input and of every parameter agree; ``sources``: what our parameters are made of."""
    generator = np.random.default_rng(3)
    draw(generator, layer)
    shape = (2, LENGTH, width)
    x, dy = uniform(generator, shape, 2.0).astype(np.float32), uniform(generator, shape).astype(np.float32)
    variable = torch.from_numpy(x.copy()).requires_grad_()
    expected = call(variable)
    expected.backward(torch.from_numpy(dy))
    theirs = dict(layer.named_parameters())
    ours = {name: source for name, source in sources.items() if source[0][0] in theirs}
    assert sorted(name for parts, _ in ours.values() for name in parts) == sorted(theirs)
    component.build(BuildContext(shape, RuntimeMode.TRAINING))
    load_all(component, {name: joined(source, lambda n: theirs[n].detach()) for name, source in ours.items()})
    assert relative_error(component.forward(x), expected.detach().numpy()) <= TOLERANCE
    assert relative_error(component.backward(x, dy), variable.grad.numpy()) <= TOLERANCE
    gradients = {name: joined(source, lambda n: theirs[n].grad) for name, source in ours.items()}
    errors = {name: relative_error(array, gradients[name]) for name, array in named_gradients(component).items()}
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}


def joined(source: Source, tensor_of: Callable[[str], Any]) -> Array:
    """The tensors of a source below one another, transposed where they are stored so."""
    names, is_transposed = source
    array: Array = np.concatenate([tensor_of(name).numpy() for name in names])
    return np.ascontiguousarray(array.T) if is_transposed else array


def test_head_norm() -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    heads, kv_heads, size = 3, 2, 6
    config = HeadNormConfig(num_heads=heads, num_kv_heads=kv_heads, head_dim=size, epsilon=0.01)
    norms = torch.nn.ModuleDict({name: Qwen3RMSNorm(size, eps=0.01) for name in ("q_norm", "k_norm")})

    def call(x: Any) -> Any:
        q, k, v = x.unflatten(-1, (-1, size)).split([heads, kv_heads, kv_heads], dim=-2)
        return torch.cat((norms["q_norm"](q), norms["k_norm"](k), v), dim=-2).flatten(-2)

    sources: dict[str, Source] = {
        "query_weight": (("q_norm.weight",), False),
        "key_weight": (("k_norm.weight",), False),
    }
    assert_same_layer(norms, call, HeadNorm("norm", config, device="cpu"), config.packed_width, sources)


LLAMA_SOURCES: dict[str, Source] = {
    "norm_1.weight": (("input_layernorm.weight",), False),
    "qkv_proj.weight": (tuple(f"self_attn.{part}_proj.weight" for part in "qkv"), False),
    "qkv_proj.bias": (tuple(f"self_attn.{part}_proj.bias" for part in "qkv"), False),
    "qk_norm.query_weight": (("self_attn.q_norm.weight",), False),
    "qk_norm.key_weight": (("self_attn.k_norm.weight",), False),
    "out_proj.weight": (("self_attn.o_proj.weight",), False),
    "out_proj.bias": (("self_attn.o_proj.bias",), False),
    "norm_2.weight": (("post_attention_layernorm.weight",), False),
    "mlp.fc_gate_up.weight": (("mlp.gate_proj.weight", "mlp.up_proj.weight"), False),
    "mlp.fc_gate_up.bias": (("mlp.gate_proj.bias", "mlp.up_proj.bias"), False),
    "mlp.fc_down.weight": (("mlp.down_proj.weight",), False),
    "mlp.fc_down.bias": (("mlp.down_proj.bias",), False),
}
BIASES = {"qkv_bias": True, "out_bias": True}


@dataclass(frozen=True)
class Layer:
    """A decoder layer of an architecture: its options in ``transformers`` and the same in Mila."""

    architecture: str
    theirs: dict[str, Any]
    ours: dict[str, Any]
    theta: float = 10000.0

    def __str__(self) -> str:
        return f"{self.architecture} {list(self.ours)}"


LAYERS = [
    Layer("Llama", {}, {}),
    Layer("Llama", {"attention_bias": True}, BIASES),
    Layer("Llama", {"mlp_bias": True, "hidden_act": "gelu"}, {"mlp_bias": True, "gate_activation": "gelu"}),
    Layer("Llama", {"hidden_act": "gelu_pytorch_tanh"}, {"gate_activation": "gelu_tanh"}),
    Layer("Llama", {}, {"rope_scaling": LinearScaling(factor=3.0)}),
    Layer("Llama", {}, {"rope_scaling": llama3(length=30)}, theta=100.0),
    Layer("Mistral", {"sliding_window": 4}, {"sliding_window": 4}),
    Layer("Qwen2", {}, {"qkv_bias": True}, theta=1e6),
    Layer("Qwen3", {}, {"qk_norm": True}, theta=1e6),
    Layer("Qwen3", {"attention_bias": True}, {"qk_norm": True, **BIASES, "rope_scaling": llama3(length=30)}),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_layers_of_the_llama_family(layer: Layer) -> None:
    import transformers

    ours = LlamaConfig(**LLAMA, rope_theta=layer.theta, **layer.ours)
    name = layer.architecture
    modules = getattr(transformers.models, name.lower())
    modeling = getattr(modules, f"modeling_{name.lower()}")
    parameters = rope_parameters(layer.theta, ours.rope_scaling)
    config = getattr(transformers, f"{name}Config")(**SIZES, rope_parameters=parameters, **layer.theirs)
    decoder_layer = getattr(modeling, f"{name}DecoderLayer")(config, 0)
    positions = torch.arange(LENGTH)[None]
    tables = getattr(modeling, f"{name}RotaryEmbedding")(config)(torch.zeros(1), positions)
    distance = positions.T - positions
    is_seen = (distance >= 0) & (distance < (ours.sliding_window or LENGTH))
    mask = torch.where(is_seen, 0.0, -torch.inf)

    def call(x: Any) -> Any:
        return decoder_layer(x, attention_mask=mask, position_embeddings=tables)

    block = LlamaBlock("block", ours.block_config(0), device="cpu")
    assert_same_layer(decoder_layer, call, block, ours.embedding_dim, LLAMA_SOURCES)


GPT_SOURCES: dict[str, Source] = {
    f"{ours}.{part}": ((f"{theirs}.{part}",), part == "weight" and not ours.startswith("ln_"))
    for ours, theirs in {
        "ln_1": "ln_1",
        "qkv_proj": "attn.c_attn",
        "out_proj": "attn.c_proj",
        "ln_2": "ln_2",
        "mlp.fc_1": "mlp.c_fc",
        "mlp.fc_2": "mlp.c_proj",
    }.items()
    for part in ("weight", "bias")
}


@pytest.mark.parametrize(
    ("scaling", "theirs"),
    [
        ("head_dim", {}),
        ("none", {"scale_attn_weights": False}),
        ("head_dim_and_layer", {"scale_attn_by_inverse_layer_idx": True}),
    ],
)
@pytest.mark.parametrize("layer", [0, 2])
def test_attention_scaling_of_gpt2(scaling: Any, theirs: dict[str, bool], layer: int) -> None:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    sizes: dict[str, Any] = {"n_embd": 12, "n_head": 2, "n_layer": 3, "n_inner": 20, "attn_implementation": "eager"}
    dropout = dict.fromkeys(("attn_pdrop", "resid_pdrop"), 0.0)
    module = GPT2Block(GPT2Config(**sizes, **dropout, **theirs), layer_idx=layer)
    mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
    ours = GptConfig(
        vocab_size=7,
        embedding_dim=12,
        hidden_dim=20,
        num_layers=3,
        num_heads=2,
        max_seq_len=LENGTH,
        attention_scaling=scaling,
    )
    block = GptBlock("block", ours.block_config(layer), device="cpu")
    assert_same_layer(module, lambda x: module(x, attention_mask=mask), block, 12, GPT_SOURCES)
