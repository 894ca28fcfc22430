"""Generation with models that are stored in half precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mila
from mila.core import BuildContext, Position, RuntimeMode
from tests.generation.models import CONTEXT, KINDS, VOCABULARY, built, drawn, unbuilt

#: The largest relative error of one rounding.
UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}

every_kind = pytest.mark.parametrize("kind", KINDS)
both_dtypes = pytest.mark.parametrize("dtype", UNITS)


@every_kind
@both_dtypes
def test_token_by_token_says_what_all_at_once_says(kind: str, dtype: str) -> None:
    tokens = drawn(CONTEXT)
    trained, decoding = unbuilt(kind, dtype), built(kind, dtype=dtype)
    trained.build(BuildContext((1, CONTEXT), RuntimeMode.TRAINING))
    expected = trained.forward(np.array([tokens], np.int32))[0].astype(np.float64)
    for position, token in enumerate(tokens):
        logits = decoding.forward(np.array([[token]], np.int32), position=Position(position))[0, 0]
        assert logits.dtype == dtype
        # Values that lie between two of half precision may be rounded either way, and what follows differs by as much.
        error = np.abs(logits.astype(np.float64) - expected[position]).max()
        assert error <= 8 * UNITS[dtype] * np.abs(expected[position]).max()


@every_kind
@both_dtypes
def test_what_is_generated_is_likely_and_the_same_every_time(kind: str, dtype: str) -> None:
    prompt = drawn(5)
    first, second = (built(kind, dtype=dtype, chunk=3).generate(prompt, max_new_tokens=9) for _ in range(2))
    assert first.tokens == second.tokens
    assert len(first.tokens) == 9
    assert all(0 <= token < VOCABULARY for token in first.tokens)


@both_dtypes
def test_a_folder_is_loaded_in_the_dtype_that_is_asked_for(dtype: str, tmp_path: Path) -> None:
    saved = built("llama", dtype=dtype)
    saved.save_pretrained(tmp_path / "model")
    loaded = mila.from_pretrained(tmp_path / "model", dtype=dtype, context_length=CONTEXT)
    assert [a.tobytes() for a in loaded.get_parameters()] == [a.tobytes() for a in saved.get_parameters()]
    first, second = (model.generate(drawn(5), max_new_tokens=5) for model in (loaded, saved))
    assert first.tokens == second.tokens
