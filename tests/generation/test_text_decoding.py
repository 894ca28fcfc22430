"""Text out of tokens, one at a time, and stop strings: pieces never change, and joined they are the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mila.generation.text import IncrementalDecoder, StopStrings, TextTokenizer
from tests.generation.text_models import TOKENIZERS, read_folder

HARD_TEXTS = [
    "🙂 👩‍👩‍👧 hello",
    "日本語 の 文",
    "ﬀ é é",
    "  two  spaces  ",
    "\n\n\ttabs",
    "\N{REPLACEMENT CHARACTER} real",
    "",
]


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return read_folder(tmp_path_factory.mktemp("tokenizers"), request.param)


def pieces_of(tokenizer: TextTokenizer, ids: list[int], context: list[int] | None = None) -> list[str]:
    decoder = tokenizer.decoder(context or [])
    return [*(decoder.push(token) for token in ids), decoder.finish()]


@given(st.data())
def test_pieces_of_any_tokens_are_the_whole_text(tokenizer: TextTokenizer, data: st.DataObject) -> None:
    """Tokens that no encoder writes, too: bytes that are no characters, special tokens anywhere."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary - 1), max_size=20))
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


@given(st.data())
def test_pieces_of_bytes_are_the_whole_text(tokenizer: TextTokenizer, data: st.DataObject) -> None:
    """Nothing but tokens of one byte, many of which are half characters."""
    single = [token for token in range(tokenizer.vocabulary) if is_one_byte(tokenizer, token)]
    assert len(single) >= 200
    ids = data.draw(st.lists(st.sampled_from(single), max_size=12))
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


def is_one_byte(tokenizer: TextTokenizer, token: int) -> bool:
    text = tokenizer.decode([token])
    return len(text) == 1 or tokenizer._is_byte(token)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_pieces_of_any_text_are_that_text(tokenizer: TextTokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces if "\N{REPLACEMENT CHARACTER}" not in text)


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_after_a_context_the_text_goes_on(tokenizer: TextTokenizer, text: str) -> None:
    """The leading space of what follows is kept, though decoders drop it at the start of a text."""
    whole = tokenizer.encode("the quick fox " + text)
    for cut in range(1, len(whole)):
        context, ids = whole[:cut], whole[cut:]
        before = tokenizer.decode(context)
        if not before.endswith("\N{REPLACEMENT CHARACTER}") and tokenizer.decode(whole).startswith(before):
            assert before + "".join(pieces_of(tokenizer, ids, context)) == tokenizer.decode(whole)


def test_a_character_of_four_bytes_waits_for_its_last() -> None:
    """Known bytes, so that the pieces themselves can be named."""
    held = {0: b"a", 1: b"\xf0", 2: b"\x9f", 3: b"\x99\x82", 4: b"!"}
    decoder = IncrementalDecoder(
        lambda ids: b"".join(held[token] for token in ids).decode("utf-8", "replace"),
        is_skipped=lambda token: token == 9,
        is_byte=lambda token: False,
    )
    assert [decoder.push(token) for token in (0, 1, 9, 2, 3, 4, 1)] == ["a", "", "", "", "🙂", "!", ""]
    assert [decoder.finish(), decoder.finish()] == ["\N{REPLACEMENT CHARACTER}", ""]


def test_long_texts_take_time_in_proportion(tmp_path: Path) -> None:
    """Decoding looks back a few tokens, not to the start: the window stays short."""
    tokenizer = read_folder(tmp_path)
    decoder = tokenizer.decoder()
    lengths = []
    for token in tokenizer.encode("the quick brown fox 🙂 " * 200):
        decoder.push(token)
        lengths.append(len(decoder._window))
    assert max(lengths) <= 8


# ---------------------------------------------------------------------- stop strings


def stopped(strings: list[str], pieces: list[str]) -> tuple[str, bool]:
    stops = StopStrings(strings)
    given = [stops.push(piece) for piece in pieces]
    assert not stops.found or not stops.finish()
    return "".join([*given, stops.finish()]), stops.found


@given(
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("ab\n", max_size=3), max_size=12),
)
def test_the_text_ends_before_the_first_stop_string(strings: list[str], pieces: list[str]) -> None:
    """Wherever the pieces are cut: up to the start of the one that is complete first, the longest of several."""
    text = "".join(pieces)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(string) for string in strings)]
    expected = text
    if ends:
        longest = max(len(string) for string in strings if text[: ends[0]].endswith(string))
        expected = text[: ends[0] - longest]
    assert stopped(strings, pieces) == (expected, bool(ends))


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.text("ab", max_size=16))
def test_nothing_waits_that_cannot_begin_a_stop_string(strings: list[str], text: str) -> None:
    stops = StopStrings(strings)
    given = "".join(map(stops.push, text))
    if not stops.found:
        waiting = text[len(given) :]
        assert waiting == "" or any(string.startswith(waiting) for string in strings)


def test_a_stop_string_across_pieces_is_found() -> None:
    assert stopped(["</answer>"], ["42 <", "/ans", "we", "r> and"]) == ("42 ", True)
    assert stopped(["</answer>"], ["42 <", "/ans", "wr> and"]) == ("42 </answr> and", False)
