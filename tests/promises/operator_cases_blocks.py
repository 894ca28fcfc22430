"""Cases of attention, feed-forward layers, the block made of both, and of what they need of other components."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mila.components import (
    ContextAttention,
    FeedForward,
    GatedFeedForward,
    HeadNorm,
    LayerNorm,
    LayerScale,
    LayerScaleConfig,
    Linear,
    Multiply,
    RmsNorm,
    Rope,
    SelfAttention,
    SelfAttentionConfig,
    TransformerBlock,
    TransformerBlockConfig,
)
from mila.core import Component, CompositeComponent, Graph, Reference
from mila.errors import ConfigurationError, ShapeError
from tests.promises.case import INFERENCE, Case, Refused, constructor, family
from tests.promises.leaf_cases import ANY_RANK, ROPE_SCALINGS, SEQUENCES, widths
from tests.promises.refused_cases import build_refusal, config_refusal
from tests.promises.structures import WIDTH, EmptyConfig, linear, structure

ATTENTION: dict[str, Any] = {"embedding_dim": 12, "num_heads": 3}
HIDDEN: dict[str, Any] = {"embedding_dim": 6, "hidden_dim": 10}
BLOCK: dict[str, Any] = {"embedding_dim": 6, "num_heads": 3, "hidden_dim": 10}
TURNS: dict[str, Any] = {"num_heads": 3, "num_kv_heads": 0, "head_dim": 4, "max_seq_len": 9}
CAUSAL: dict[str, Any] = {"num_heads": 2, "head_dim": 3, "causal": True}
LAYER_SCALES: list[dict[str, Any]] = [
    {},
    {"init_value": 0.7},
    {"trainable": False},
    {"init_value": -1.5, "trainable": False},
]
#: Each option alone, and all that go together.
ATTENTION_OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"dropout": 0.4},
    {"bias": False},
    {"rope": True},
    {"trainable": False},
    {"rope": True, "max_seq_len": 7},
    {"num_heads": 1, "causal": True},
    {"num_heads": 12, "dropout": 0.4, "causal": True},
    {"causal": True, "dropout": 0.4, "bias": False, "rope": True},
    {"causal": True, "dropout": 0.4, "rope": True, "trainable": False},
]
BLOCK_OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_heads": 1},
    {"hidden_dim": 1},
    {"activation": "relu"},
    {"norm": "rms_norm"},
    {"causal": True},
    {"dropout": 0.3},
    {"epsilon": 0.1},
    {"layer_scale": True},
    {"layer_scale": True, "layer_scale_init": 0.8},
    {"layer_scale": True, "layer_scale_init": 0.8, "trainable": False},
    {"trainable": False},
    {"norm": "rms_norm", "causal": True, "dropout": 0.3, "layer_scale": True, "layer_scale_init": -0.5},
]


def as_many(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return shapes["queries"][1] == shapes["keys"][1]


class Scaled(CompositeComponent[EmptyConfig]):
    """Factors for features of what others read too, and attention that must not reach ahead between two projections."""

    config_class = EmptyConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        scale = LayerScaleConfig(width=WIDTH, init_value=0.7)
        h = graph.add(linear("first"), *inputs)
        h = graph.add(Multiply("product"), graph.add(LayerScale("one", scale), h), h)
        attention = SelfAttentionConfig(embedding_dim=WIDTH, num_heads=1, causal=True, rope=True)
        h = graph.add(SelfAttention("attention", attention), h)
        h = graph.add(LayerScale("other", scale), h)
        block = TransformerBlockConfig(embedding_dim=WIDTH, num_heads=2, hidden_dim=3, layer_scale=True)
        return graph.add(linear("last"), graph.add(TransformerBlock("block", block), h))


def frozen(
    component_class: type[Component[Any]], fields: dict[str, Any], shape: tuple[int, ...], *names: str
) -> list[Case]:
    """Return a case for each of the parameters ``names``: it alone is frozen, by its owner."""
    config = component_class.config_class(**fields)

    def freezing(name: str) -> Callable[..., Component[Any]]:
        def construct(**arguments: Any) -> Component[Any]:
            component = constructor(component_class, config)(**arguments)
            component.override_parameter(name, trainable=False)
            return component

        return construct

    return [
        Case(f"{component_class.__name__}({fields}) without {name}", freezing(name), (config,), shape) for name in names
    ]


FROZEN = [
    *frozen(Linear, {"in_features": 7, "out_features": 5}, (2, 3, 7), "weight", "bias"),
    *frozen(LayerNorm, {"normalized_dim": 7}, (2, 3, 7), "weight", "bias"),
    *frozen(RmsNorm, {"normalized_dim": 7, "bias": True}, (2, 3, 7), "weight", "bias"),
    *frozen(HeadNorm, {"num_heads": 2, "num_kv_heads": 1, "head_dim": 3}, (2, 5, 12), "query_weight", "key_weight"),
]
LEAVES = [
    *family(
        Linear,
        {"in_features": 7, "out_features": 5, "initialization": "fan_in"},
        [{}, {"bias": False}, {"trainable": False}],
        widths(7, (3,), (2, 5)),
        suffix="fan_in",
    ),
    *family(LayerScale, {"width": 5}, LAYER_SCALES, [(*shape[:-1], 5) for shape in ANY_RANK[1:]]),
    *family(LayerScale, {"width": 1}, LAYER_SCALES[:2], [(3, 1), (1, 1, 1)]),
    *family(Rope, TURNS, [{}, {"rotary_dim": 2}, {"theta": 100.0}], widths(12, *SEQUENCES)),
    *family(Rope, TURNS, [{"scaling": ROPE_SCALINGS[0]}], widths(12, (2, 5))),
    *family(Rope, TURNS, [{}], [(2, 5, 12)], suffix="prefill", options={INFERENCE: {"prefill_size": 5}}),
    *family(
        ContextAttention,
        CAUSAL,
        [{}, {"probability": 0.5}],
        [(2, 5, 6), (1, 1, 6), (1, 7, 6)],
        takes=as_many,
    ),
    *family(ContextAttention, {**CAUSAL, "head_dim": 1}, [{"num_heads": 1}], [(2, 3, 1)], takes=as_many),
]
COMPOSITES = [
    *family(SelfAttention, ATTENTION, ATTENTION_OPTIONS, widths(12, *SEQUENCES)),
    *family(SelfAttention, {"embedding_dim": 2, "num_heads": 1}, [{"rope": True}], [(2, 3, 2)]),
    *family(SelfAttention, {"embedding_dim": 1}, [{"num_heads": 1}], [(2, 3, 1)]),
    *family(
        FeedForward,
        HIDDEN,
        [
            {},
            {"activation": "relu"},
            {"dropout": 0.3},
            {"bias": False},
            {"trainable": False},
            {"hidden_dim": 1, "dropout": 0.3, "bias": False},
        ],
        [(3, 6), *widths(6, *SEQUENCES)],
    ),
    *family(FeedForward, {"hidden_dim": 7}, [{"embedding_dim": 1}], [(2, 3, 1)]),
    *family(FeedForward, HIDDEN, [{}], [(2, 5, 6)], suffix="prefill", options={INFERENCE: {"prefill_size": 5}}),
    *family(
        GatedFeedForward,
        HIDDEN,
        [
            {},
            {"gate_activation": "gelu"},
            {"bias": True},
            {"trainable": False},
            {"hidden_dim": 1},
        ],
        [(3, 6), *widths(6, *SEQUENCES)],
    ),
    *family(GatedFeedForward, {"hidden_dim": 7}, [{"embedding_dim": 1}], [(2, 3, 1)]),
    *family(TransformerBlock, BLOCK, BLOCK_OPTIONS, widths(6, *SEQUENCES)),
    *family(TransformerBlock, {"num_heads": 1, "hidden_dim": 3}, [{"embedding_dim": 1}], [(2, 3, 1)]),
    structure(Scaled, {"input": (2, 5, WIDTH)}),
]
BLOCK_CASES: list[Case] = [*LEAVES, *FROZEN, *COMPOSITES]

ROWS = [(8, 128, 256)]
WIDE: dict[str, Any] = {"embedding_dim": 256, "hidden_dim": 512}
LARGE_BLOCK_CASES: list[Case] = [
    *family(LayerScale, {"width": 256}, [{}, {"trainable": False}], ROWS),
    *family(Rope, {"num_heads": 8, "num_kv_heads": 0, "head_dim": 32, "max_seq_len": 128}, [{}], ROWS),
    *family(ContextAttention, {"num_heads": 8, "head_dim": 32, "causal": True}, [{}, {"probability": 0.3}], ROWS),
    *family(
        SelfAttention,
        {"embedding_dim": 256, "num_heads": 4},
        [{}, {"causal": True, "dropout": 0.3, "rope": True}],
        ROWS,
    ),
    *family(FeedForward, WIDE, [{}, {"activation": "relu", "dropout": 0.3, "bias": False}], ROWS),
    *family(GatedFeedForward, WIDE, [{}, {"bias": True}], ROWS),
    *family(TransformerBlock, {**WIDE, "num_heads": 4}, [{}, {"layer_scale": True, "norm": "rms_norm"}], ROWS),
]

BLOCK_REFUSALS: list[Refused] = [
    config_refusal(
        Linear,
        {"in_features": 3, "out_features": 3, "initialization": "fan_in", "initial_std": 1.0},
        "'fan_in' and initial_std exclude each other",
    ),
    config_refusal(Linear, {"in_features": 3, "out_features": 3, "initialization": "zero"}, "initialization"),
    config_refusal(Rope, {**TURNS, "num_kv_heads": -1}, "num_kv_heads"),
    config_refusal(LayerScale, {"width": 0}, "width"),
    config_refusal(LayerScale, {"width": 3, "init_value": float("nan")}, "init_value"),
    config_refusal(SelfAttention, {**ATTENTION, "num_heads": 5}, "num_heads 5 must divide embedding_dim 12"),
    config_refusal(SelfAttention, {**ATTENTION, "num_heads": 4, "rope": True}, "must be even with rope, got 3"),
    config_refusal(SelfAttention, {**ATTENTION, "dropout": 1.0}, "dropout"),
    config_refusal(FeedForward, {**HIDDEN, "activation": "swish"}, "activation"),
    config_refusal(FeedForward, {**HIDDEN, "dropout": -0.1}, "dropout"),
    config_refusal(GatedFeedForward, {**HIDDEN, "gate_activation": "swish"}, "gate_activation"),
    config_refusal(TransformerBlock, {**BLOCK, "num_heads": 4}, "num_heads 4 must divide embedding_dim 6"),
    config_refusal(TransformerBlock, {**BLOCK, "norm": "batch_norm"}, "norm"),
    config_refusal(TransformerBlock, {**BLOCK, "epsilon": 0.0}, "epsilon"),
    build_refusal(Rope, TURNS, (2, 5, 24), ShapeError, "of 12"),
    build_refusal(Rope, TURNS, (2, 10, 12), ShapeError, "at most 9"),
    build_refusal(LayerScale, {"width": 5}, (2, 6), ShapeError, "of 5"),
    build_refusal(
        ContextAttention,
        CAUSAL,
        {"queries": (2, 5, 6), "keys": (2, 3, 6), "values": (2, 3, 6)},
        ShapeError,
        "causal attention expected as many queries as keys, got 5 and 3",
    ),
    build_refusal(SelfAttention, ATTENTION, (2, 5, 11), ShapeError, "case.q_proj"),
    build_refusal(SelfAttention, ATTENTION, (5, 12), ShapeError, "B, T, H D"),
    build_refusal(SelfAttention, {**ATTENTION, "rope": True, "max_seq_len": 4}, (2, 5, 12), ShapeError, "at most 4"),
    build_refusal(FeedForward, HIDDEN, (2, 7), ShapeError, "case.up"),
    build_refusal(GatedFeedForward, HIDDEN, (2, 7), ShapeError, "case.gate"),
    build_refusal(TransformerBlock, BLOCK, (2, 5, 7), ShapeError, "case.norm1"),
    *(
        build_refusal(
            kind, fields, (2, 5, width), ConfigurationError, "chunks of a sequence", INFERENCE, prefill_size=2
        )
        for kind, fields, width in ((SelfAttention, ATTENTION, 12), (TransformerBlock, BLOCK, 6))
    ),
]
