"""Models of all architectures, drawn at random as ``config.json`` has them, and requests to plan them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from mila.devices import ExecutionContext
from mila.memory.storage import DType
from mila.models import GptConfig, GptTransformer, LanguageModel, LanguageModelConfig, LlamaConfig, LlamaTransformer
from mila.planning import Mode, OptimizerKind, PlanRequest, Target, read_target
from mila.planning.report import TargetKind

ARCHITECTURES = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
CPU_DTYPES, CUDA_DTYPES = ("float32", "float64", "bfloat16", "float16"), ("float32", "bfloat16", "float16")
LONGEST = 40


def target_of(config: LanguageModelConfig, name: str = "model") -> Target:
    """Return a target made by hand, as a reader makes it."""

    def make(config: LanguageModelConfig, context: ExecutionContext, dtype: DType) -> LanguageModel[Any]:
        network: LanguageModel[Any]
        if isinstance(config, GptConfig):
            network = GptTransformer(name, config, dtype=dtype)
        else:
            assert isinstance(config, LlamaConfig)
            network = LlamaTransformer(name, config, dtype=dtype)
        network.set_execution_context(context)
        return network

    kind = "gpt2" if isinstance(config, GptConfig) else "llama"
    return Target(name, TargetKind.CONFIG, name, kind, config, make)


def random_config(random: Random, model_type: str, vocabulary: int = 60) -> dict[str, Any]:
    """Return the content of a small ``config.json`` with at most ``vocabulary`` tokens."""
    positions = random.randint(1, LONGEST)
    if model_type == "gpt2":
        heads = random.randint(1, 4)
        return {
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "vocab_size": random.randint(2, vocabulary),
            "n_positions": positions,
            "n_embd": heads * random.randint(1, 9),
            "n_layer": random.randint(0, 4),
            "n_head": heads,
            "n_inner": random.choice([None, random.randint(1, 40)]),
            "tie_word_embeddings": random.random() < 0.5,
        }
    kv_heads, group = random.randint(1, 3), random.randint(1, 3)
    head_dim = 2 * random.randint(1, 6)
    layers = random.randint(0, 4)
    config: dict[str, Any] = {
        "model_type": model_type,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": random.randint(2, vocabulary),
        "hidden_size": kv_heads * group * head_dim,
        "intermediate_size": random.randint(1, 50),
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "tie_word_embeddings": random.random() < 0.5,
    }
    if model_type == "llama":
        config["attention_bias"] = random.random() < 0.5
        config["mlp_bias"] = random.random() < 0.5
    if model_type == "mistral":
        config["sliding_window"] = random.choice([None, random.randint(1, positions)])
    if model_type in ("mistral", "qwen3"):
        config["head_dim"] = head_dim
        config["hidden_size"] = random.randint(1, 40)
    if model_type in ("qwen2", "qwen3") and random.random() < 0.5:
        config["use_sliding_window"] = True
        config["sliding_window"] = random.randint(1, positions)
        config["max_window_layers"] = random.randint(0, layers)
    return config


def random_target(random: Random, folder: Path, model_type: str, vocabulary: int = 60) -> Target:
    """Return a target that was read from a file."""
    path = folder / "config.json"
    path.write_text(json.dumps(random_config(random, model_type, vocabulary)))
    return read_target(str(path))


def random_request(random: Random, target: Target, device: str = "cpu") -> PlanRequest:
    """Return a request that can be met."""
    mode = random.choice(list(Mode))
    context = random.choice([None, random.randint(1, target.config.max_seq_len)])
    inference = mode is Mode.INFERENCE
    most = context or target.config.max_seq_len
    return PlanRequest(
        mode=mode,
        context=context,
        batch=random.randint(1, 4),
        prefill=random.choice([None, random.randint(1, most)]) if inference else None,
        dtype=random.choice([None, *(CPU_DTYPES if device == "cpu" else CUDA_DTYPES)]),
        optimizer=OptimizerKind.ADAMW if inference else random.choice(list(OptimizerKind)),
        accumulate=1 if inference else random.choice([1, 3]),
        device=device,
    )


def random_cases(count: int, folder: Path, seed: int = 0, vocabulary: int = 60) -> Iterator[tuple[Target, PlanRequest]]:
    """Yield as many models of each architecture, with requests."""
    random = Random(seed)
    for number in range(count):
        target = random_target(random, folder, ARCHITECTURES[number % len(ARCHITECTURES)], vocabulary)
        yield target, random_request(random, target)
