"""Cases whose activations take a megabyte and more, so that a single temporary would show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mila.components import (
    Activation,
    Attention,
    Dropout,
    GatedMlp,
    GptBlock,
    HeadNorm,
    LastPosition,
    LayerNorm,
    LearnedPositionEncoding,
    Linear,
    LlamaBlock,
    Mlp,
    Residual,
    RmsNorm,
    Rope,
    Softmax,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyConfig,
    Swiglu,
    TokenEmbedding,
)
from mila.core import BuildContext, Component
from mila.models import GptConfig, GptTransformer, LlamaConfig, LlamaTransformer
from mila.quantization import PerChannelFp8
from mila.training.adamw import AdamWConfig
from tests.promises.case import INFERENCE, TRAINING, Case, Shapes, family
from tests.promises.composite_cases import training_step
from tests.promises.network_cases import LARGE_NETWORK_CASES
from tests.promises.operator_cases_arithmetic import LARGE_ARITHMETIC_CASES
from tests.promises.operator_cases_blocks import LARGE_BLOCK_CASES
from tests.promises.operator_cases_experts import LARGE_EXPERT_CASES
from tests.promises.operator_cases_shapes import LARGE_SHAPE_CASES

VOCABULARY = 2048
LIMITS = {"ids": VOCABULARY, "targets": VOCABULARY}
HEADS = {"num_heads": 8, "num_kv_heads": 4, "head_dim": 32}
PACKED = [(8, 128, 512)]
ROWS = [(8, 128, 256)]
#: What is done by different kernels' passes; the kernels' own tests measure every kind.
KINDS = ("none", "relu", "gelu")


def load_quantized(component: Component[Any]) -> None:
    values = np.random.default_rng(3).standard_normal((VOCABULARY, 256)).astype(np.float32)
    component.load_parameter("wte", values)


def install_quantized(component: Component[Any]) -> None:
    generator = np.random.default_rng(3)
    embedding = TokenEmbedding.config_class(vocab_size=512, embedding_dim=256, table_quantization=PerChannelFp8())
    table = TokenEmbedding("table", embedding, device="cpu")
    table.build(BuildContext((1, 1), INFERENCE))
    table.load_parameter("wte", generator.standard_normal((512, 256)).astype(np.float32))
    assert isinstance(component, Linear)
    component.install_shared_weight(table.get_weight_tensor_shared(), table.get_weight_scales_tensor_shared())


LEAVES = [
    *family(Activation, {}, [{"kind": kind} for kind in KINDS], ROWS),
    *family(Swiglu, {}, [{"gate_activation": kind} for kind in KINDS], [(8, 128, 512)]),
    *family(Dropout, {}, [{"probability": 0.5}, {"probability": 0.0}], ROWS),
    *family(Residual, {}, [{}, {"scale": 0.5}], ROWS),
    *family(Softmax, {}, [{}, {"axis": 1}, {"axis": 0}], ROWS),
    *family(LastPosition, {}, [{}], ROWS),
    *family(LayerNorm, {"normalized_dim": 256}, [{}, {"bias": False}, {"trainable": False}], ROWS),
    *family(
        RmsNorm,
        {"normalized_dim": 256},
        [{}, {"bias": True}, {"unit_offset": 1.0}, {"trainable": False}],
        ROWS,
    ),
    *family(Linear, {"in_features": 256, "out_features": 512}, [{}, {"bias": False}, {"trainable": False}], ROWS),
    *family(
        Linear,
        {"in_features": 256, "out_features": 512, "shared_weight": True},
        [{}],
        ROWS,
        suffix="fp8",
        modes=(INFERENCE,),
        prepare=install_quantized,
    ),
    *family(
        TokenEmbedding,
        {"vocab_size": VOCABULARY, "embedding_dim": 256},
        [{}, {"embedding_scale": 2.0}, {"trainable": False}],
        [(8, 128)],
        limits=LIMITS,
    ),
    *family(
        TokenEmbedding,
        {"vocab_size": VOCABULARY, "embedding_dim": 256, "table_quantization": PerChannelFp8()},
        [{}],
        [(8, 128)],
        suffix="fp8",
        limits=LIMITS,
        modes=(INFERENCE,),
        prepare=load_quantized,
    ),
    *family(LearnedPositionEncoding, {"max_seq_len": 128, "embedding_dim": 256}, [{}, {"trainable": False}], ROWS),
    *family(HeadNorm, HEADS, [{}, {"trainable": False}], PACKED),
    *family(Rope, {**HEADS, "max_seq_len": 128}, [{}, {"rotary_dim": 16}], PACKED),
    *family(
        Attention,
        HEADS,
        [{}, {"causal": False}, {"sliding_window": 30}, {"kv_cache": True}],
        PACKED,
    ),
    *family(SoftmaxCrossEntropy, {}, [{}, {"ignore_index": 2}], [(8, 64, 512)], limits={"targets": 512}),
]

GPT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "embedding_dim": 256,
    "num_layers": 1,
    "num_heads": 4,
    "max_seq_len": 128,
}
LLAMA: dict[str, Any] = {**GPT, "num_kv_heads": 2, "hidden_dim": 512}

COMPOSITES = [
    *family(Mlp, {"embedding_dim": 256, "hidden_dim": 512}, [{}, {"activation": "relu", "bias": False}], ROWS),
    *family(GatedMlp, {"embedding_dim": 256, "hidden_dim": 512}, [{}], ROWS),
    *family(GptBlock, {"embedding_dim": 256, "num_heads": 4}, [{"dropout": 0.1}], ROWS),
    *family(
        LlamaBlock,
        {"embedding_dim": 256, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 512, "max_seq_len": 128},
        [{}],
        ROWS,
    ),
    *family(GptTransformer, GPT, [{}], [(8, 128)], limits=LIMITS, options={INFERENCE: {"all_logits": True}}),
    *family(LlamaTransformer, LLAMA, [{}], [(8, 128)], limits=LIMITS, options={INFERENCE: {"all_logits": True}}),
]


def large_step(name: str, network: type[Component[Any]], config: GptConfig | LlamaConfig, **optimizer: float) -> Case:
    construct = training_step(
        lambda **arguments: network("network", config, **arguments),
        SoftmaxCrossEntropyConfig(ignore_index=3),
        AdamWConfig(**optimizer),  # type: ignore[arg-type]
    )
    return Case(f"TrainingStep({name})", construct, (config,), (8, 128), modes=(TRAINING,), limits=LIMITS)


STEPS = [
    large_step("gpt", GptTransformer, GptConfig(**GPT, dropout=0.1), maximum_norm=0.1),
    large_step("llama", LlamaTransformer, LlamaConfig(**LLAMA)),
]
LARGE_CASES: list[Case] = [
    *LEAVES,
    *COMPOSITES,
    *STEPS,
    *LARGE_SHAPE_CASES,
    *LARGE_ARITHMETIC_CASES,
    *LARGE_BLOCK_CASES,
    *LARGE_EXPERT_CASES,
    *LARGE_NETWORK_CASES,
]


@dataclass(frozen=True)
class Sizes:
    """The same shapes at one batch and at twice that."""

    single: Shapes
    double: Shapes


def sizes(case: Case) -> Sizes:
    def doubled(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (2 * shape[0], *shape[1:])

    if isinstance(case.shapes, tuple):
        return Sizes(case.shapes, doubled(case.shapes))
    return Sizes(case.shapes, {name: doubled(shape) for name, shape in case.shapes.items()})
