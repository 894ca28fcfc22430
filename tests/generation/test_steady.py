"""Decoding allocates no array: neither the network, nor the session, nor the sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mila.core import BuildContext, RuntimeMode
from mila.generation import Decoding, GenerationConfig
from mila.models import GptConfig, GptTransformer, LanguageModel, LlamaConfig, LlamaTransformer
from tests.promises.measuring import STEADY_BYTES, peak_growth

VOCABULARY = 50_000
COMMON: dict[str, Any] = {"vocab_size": VOCABULARY, "embedding_dim": 8, "num_layers": 2, "num_heads": 2}
FILTERED = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}


def large(kind: str, rows: int) -> LanguageModel[Any]:
    arguments: dict[str, Any] = {"device": "cpu", "seed": 1}
    model: LanguageModel[Any]
    if kind == "gpt":
        model = GptTransformer("model", GptConfig(**COMMON, max_seq_len=64), **arguments)
    else:
        window = 16 if kind == "window" else None
        config = LlamaConfig(**COMMON, hidden_dim=16, max_seq_len=64, sliding_window=window)
        model = LlamaTransformer("model", config, **arguments)
    context = BuildContext((rows, 64), RuntimeMode.INFERENCE, initialize_parameters=True, prefill_size=8)
    model.build(context)
    return model


def growth_of_a_step(kind: str, rows: int, fields: dict[str, Any]) -> int:
    model = large(kind, rows)
    decoding = Decoding(model.decoding_session, [[1, 2, 3, row] for row in range(rows)], GenerationConfig(**fields))
    for _ in range(20):
        decoding.advance()
    return peak_growth(decoding.advance)


@pytest.mark.parametrize(("kind", "fields"), [("gpt", {}), ("llama", FILTERED), ("window", {})])
def test_a_step_of_twice_the_rows_allocates_no_more(kind: str, fields: dict[str, Any]) -> None:
    """A single row has a way of its own through the network, so twice as many rows are those of two."""
    alone, two, four = (growth_of_a_step(kind, rows, fields) for rows in (1, 2, 4))
    assert max(alone, two) < STEADY_BYTES
    assert four < two + 8_000  # small objects per row, no array


def test_what_a_session_holds_does_not_grow() -> None:
    model = large("gpt", 1)
    model.prefill([[1]])
    tokens = np.arange(1, 60).tolist()
    model.decode([tokens[0]])

    def decode() -> None:
        for token in tokens[1:]:
            model.decode([token])

    assert peak_growth(decode) < STEADY_BYTES
