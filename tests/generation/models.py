"""Small language models for tests of generation, and what they say without a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mila.core import BuildContext, RuntimeMode
from mila.models import GptConfig, GptTransformer, LanguageModel, LlamaConfig, LlamaTransformer

VOCABULARY = 23
CONTEXT = 24
WINDOW = 5
KINDS = ("gpt", "llama", "window")
Prompts = list[list[int]]


def unbuilt(kind: str, dtype: str = "float64") -> LanguageModel[Any]:
    """Construct a model of a kind; all of one kind start from the same weights."""
    common: dict[str, Any] = {"vocab_size": VOCABULARY, "embedding_dim": 12, "num_layers": 2, "num_heads": 3}
    common["max_seq_len"] = CONTEXT
    arguments: dict[str, Any] = {"device": "cpu", "dtype": dtype, "seed": 5}
    if kind == "gpt":
        return GptTransformer("model", GptConfig(**common, initial_std=0.5), **arguments)
    window = WINDOW if kind == "window" else None
    config = LlamaConfig(**common, num_kv_heads=1, hidden_dim=20, sliding_window=window)
    return LlamaTransformer("model", config, **arguments)


def built(
    kind: str, rows: int = 1, *, chunk: int | None = None, dtype: str = "float64", **options: Any
) -> LanguageModel[Any]:
    """Build a model for inference, its weights drawn from its seed."""
    model = unbuilt(kind, dtype)
    options = {"initialize_parameters": True, "prefill_size": chunk, **options}
    model.build(BuildContext((rows, CONTEXT), RuntimeMode.INFERENCE, **options))
    return model


def uncached(kind: str, tokens: list[int]) -> NDArray[np.float64]:
    """Return the logits (T, V) after every token, from one forward of a build for training."""
    model = unbuilt(kind)
    model.build(BuildContext((1, len(tokens)), RuntimeMode.TRAINING))
    result: NDArray[np.float64] = model.forward(np.array([tokens], np.int32))[0].copy()
    return result


def drawn(count: int, seed: int = 0) -> list[int]:
    """Return token ids."""
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()
    return ids


def greedy(kind: str, prompt: list[int], count: int) -> list[int]:
    """Return the likeliest continuation, the whole sequence computed again for every token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(uncached(kind, tokens)[-1].argmax()))
    return tokens[len(prompt) :]
