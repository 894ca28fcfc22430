"""Combinations that are refused by design, and by what."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from mila.components import (
    Activation,
    Attention,
    Dropout,
    GptBlock,
    HeadNorm,
    LastPosition,
    LayerNorm,
    LearnedPositionEncoding,
    Linear,
    LinearConfig,
    LlamaBlock,
    Mlp,
    MlpConfig,
    Residual,
    RmsNorm,
    Rope,
    Softmax,
    SoftmaxCrossEntropy,
    Swiglu,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from mila.core import Component
from mila.errors import ConfigurationError, DTypeError, LifecycleError, ShapeError
from mila.models import GptTransformer, LlamaTransformer
from mila.quantization import PerChannelFp8
from tests.promises.case import INFERENCE, TRAINING, Refused, Shapes, constructor
from tests.promises.composite_cases import GPT, LLAMA, TRAINING_STEPS

HEADS = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 3}
TABLE = {"vocab_size": 11, "embedding_dim": 6}
TURNS = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 6, "max_seq_len": 9}
LLAMA3 = {
    "kind": "llama3",
    "factor": 2.0,
    "low_frequency_factor": 1.0,
    "high_frequency_factor": 4.0,
    "original_max_seq_len": 9,
}
BLOCK = {"embedding_dim": 8, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 10, "max_seq_len": 9}


def config_refusal(component_class: type[Component[Any]], fields: dict[str, Any], message: str) -> Refused:
    return Refused(
        f"{component_class.__name__}({fields})",
        lambda **_: component_class.config_class(**fields),  # type: ignore[arg-type]
        ValidationError,
        message,
    )


def build_refusal(
    component_class: type[Component[Any]],
    fields: dict[str, Any],
    shapes: Shapes,
    error: type[Exception],
    message: str,
    mode: Any = TRAINING,
    **options: Any,
) -> Refused:
    config: BaseModel = component_class.config_class(**fields)
    name = f"{component_class.__name__}({fields}) for {shapes} {options or ''}"
    return Refused(name, constructor(component_class, config), error, message, shapes, mode, options)


BY_CONFIG = [
    config_refusal(Attention, {**HEADS, "num_kv_heads": 3}, "num_kv_heads 3 must divide num_heads 4"),
    config_refusal(Attention, {**HEADS, "causal": False, "kv_cache": True}, "kv_cache needs causal"),
    config_refusal(Attention, {**HEADS, "head_dim": 0}, "head_dim"),
    config_refusal(Attention, {**HEADS, "sliding_window": 0}, "sliding_window"),
    config_refusal(Attention, {**HEADS, "scale": 0.0}, "scale"),
    config_refusal(Activation, {"kind": "softplus", "softplus_beta": 0.0}, "softplus_beta"),
    config_refusal(Swiglu, {"gate_activation": "swish"}, "gate_activation"),
    config_refusal(LayerNorm, {"normalized_dim": 7, "affine": False, "bias": True}, "bias needs affine"),
    config_refusal(RmsNorm, {"normalized_dim": 7, "affine": False, "bias": True}, "bias needs affine"),
    config_refusal(RmsNorm, {"normalized_dim": 7, "affine": False, "unit_offset": 1.0}, "unit_offset 1.0 needs affine"),
    config_refusal(Dropout, {"probability": 1.0}, "probability"),
    config_refusal(Dropout, {"probability": -0.1}, "probability"),
    config_refusal(Dropout, {"probability": float("nan")}, "probability"),
    config_refusal(GptBlock, {"embedding_dim": 7, "num_heads": 2}, "num_heads 2 must divide embedding_dim 7"),
    config_refusal(GptBlock, {"embedding_dim": 6, "num_heads": 2, "attention_scale": 0.0}, "attention_scale"),
    config_refusal(LlamaBlock, {**BLOCK, "gate_activation": "swish"}, "gate_activation"),
    config_refusal(LlamaBlock, {**BLOCK, "num_kv_heads": 3}, "num_kv_heads 3 must divide"),
    config_refusal(LlamaBlock, {**BLOCK, "embedding_dim": 9}, "must divide embedding_dim 9"),
    config_refusal(LlamaBlock, {**BLOCK, "head_dim": 3}, "even"),
    config_refusal(Rope, {**TURNS, "rotary_dim": 3}, "rotary_dim must be even"),
    config_refusal(Rope, {**TURNS, "rotary_dim": 8}, "at most head_dim 6"),
    config_refusal(Rope, {**TURNS, "head_dim": 5}, "even"),
    config_refusal(Rope, {**TURNS, "scaling": {"kind": "linear", "factor": 0.0}}, "scaling.linear.factor"),
    config_refusal(Rope, {**TURNS, "scaling": {"kind": "yarn", "factor": 2.0}}, "'linear', 'llama3'"),
    config_refusal(Rope, {**TURNS, "scaling": {**LLAMA3, "factor": 0.0}}, "scaling.llama3.factor"),
    config_refusal(Rope, {**TURNS, "scaling": {**LLAMA3, "original_max_seq_len": 0}}, "original_max_seq_len"),
    config_refusal(Rope, {**TURNS, "scaling": {**LLAMA3, "low_frequency_factor": 4.0}}, "greater than low_frequency"),
    config_refusal(HeadNorm, {**HEADS, "epsilon": 0.0}, "epsilon"),
    config_refusal(HeadNorm, {**HEADS, "head_dim": 0}, "head_dim"),
    config_refusal(LayerNorm, {"normalized_dim": 0}, "normalized_dim"),
    config_refusal(LayerNorm, {"normalized_dim": 3, "epsilon": 0.0}, "epsilon"),
    config_refusal(LayerNorm, {"normalized_dim": 3, "unknown": 1}, "unknown"),
    config_refusal(LayerNorm, {"normalized_dim": "3"}, "normalized_dim"),
    config_refusal(LayerNorm, {"normalized_dim": True}, "normalized_dim"),
    config_refusal(Linear, {"in_features": 3, "out_features": -1}, "out_features"),
    config_refusal(TokenEmbedding, {**TABLE, "embedding_scale": 0.0}, "embedding_scale"),
    config_refusal(TokenEmbedding, {**TABLE, "initial_std": -1.0}, "initial_std"),
    config_refusal(Mlp, {"embedding_dim": 3, "hidden_dim": 3, "activation": "swish"}, "activation"),
    config_refusal(GptTransformer, {**GPT, "num_heads": 4}, "num_heads 4 must divide embedding_dim 6"),
    config_refusal(GptTransformer, {**GPT, "num_layers": -1}, "num_layers"),
    config_refusal(LlamaTransformer, {**LLAMA, "num_kv_heads": 3}, "num_kv_heads 3 must divide"),
    config_refusal(LlamaTransformer, {**LLAMA, "head_dim": 3}, "even"),
    config_refusal(GptTransformer, {**GPT, "attention_scaling": "layer"}, "attention_scaling"),
    config_refusal(LlamaTransformer, {**LLAMA, "sliding_layers": (0,)}, "sliding_layers needs sliding_window"),
    *(
        config_refusal(LlamaTransformer, {**LLAMA, "sliding_window": 2, "sliding_layers": layers}, "must be ascending")
        for layers in ((2,), (-1,), (1, 0), (0, 0))
    ),
]

BY_MODE = [
    build_refusal(
        TokenEmbedding, {**TABLE, "table_quantization": PerChannelFp8()}, (2, 5), LifecycleError, "is for inference"
    ),
    build_refusal(
        Linear,
        {"in_features": 7, "out_features": 5, "shared_weight": True},
        (2, 7),
        LifecycleError,
        "shared_weight is for inference",
    ),
    Refused(
        "a training step for inference",
        TRAINING_STEPS[0].construct,
        LifecycleError,
        "built for training",
        (2, 5),
        INFERENCE,
    ),
]

BY_SHAPE = [
    build_refusal(TokenEmbedding, TABLE, (5,), ShapeError, r"\(B, T\)"),
    build_refusal(TokenEmbedding, TABLE, (2, 3, 5), ShapeError, r"\(B, T\)"),
    build_refusal(LearnedPositionEncoding, {"max_seq_len": 9, "embedding_dim": 6}, (2, 6), ShapeError, "B, T, C"),
    build_refusal(LearnedPositionEncoding, {"max_seq_len": 9, "embedding_dim": 6}, (2, 5, 7), ShapeError, "of 6"),
    build_refusal(LearnedPositionEncoding, {"max_seq_len": 9, "embedding_dim": 6}, (2, 10, 6), ShapeError, "at most 9"),
    build_refusal(Rope, TURNS, (2, 10, 24), ShapeError, "at most 9"),
    build_refusal(Rope, TURNS, (2, 5, 24), ShapeError, "at most 9", max_seq_len=10),
    build_refusal(Rope, TURNS, (2, 5, 23), ShapeError, "of 24"),
    build_refusal(HeadNorm, HEADS, (2, 5, 23), ShapeError, "of 24"),
    build_refusal(HeadNorm, HEADS, (5, 24), ShapeError, "B, T"),
    build_refusal(Attention, HEADS, (2, 5, 23), ShapeError, "of 24"),
    build_refusal(Attention, HEADS, (5, 24), ShapeError, "B, T"),
    build_refusal(LastPosition, {}, (5, 24), ShapeError, "B, T, C"),
    build_refusal(LayerNorm, {"normalized_dim": 7}, (2, 5), ShapeError, "of 7"),
    build_refusal(RmsNorm, {"normalized_dim": 7}, (2, 5), ShapeError, "of 7"),
    build_refusal(Linear, {"in_features": 7, "out_features": 5}, (7,), ShapeError, r"2 (or more )?axes"),
    build_refusal(Linear, {"in_features": 7, "out_features": 5}, (2, 6), ShapeError, "of 7"),
    build_refusal(Residual, {}, {"stream": (2, 3), "branch": (3, 2)}, ShapeError, "one shape"),
    build_refusal(Residual, {}, {"stream": (2, 3)}, ShapeError, "expected shapes for stream, branch"),
    build_refusal(Residual, {}, {"stream": (2, 3), "input": (2, 3)}, ShapeError, "expected shapes for stream, branch"),
    build_refusal(Softmax, {"axis": 2}, (2, 3), ShapeError, "axis 2 does not exist"),
    build_refusal(Softmax, {"axis": -3}, (2, 3), ShapeError, "axis -3 does not exist"),
    build_refusal(Swiglu, {}, (2, 3), ShapeError, "even last axis"),
    build_refusal(SoftmaxCrossEntropy, {}, {"logits": (2, 3, 5), "targets": (3, 2)}, ShapeError, "expected targets"),
    build_refusal(Mlp, {"embedding_dim": 6, "hidden_dim": 5}, (2, 7), ShapeError, "case.fc_1"),
    build_refusal(GptTransformer, GPT, (2, 10), ShapeError, "at most 9 positions, got 10"),
    build_refusal(LlamaTransformer, LLAMA, (2, 10), ShapeError, "at most 9 positions, got 10"),
    build_refusal(LlamaTransformer, {**LLAMA, "num_layers": 0}, (2, 10), ShapeError, "at most 9", INFERENCE),
    build_refusal(GptTransformer, GPT, (2, 5), ShapeError, "at most 9", INFERENCE, max_seq_len=10),
    build_refusal(GptTransformer, GPT, (2, 5), ShapeError, "less than the sequence", INFERENCE, max_seq_len=4),
    build_refusal(GptTransformer, GPT, (2, 5), ShapeError, "prefill_size 6 is more than", INFERENCE, prefill_size=6),
    build_refusal(LayerNorm, {"normalized_dim": 7}, (2, 7), ShapeError, "sequence axis", INFERENCE, prefill_size=1),
    build_refusal(
        SoftmaxCrossEntropy, {}, (2, 5, 7), ConfigurationError, "chunks of a sequence", INFERENCE, prefill_size=2
    ),
    build_refusal(LastPosition, {}, (2, 5, 7), ConfigurationError, "chunks of a sequence", INFERENCE, prefill_size=2),
    build_refusal(GptTransformer, GPT, (2, 5), ConfigurationError, "no such child", capture=("block_7",)),
]

BY_CONSTRUCTOR = [
    Refused(
        "a tied head of another shape",
        lambda **_: Linear(
            "head",
            LinearConfig(in_features=6, out_features=12),
            tied_to=TokenEmbedding("wte", TokenEmbeddingConfig(**TABLE)),  # type: ignore[arg-type]
        ),
        ShapeError,
        r"expected a table of shape \(12, 6\)",
    ),
    Refused(
        "a head both tied and shared",
        lambda **_: Linear(
            "head",
            LinearConfig(in_features=6, out_features=11, shared_weight=True),
            tied_to=TokenEmbedding("wte", TokenEmbeddingConfig(**TABLE)),  # type: ignore[arg-type]
        ),
        ConfigurationError,
        "exclude each other",
    ),
    Refused(
        "a head tied to a table of another tree",
        lambda **_: Linear(
            "head",
            LinearConfig(in_features=6, out_features=11),
            tied_to=TokenEmbedding("wte", TokenEmbeddingConfig(**TABLE)),  # type: ignore[arg-type]
        ),
        ConfigurationError,
        "not under the same root",
        (2, 5, 6),
    ),
    Refused(
        "another component's config",
        lambda **_: LayerNorm("norm", MlpConfig(embedding_dim=3, hidden_dim=3)),  # type: ignore[arg-type]
        ConfigurationError,
        "expected a LayerNormConfig, got MlpConfig",
    ),
    Refused(
        "a dtype that no network is stored in",
        lambda **_: Dropout("dropout", dtype="int32"),
        DTypeError,
        "expected one of float32, float64, bfloat16, float16",
    ),
]

REFUSED: list[Refused] = [*BY_CONFIG, *BY_MODE, *BY_SHAPE, *BY_CONSTRUCTOR]
