"""Cases of the blocks and of the models: every option of their configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mila.components import GatedMlp, GptBlock, LlamaBlock, Mlp, SoftmaxCrossEntropy, SoftmaxCrossEntropyConfig
from mila.core import Component, TrainingStep
from mila.models import GptConfig, GptTransformer, LlamaConfig, LlamaTransformer
from mila.training.adamw import AdamW, AdamWConfig
from tests.promises.case import INFERENCE, TRAINING, Case, described, family
from tests.promises.leaf_cases import ROPE_SCALINGS

VOCABULARY = 11
SEQUENCES = [(2, 5), (1, 1), (3, 7)]
INFERENCE_OPTIONS: list[dict[str, Any]] = [
    {"all_logits": True},
    {"prefill_size": 2},
    {"max_seq_len": 9, "prefill_size": 4},
]


#: What blocks and models of the Llama family share beside their sizes.
LLAMA_OPTIONS: list[dict[str, Any]] = [
    {"qk_norm": True},
    {"qkv_bias": True, "gate_activation": "none"},
    {"out_bias": True, "gate_activation": "gelu"},
    {"mlp_bias": True, "gate_activation": "gelu_tanh"},
    {"rope_scaling": ROPE_SCALINGS[0], "gate_activation": "relu"},
    {"rope_scaling": ROPE_SCALINGS[-1], "gate_activation": "quick_gelu"},
    {"qk_norm": True, "qkv_bias": True, "gate_activation": "tanh"},
    {"qk_norm": True, "trainable": False, "gate_activation": "sigmoid"},
    {"qkv_bias": True, "out_bias": True, "mlp_bias": True, "gate_activation": "mish"},
    {"qk_norm": True, "sliding_window": 2, "head_dim": 4, "gate_activation": "leaky_relu"},
]


def of_width(width: int) -> list[tuple[int, ...]]:
    return [(*shape, width) for shape in SEQUENCES]


FEED_FORWARD = [
    *family(
        Mlp,
        {"embedding_dim": 6, "hidden_dim": 10},
        [
            {},
            {"activation": "relu"},
            {"bias": False},
            {"initial_std": 0.4},
            {"output_initial_std": 0.4},
            {"trainable": False},
            {"hidden_dim": 1},
        ],
        [(3, 6), *of_width(6)],
    ),
    *family(Mlp, {"hidden_dim": 7}, [{"embedding_dim": 1}], [(2, 3, 1)]),
    *family(
        GatedMlp,
        {"embedding_dim": 6, "hidden_dim": 10},
        [
            {},
            {"gate_activation": "gelu"},
            {"bias": True},
            {"trainable": False},
            {"hidden_dim": 1},
        ],
        [(3, 6), *of_width(6)],
    ),
    *family(GatedMlp, {"hidden_dim": 7}, [{"embedding_dim": 1}], [(2, 3, 1)]),
]

BLOCKS = [
    *family(
        GptBlock,
        {"embedding_dim": 6, "num_heads": 3},
        [
            {},
            {"num_heads": 1},
            {"hidden_dim": 5},
            {"bias": False},
            {"activation": "relu"},
            {"norm_epsilon": 0.1},
            {"dropout": 0.3},
            {"attention_scale": 0.9},
            {"kv_cache": True},
            {"initial_std": 0.4, "residual_initial_std": 0.2},
            {"trainable": False},
            {"dropout": 0.3, "kv_cache": True, "bias": False},
        ],
        of_width(6),
    ),
    *family(GptBlock, {"num_heads": 1}, [{"embedding_dim": 1}], [(2, 3, 1)]),
    *family(
        LlamaBlock,
        {"embedding_dim": 8, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 10, "max_seq_len": 9},
        [
            {},
            {"num_heads": 2, "num_kv_heads": 1},
            {"head_dim": 4},
            {"hidden_dim": 1},
            {"max_seq_len": 13},
            {"rope_theta": 100.0},
            {"norm_epsilon": 0.1},
            {"sliding_window": 2},
            {"kv_cache": True},
            {"trainable": False},
            {"kv_cache": True, "sliding_window": 3, "head_dim": 2},
            {"kv_cache": True, "qk_norm": True, "qkv_bias": True},
            *LLAMA_OPTIONS,
        ],
        of_width(8),
    ),
    *family(
        LlamaBlock,
        {"num_heads": 1, "num_kv_heads": 1, "hidden_dim": 3, "max_seq_len": 9},
        [{"embedding_dim": 2}],
        [(2, 3, 2)],
    ),
]

GPT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "embedding_dim": 6,
    "num_layers": 2,
    "num_heads": 3,
    "max_seq_len": 9,
    "initial_std": 0.3,
}
GPT_VARIANTS: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": False},
    {"hidden_dim": 5},
    {"bias": False},
    {"activation": "relu"},
    {"activation": "silu", "num_layers": 1},
    {"norm_epsilon": 0.1},
    {"dropout": 0.3},
    {"attention_scaling": "none"},
    {"attention_scaling": "head_dim_and_layer"},
    {"initial_std": 0.02},
    {"trainable": False},
    {"num_layers": 0},
    {"num_layers": 1, "num_heads": 1, "max_seq_len": 7},
    {"vocab_size": 13, "embedding_dim": 9},
]
LLAMA: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "embedding_dim": 8,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 10,
    "max_seq_len": 9,
}
LLAMA_VARIANTS: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": True},
    {"num_kv_heads": 2},
    {"num_kv_heads": 1, "head_dim": 4},
    {"hidden_dim": 3},
    {"rope_theta": 100.0},
    {"norm_epsilon": 0.1},
    {"sliding_window": 2},
    {"sliding_window": 2, "sliding_layers": (1,)},
    {"sliding_window": 2, "sliding_layers": ()},
    *LLAMA_OPTIONS,
    {"trainable": False},
    {"num_layers": 0},
    {"num_layers": 1, "num_heads": 2, "max_seq_len": 7},
    {"vocab_size": 13, "embedding_dim": 16},
]
LIMITS = {"ids": VOCABULARY, "targets": VOCABULARY}

MODELS = [
    *family(GptTransformer, GPT, GPT_VARIANTS, SEQUENCES, limits=LIMITS),
    *family(LlamaTransformer, LLAMA, LLAMA_VARIANTS, SEQUENCES, limits=LIMITS),
    *(
        case
        for options in INFERENCE_OPTIONS
        for model, fixed in ((GptTransformer, GPT), (LlamaTransformer, LLAMA))
        for case in family(
            model,
            fixed,
            [{}, {"tie_word_embeddings": fixed is LLAMA}],
            SEQUENCES[:1],
            suffix=described(options),
            limits=LIMITS,
            modes=(INFERENCE,),
            options={INFERENCE: options},
        )
    ),
]


def training_step(
    network: Callable[..., Component[Any]], loss: SoftmaxCrossEntropyConfig, optimizer: AdamWConfig
) -> Callable[..., Component[Any]]:
    def construct(dtype: str, seed: int) -> Component[Any]:
        return TrainingStep(
            network(dtype=dtype, seed=seed), SoftmaxCrossEntropy("loss", loss), AdamW(optimizer), name="step"
        )

    return construct


def gpt(**changes: Any) -> Callable[..., Component[Any]]:
    config = GptConfig(**{**GPT, **changes})
    return lambda **arguments: GptTransformer("network", config, **arguments)


#: As many options of the Llama family as go together.
EVERY_OPTION: dict[str, Any] = {
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "qk_norm": True,
    "rope_scaling": ROPE_SCALINGS[-1],
    "sliding_window": 2,
    "sliding_layers": (1,),
}


def llama(**changes: Any) -> Callable[..., Component[Any]]:
    config = LlamaConfig(**{**LLAMA, **changes})
    return lambda **arguments: LlamaTransformer("network", config, **arguments)


NETWORKS: list[tuple[str, Callable[..., Component[Any]]]] = [
    ("gpt", gpt()),
    ("gpt untied, dropout", gpt(tie_word_embeddings=False, dropout=0.3)),
    ("llama", llama(num_kv_heads=2)),
    ("llama tied", llama(tie_word_embeddings=True)),
    ("llama with every option", llama(num_kv_heads=2, **EVERY_OPTION)),
]
OPTIMIZERS: list[dict[str, Any]] = [
    {},
    {"beta1": 0.5},
    {"beta2": 0.9},
    {"epsilon": 1e-3},
    {"weight_decay": 0.3},
    {"weight_decay": 0.3, "decay_everything": True},
    {"maximum_norm": 0.1},
]

TRAINING_STEPS = [
    Case(
        f"TrainingStep({name}, ignore_index={ignored}, {','.join(f'{k}={v}' for k, v in optimizer.items())})",
        training_step(network, SoftmaxCrossEntropyConfig(ignore_index=ignored), AdamWConfig(**optimizer)),
        (AdamWConfig(**optimizer),),
        (2, 5),
        modes=(TRAINING,),
        limits=LIMITS,
    )
    for name, network, ignored, optimizer in [
        *((name, network, None, {}) for name, network in NETWORKS),
        *((name, network, 2, {"maximum_norm": 0.1, "weight_decay": 0.3}) for name, network in NETWORKS[:3]),
        *(("gpt", gpt(), -100, optimizer) for optimizer in OPTIMIZERS),
    ]
]

COMPOSITE_CASES: list[Case] = [*FEED_FORWARD, *BLOCKS, *MODELS, *TRAINING_STEPS]
