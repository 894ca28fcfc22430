"""Ids from outside: each is checked before it is narrowed, and named with its row and its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mila.errors import TokenIdError
from mila.generation import is_single_prompt
from tests.generation.models import VOCABULARY, built

WRONG_IDS = [2**32 + 5, -1, VOCABULARY, 2**70, 1.0, True, "1", None, np.float32(1), np.True_, np.int64(2**32 + 5)]


@pytest.mark.parametrize("wrong", WRONG_IDS, ids=repr)
def test_a_wrong_id_is_named_with_its_row_and_place(wrong: Any) -> None:
    model = built("gpt", 2)
    with pytest.raises(TokenIdError) as refused:
        model.prefill([[1, 2], [3, 4, wrong, 5]])
    assert "model: prompt of row 1, place 2: expected a token id from 0 to 22, got" in str(refused.value)
    assert repr(wrong) in str(refused.value)
    model.prefill([[1, 2], [3]])
    if wrong is None:
        return  # leaves the row as it is
    with pytest.raises(TokenIdError, match="token of row 1: expected a token id from 0 to 22, got"):
        model.decode([1, wrong])
    assert model.decoding_session.held(0) == (1, 2)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "at least one token id, got none"),
        (np.empty(0, np.int32), "at least one token id, got none"),
        ("12", "token ids, got str; texts are for mila.generation.text.generate_text"),
        (7, "expected token ids, got int"),
        ({1, 2}, "expected token ids, got set"),
        (np.ones((2, 2), np.int32), "one axis, got shape"),
        (np.array([1.0, 2.0]), "place 0: expected a token id from 0 to 22, got np.float64"),
        (np.array([True]), "place 0: .* got np.True_"),
        (np.array([1, 2**32 + 5]), r"place 1: .* got np.int64\(4294967301\)"),
        (np.array([1, -3], np.int16), r"place 1: .* got np.int16\(-3\)"),
        (np.array([2**64 - 1], np.uint64), r"place 0: .* got np.uint64\(18446744073709551615\)"),
    ],
)
def test_a_prompt_that_is_no_sequence_of_ids_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(TokenIdError, match=f"model: prompt of row 0.*{message}"):
        built("gpt").prefill([prompt])


@pytest.mark.parametrize(
    "prompt",
    [
        [1, 2, 22],
        (1, np.int64(2), np.uint8(22)),
        np.array([1, 2, 22], np.uint8),
        np.array([1, 0, 2, 0, 22], np.int64)[::2],
    ],
    ids=["list", "numpy integers", "array", "strided array"],
)
def test_all_integers_are_ids(prompt: Sequence[int]) -> None:
    model = built("gpt")
    model.prefill([prompt])
    assert model.decoding_session.held(0) == (1, 2, 22)


@pytest.mark.parametrize(
    "given",
    [None, 5, "ab", b"ab", {1, 2}, {1: 2}, (i for i in [1]), np.array(3)],
    ids=lambda given: type(given).__name__,
)
def test_what_is_no_sequence_counts_as_one_wrong_prompt(given: Any) -> None:
    assert is_single_prompt(given)


def test_one_prompt_or_several() -> None:
    assert all(map(is_single_prompt, ([], [1], (1, 2), np.array([1]), np.array([], np.int32))))
    assert not any(map(is_single_prompt, ([[1]], [[]], ((1, 2), (3,)), [np.array([1])], np.array([[1]]))))
