"""Cases of the components without children: every option, at odd, prime and single extents."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from mila.components import (
    Activation,
    Attention,
    Dropout,
    HeadNorm,
    LastPosition,
    LayerNorm,
    LearnedPositionEncoding,
    Linear,
    LinearScaling,
    Llama3Scaling,
    Residual,
    RmsNorm,
    Rope,
    Softmax,
    SoftmaxCrossEntropy,
    Swiglu,
    TokenEmbedding,
)
from mila.components.activation import ActivationKind
from mila.core import Component
from mila.quantization import PerChannelFp8
from tests.promises.case import INFERENCE, TRAINING, Case, described, family

#: Every function that an activation can be, and other options of those that have some.
ACTIVATIONS: list[dict[str, Any]] = [
    *({"kind": kind} for kind in get_args(ActivationKind)),
    {"kind": "leaky_relu", "leaky_relu_slope": 0.3},
    {"kind": "elu", "elu_alpha": 0.3},
    {"kind": "softplus", "softplus_beta": 2.5},
    {"kind": "softplus", "softplus_threshold": 0.5},
]
#: The same for the gate of a gated component.
GATES = [
    {{"kind": "gate_activation"}.get(key, key): value for key, value in options.items()} for options in ACTIVATIONS
]
#: Both scalings of rotary frequencies; the last has a high, a middle and a low frequency among three pairs.
ROPE_SCALINGS: list[LinearScaling | Llama3Scaling] = [
    LinearScaling(factor=2.0),
    LinearScaling(factor=0.5),
    Llama3Scaling(factor=4.0, low_frequency_factor=1.0, high_frequency_factor=2.0, original_max_seq_len=8),
    Llama3Scaling(factor=8.0, low_frequency_factor=0.5, high_frequency_factor=4.0, original_max_seq_len=100),
]
#: A shape of every rank from 1 to 4.
ANY_RANK = [(5,), (2, 7), (3, 1, 5), (1, 11, 3), (2, 3, 5, 4)]
SEQUENCES = [(2, 5), (1, 1), (3, 7)]
WHOLE_CHUNK = {INFERENCE: {"prefill_size": 5}}


def load_quantized(component: Component[Any]) -> None:
    values = np.random.default_rng(3).standard_normal((11, 6)).astype(np.float32)
    values[4] = 0
    component.load_parameter("wte", values)


def install_weight(component: Component[Any]) -> None:
    assert isinstance(component, Linear)
    values = np.random.default_rng(3).standard_normal((5, 7))
    component.install_shared_weight(component.device.to_device(values.astype(component.dtype)))


def partly_frozen(
    component_class: type[Component[Any]], fields: dict[str, Any], frozen: str, shape: tuple[int, ...]
) -> Case:
    """A component whose owner freezes one of its parameters."""
    config = component_class.config_class(**fields)

    def construct(**arguments: Any) -> Component[Any]:
        component = component_class("case", config, **arguments)
        component.override_parameter(frozen, trainable=False)
        return component

    return Case(f"{component_class.__name__}({frozen} frozen)-{described(shape)}", construct, (config,), shape)


def widths(width: int, *shapes: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [(*shape, width) for shape in shapes]


ELEMENTWISE = [
    *family(Activation, {}, ACTIVATIONS, ANY_RANK),
    *family(Activation, {}, [{}], [(2, 5, 3)], suffix="prefill", options=WHOLE_CHUNK),
    *family(Dropout, {}, [{}, {"probability": 0.5}, {"probability": 0.0}], ANY_RANK),
    *family(Residual, {}, [{}, {"scale": -0.5}, {"scale": 0.0}], ANY_RANK),
    *family(Swiglu, {}, GATES, [(2,), (2, 6), (3, 1, 10), (1, 5, 4), (2, 3, 5, 2)]),
    *family(Softmax, {}, [{}, {"axis": 1}, {"axis": 0}, {"axis": -2}, {"axis": 2}], ANY_RANK[1:]),
    *family(Softmax, {"axis": 0}, [{}], ANY_RANK, suffix="first axis"),
    *family(LastPosition, {}, [{}], [(2, 5, 3), (1, 1, 7), (3, 7, 2)]),
    *family(LastPosition, {}, [{}], [(2, 5, 3)], suffix="all", options={INFERENCE: {"all_logits": True}}),
]

NORMS = [
    *family(
        LayerNorm,
        {"normalized_dim": 7},
        [
            {},
            {"bias": False},
            {"affine": False},
            {"epsilon": 0.1},
            {"trainable": False},
            {"bias": False, "trainable": False},
        ],
        widths(7, (), (3,), (2, 5), (1, 1), (2, 3, 5)),
    ),
    *family(LayerNorm, {}, [{"normalized_dim": 1}], [(2, 3, 1)]),
    *family(
        RmsNorm,
        {"normalized_dim": 7},
        [
            {},
            {"bias": True},
            {"affine": False},
            {"epsilon": 0.1},
            {"unit_offset": 1.0},
            {"unit_offset": 0.5, "bias": True},
            {"trainable": False},
            {"bias": True, "trainable": False},
        ],
        widths(7, (), (3,), (2, 5), (1, 1), (2, 3, 5)),
    ),
    *family(RmsNorm, {}, [{"normalized_dim": 1}], [(2, 3, 1)]),
    *(
        partly_frozen(kind, {"normalized_dim": 7, "bias": True}, frozen, (2, 5, 7))
        for kind in (LayerNorm, RmsNorm)
        for frozen in ("weight", "bias")
    ),
    *family(
        HeadNorm,
        {"num_heads": 3, "num_kv_heads": 2, "head_dim": 5},
        [{}, {"epsilon": 0.1}, {"trainable": False}],
        widths(35, *SEQUENCES),
    ),
    *family(HeadNorm, {}, [{"num_heads": 1, "num_kv_heads": 1, "head_dim": 1}], widths(3, *SEQUENCES)),
]

PROJECTIONS = [
    *family(
        Linear,
        {"in_features": 7, "out_features": 5},
        [
            {},
            {"bias": False},
            {"initial_std": 0.3},
            {"trainable": False},
            {"bias": False, "trainable": False},
        ],
        widths(7, (3,), (2, 5), (1, 1), (2, 3, 5)),
    ),
    *family(Linear, {}, [{"in_features": 1, "out_features": 13, "initial_std": 1.0}], widths(1, (2,), (3, 5))),
    *family(
        Linear,
        {"in_features": 7, "out_features": 5, "shared_weight": True},
        [{}, {"bias": False}],
        widths(7, (2, 5)),
        suffix="shared",
        modes=(INFERENCE,),
        prepare=install_weight,
    ),
]

EMBEDDINGS = [
    *family(
        TokenEmbedding,
        {"vocab_size": 11, "embedding_dim": 6},
        [{}, {"embedding_scale": 2.5}, {"initial_std": 0.3}, {"trainable": False}],
        SEQUENCES,
        limits={"ids": 11},
    ),
    *family(TokenEmbedding, {}, [{"vocab_size": 1, "embedding_dim": 1}], SEQUENCES, limits={"ids": 1}),
    *family(
        TokenEmbedding,
        {"vocab_size": 11, "embedding_dim": 6, "table_quantization": PerChannelFp8()},
        [{}, {"embedding_scale": 2.5}],
        SEQUENCES,
        suffix="fp8",
        limits={"ids": 11},
        modes=(INFERENCE,),
        prepare=load_quantized,
    ),
    *family(
        LearnedPositionEncoding,
        {"max_seq_len": 9, "embedding_dim": 6},
        [{}, {"initial_std": 0.3}, {"trainable": False}, {"max_seq_len": 13}],
        widths(6, *SEQUENCES),
    ),
    *family(LearnedPositionEncoding, {}, [{"max_seq_len": 1, "embedding_dim": 1}], widths(1, (2, 1))),
    *family(
        Rope,
        {"num_heads": 2, "num_kv_heads": 1, "head_dim": 6, "max_seq_len": 9},
        [
            {},
            {"theta": 100.0},
            {"rotary_dim": 4},
            {"rotary_dim": 2},
            {"max_seq_len": 13},
            *({"scaling": scaling} for scaling in ROPE_SCALINGS),
            {"scaling": ROPE_SCALINGS[-1], "rotary_dim": 4, "theta": 100.0},
        ],
        widths(24, *SEQUENCES),
    ),
    *family(Rope, {}, [{"num_heads": 3, "num_kv_heads": 3, "head_dim": 2, "max_seq_len": 5}], widths(18, (1, 5))),
    *family(
        Rope,
        {"num_heads": 2, "num_kv_heads": 1, "head_dim": 6, "max_seq_len": 9},
        [{}],
        widths(24, (2, 5)),
        suffix="longer",
        options={mode: {"max_seq_len": 8} for mode in (INFERENCE, TRAINING)},
    ),
]

ATTENTION = [
    *family(
        Attention,
        {"num_heads": 4, "num_kv_heads": 2, "head_dim": 3},
        [
            {},
            {"causal": False},
            {"sliding_window": 1},
            {"sliding_window": 3},
            {"sliding_window": 2, "causal": False},
            {"scale": 0.9},
            {"kv_cache": True},
            {"kv_cache": True, "sliding_window": 2},
        ],
        widths(24, *SEQUENCES),
    ),
    *family(
        Attention,
        {},
        [
            {"num_heads": 3, "num_kv_heads": 3, "head_dim": 5},
            {"num_heads": 5, "num_kv_heads": 5, "head_dim": 3},
        ],
        widths(45, *SEQUENCES),
    ),
    *family(Attention, {}, [{"num_heads": 4, "num_kv_heads": 1, "head_dim": 2}], widths(12, *SEQUENCES)),
    *family(Attention, {}, [{"num_heads": 1, "num_kv_heads": 1, "head_dim": 1}], widths(3, *SEQUENCES)),
    *family(
        Attention,
        {"num_heads": 4, "num_kv_heads": 2, "head_dim": 3, "kv_cache": True},
        [{}, {"sliding_window": 1}, {"sliding_window": 3}, {"sliding_window": 6}, {"sliding_window": 20}],
        widths(24, (2, 5)),
        suffix="longer",
        options={INFERENCE: {"prefill_size": 4, "max_seq_len": 9}},
    ),
]

LOSSES = [
    *family(
        SoftmaxCrossEntropy,
        {},
        [{}, {"ignore_index": 2}, {"ignore_index": -100}],
        [(3, 5), (2, 5, 7), (1, 1, 3), {"logits": (2, 3, 5, 4), "targets": (2, 3, 5)}],
        limits={"targets": 3},
    )
]

LEAF_CASES: list[Case] = [*ELEMENTWISE, *NORMS, *PROJECTIONS, *EMBEDDINGS, *ATTENTION, *LOSSES]
