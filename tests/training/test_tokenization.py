"""Tokenizers: every text comes back, unknown characters and wrong ids are named, JSON keeps everything."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mila.errors import DataError, DTypeError, MilaError, ShapeError, TokenIdError
from mila.training.tokenization import (
    PIECE,
    ByteTokenizer,
    CharacterTokenizer,
    TokenIds,
    Tokenizer,
    tokenizer_from_json,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))  # no half surrogate pairs: UTF-8 cannot write them
CHARACTERS = CharacterTokenizer(characters="\n abcé漢𝄞")
TOKENIZERS: list[Tokenizer] = [ByteTokenizer(), CHARACTERS, CharacterTokenizer.from_text("abc", unknown="\ufffd")]


@given(TEXTS)
def test_bytes_are_the_ids_of_utf_8_and_give_the_text_back(text: str) -> None:
    ids = ByteTokenizer().encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == list(text.encode("utf-8"))
    assert ByteTokenizer().decode(ids) == text


@given(TEXTS.filter(bool))
def test_characters_are_numbered_by_code_point_and_give_the_text_back(text: str) -> None:
    tokenizer = CharacterTokenizer.from_text(text)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == [sorted(set(text)).index(character) for character in text]
    assert tokenizer.vocab_size == len(set(text))
    assert tokenizer.decode(ids) == text


def test_texts_longer_than_a_piece_come_back() -> None:
    text = "a漢c\n" * (PIECE // 2) + "𝄞"
    assert CHARACTERS.decode(CHARACTERS.encode(text)) == text


def test_bytes_that_are_not_utf_8_become_replacement_characters() -> None:
    assert ByteTokenizer().decode([0x61, 0xC3, 0x28, 0xFF]) == "a\ufffd(\ufffd"


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_no_text_is_no_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("position", [0, 3, PIECE - 1, PIECE, PIECE + 5])
@pytest.mark.parametrize("character", ["d", "\0", "ê", "\U0010ffff", "\ud800"])
def test_an_unknown_character_is_named_with_its_position(character: str, position: int) -> None:
    expected = f"got {character!a} (U+{ord(character):04X}) at position {position}"
    with pytest.raises(DataError, match=re.escape(expected) + "$"):
        CHARACTERS.encode("a" * position + character + "bd")


def test_half_a_surrogate_pair_is_named_with_its_position() -> None:
    for refuse in (ByteTokenizer().encode, CharacterTokenizer.from_text):
        with pytest.raises(DataError, match=r"U\+D800\) at position 2$"):
            refuse("ab\ud800c\udfff")


def test_a_configured_unknown_character_takes_the_place_of_all_others() -> None:
    tokenizer = CharacterTokenizer.from_text("cab", unknown="?")
    assert tokenizer.characters == "?abc"
    assert tokenizer.unknown_id == 0
    assert tokenizer.encode("a!b𝄞\0c").tolist() == [1, 0, 2, 0, 0, 3]
    assert tokenizer.decode(tokenizer.encode("a!b𝄞\0c")) == "a?b??c"


def test_a_vocabulary_without_unknown_has_no_unknown_id() -> None:
    assert CHARACTERS.unknown_id is None


def test_a_vocabulary_cannot_be_learned_from_no_text() -> None:
    with pytest.raises(DataError, match="an empty one"):
        CharacterTokenizer.from_text("")


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(
    ("kind", "wrong", "position"),
    [
        (list, -1, 2),
        (list, "V", 2),
        (list, 2**70, 2),
        (np.int32, -(2**31), 2),
        (np.int64, 2**32 + 1, 2),
        (np.uint64, 2**64 - 1, 2),
        (np.int64, "V", PIECE + 3),
    ],
)
def test_a_wrong_id_is_named_with_its_position(
    tokenizer: Tokenizer, kind: type, wrong: int | str, position: int
) -> None:
    value = tokenizer.vocab_size if isinstance(wrong, str) else wrong
    ids = [0] * position + [value, 1]
    message = f"expected token ids from 0 to {tokenizer.vocab_size - 1}, got {value} at position {position}"
    with pytest.raises(TokenIdError, match=message + "$"):
        tokenizer.decode(ids if kind is list else np.array(ids, kind))


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (np.zeros(3), DTypeError),
        (np.array([True]), DTypeError),
        (np.array(["a"]), DTypeError),
        (np.array([None]), DTypeError),
        (np.zeros((1, 2), np.int32), ShapeError),
        (np.array(1), ShapeError),
    ],
)
def test_what_is_no_list_of_ids_is_refused(tokenizer: Tokenizer, ids: TokenIds, error: type[MilaError]) -> None:
    with pytest.raises(error, match=f"{type(tokenizer).__name__}: expected"):
        tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_json_gives_the_same_tokenizer_back(tokenizer: Tokenizer) -> None:
    tokenizer.encode("abc")
    assert tokenizer_from_json(tokenizer.to_json()) == tokenizer


@given(TEXTS.filter(bool))
def test_json_keeps_every_character(text: str) -> None:
    tokenizer = CharacterTokenizer.from_text(text)
    assert tokenizer_from_json(tokenizer.to_json()) == tokenizer


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"kind": "word"}', "kind"),
        ('{"characters": "ab"}', "kind"),
        ('{"kind": "character"}', "characters"),
        ('{"kind": "character", "characters": ""}', "characters"),
        ('{"kind": "character", "characters": "ba"}', "characters"),
        ('{"kind": "character", "characters": "aab"}', "characters"),
        ('{"kind": "character", "characters": "ab", "unknown": "c"}', "unknown"),
        ('{"kind": "character", "characters": "ab", "unknown": "ab"}', "unknown"),
        ('{"kind": "character", "characters": "ab", "unknown": ""}', "unknown"),
        ('{"kind": "byte", "characters": "ab"}', "characters"),
    ],
)
def test_a_wrong_field_is_named(text: str, field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        tokenizer_from_json(text)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_encoding_takes_no_more_than_the_ids_and_some_megabytes(tokenizer: Tokenizer) -> None:
    text = "abc" * (4 << 20)
    tracemalloc.start()
    try:
        ids = tokenizer.encode(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - ids.nbytes < 2 * len(text) + (4 << 20)
