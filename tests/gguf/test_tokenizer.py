"""Tokenizers of GGUF files: splitting rules, merges, special tokens, SentencePiece by scores."""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers

from mila.errors import CheckpointError
from mila.models.gguf_import import import_gguf
from mila.models.gguf_import.splitting import SPLITTING_RULES
from tests.gguf.gguf_bytes import random_array
from tests.gguf.texts import TEXTS
from tests.gguf.tiny_models import (
    END,
    TEMPLATE,
    TOKENS,
    TOOL,
    TURN,
    C,
    Parts,
    file_bytes,
    rotary_model,
    sentencepiece_metadata,
)


def with_metadata(**changes: Any) -> Parts:
    """A model with other values under ``tokenizer.ggml``; None takes a key away."""
    metadata, tensors = rotary_model()
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}, tensors


def imported(parts: Parts, folder: Path) -> tuple[Tokenizer, dict[str, Any], dict[str, Any]]:
    """The tokenizer, tokenizer_config.json and generation_config.json of the folder that a file becomes."""
    file, out = folder / "model.gguf", folder / "out"
    file.write_bytes(file_bytes(parts))
    import_gguf(file, out)
    read = [json.loads((out / f"{name}_config.json").read_text()) for name in ("tokenizer", "generation")]
    return Tokenizer.from_file(str(out / "tokenizer.json")), read[0], read[1]


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [text[first:last] for _, (first, last) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def test_tokens_merges_and_special_tokens(tmp_path: Path) -> None:
    tokenizer, config, generation = imported(rotary_model(), tmp_path)
    assert [tokenizer.id_to_token(number) for number in range(len(TOKENS))] == TOKENS
    ids = tokenizer.encode("the he<|turn|> <tool>12 3<|end|>").ids
    pieces = ["t", "he", "Ġhe", "<|turn|>", "Ġ", "<tool>", "1", "2", "Ġ", "3", "<|end|>"]
    assert [tokenizer.id_to_token(number) for number in ids] == pieces
    assert tokenizer.decode(ids) == "the he <tool>12 3"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "the he<|turn|> <tool>12 3<|end|>"
    assert config == {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": "<|end|>",
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|end|>",
        "model_max_length": 64,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    assert generation == {"bos_token_id": END, "eos_token_id": [END, TURN]}
    assert {token["id"]: token["special"] for token in json.loads(tokenizer.to_str())["added_tokens"]} == {
        END: True,
        TURN: True,
        TOOL: False,
    }


@pytest.mark.parametrize("rule", SPLITTING_RULES)
def test_every_text_decodes_to_itself(tmp_path: Path, rule: str) -> None:
    tokenizer, _, _ = imported(with_metadata(pre=rule), tmp_path)
    for text in TEXTS:
        expected = unicodedata.normalize("NFC", text) if rule == "qwen2" else text
        assert tokenizer.decode(tokenizer.encode(text).ids) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("gpt-2", "I|'ll| be| 1234| years| ,| and|!!|  |\n|X|'|LL"),
        ("smollm", "I|'ll| be| |1|2|3|4| years| ,| and|!!|  |\n|X|'|LL"),
        ("llama-bpe", "I|'ll| be| |123|4| years| ,| and|!!|  \n|X|'LL"),
        ("qwen2", "I|'ll| be| |1|2|3|4| years| ,| and|!!|  \n|X|'LL"),
        ("default", "I|'|ll| be| |123|4| years| |,| and|!!|  |\n|X|'|LL"),
    ],
)
def test_each_rule_splits_in_its_own_way(tmp_path: Path, rule: str, expected: str) -> None:
    tokenizer, _, _ = imported(with_metadata(pre=rule), tmp_path)
    assert "|".join(pieces_of(tokenizer, "I'll be 1234 years , and!!  \nX'LL")) == expected


@pytest.mark.parametrize("rule", ["gpt-2", "smollm"])
def test_rules_equal_the_ones_the_library_has(tmp_path: Path, rule: str) -> None:
    """GPT-2's is built into the library; SmolLM's puts single digits before it."""
    tokenizer, _, _ = imported(with_metadata(pre=rule), tmp_path)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if rule == "smollm" else []
    theirs = pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    for text in TEXTS:
        assert tokenizer.pre_tokenizer.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


def test_llama_3_takes_whole_tokens_and_starts_texts(tmp_path: Path) -> None:
    """The piece "xyz" is a token that no merge makes."""
    tokens = [*TOKENS[:257], "xyz", *TOKENS[258:]]
    changes = {"tokens": tokens, "merges": ["h e"], "add_bos_token": None}
    tokenizer, config, _ = imported(with_metadata(pre="llama-bpe", **changes), tmp_path)
    assert tokenizer.encode("xyz").tokens == ["<|end|>", "xyz"]
    assert tokenizer.encode("xyz", add_special_tokens=False).tokens == ["xyz"]
    assert config["add_bos_token"] is True
    tokenizer, config, _ = imported(with_metadata(pre="gpt-2", **changes), tmp_path)
    assert tokenizer.encode("xyz").tokens == ["x", "y", "z"]
    assert config["add_bos_token"] is False


def test_texts_start_and_end_as_the_file_says(tmp_path: Path) -> None:
    tokenizer, config, _ = imported(with_metadata(add_bos_token=True, add_eos_token=True, eos_token_id=TURN), tmp_path)
    assert tokenizer.encode("x").tokens == ["<|end|>", "x", "<|turn|>"]
    assert (config["add_bos_token"], config["add_eos_token"]) == (True, True)


def test_qwen_composes_characters(tmp_path: Path) -> None:
    tokenizer, _, _ = imported(with_metadata(pre="qwen2"), tmp_path)
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": "bert"}, "gpt2 or llama, got 'bert'"),
    "rule": ({"pre": "tekken"}, "got 'tekken'"),
    "no rule": ({"pre": None}, "name of the rule"),
    "space": ({"add_space_prefix": True}, "add_space_prefix"),
    "too few": ({"tokens": TOKENS[:-1]}, "261 tokens, one for each row"),
    "twice": ({"tokens": [*TOKENS[:-1], "a"]}, "'a' as"),
    "not texts": ({"tokens": np.zeros(261, "<i4")}, "an array of texts"),
    "kinds": ({"token_type": np.array([1] * 260, "<i4")}, "an array of 261 numbers, got 'an array of 260'"),
    "a kind": ({"token_type": np.array([1] * 260 + [9], "<i4")}, "from 1 to 6, got 9"),
    "merge": ({"merges": ["h e", "he y"]}, "got 'he y' as merge 1"),
    "merge of one": ({"merges": ["he"]}, "got 'he' as merge 0"),
    "id": ({"eos_token_id": 261}, "from 0 to 260, got 261"),
    "turn": ({"eot_token_id": 4000}, "eot_token_id"),
    "no start": ({"add_bos_token": True, "bos_token_id": None}, "bos_token_id, for texts"),
    "template": ({"add_bos_token": 1}, "a truth value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_that_contradicts_itself_is_refused(tmp_path: Path, name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(CheckpointError, match=message):
        imported(with_metadata(**changes), tmp_path)
    assert not (tmp_path / "out").exists()


SPACE = "\u2581"
PIECES = [
    SPACE,
    "t",
    "h",
    "e",
    "a",
    "n",
    "d",
    "1",
    ".",
    "he",
    f"{SPACE}t",
    f"{SPACE}the",
    "th",
    "an",
    f"{SPACE}a",
    "and",
]
PIECES += [f"{SPACE}and", f"{SPACE}{SPACE}", "the"]


def sentencepiece_model(**changes: Any) -> Parts:
    metadata, tensors = rotary_model()
    metadata = {key: value for key, value in metadata.items() if not key.startswith("tokenizer.")}
    metadata |= sentencepiece_metadata({piece: -float(number) for number, piece in enumerate(PIECES)})
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    tensors["token_embd.weight"] = random_array(0, 259 + len(PIECES), C)
    return {key: value for key, value in metadata.items() if value is not None}, tensors


def best_score_first(text: str) -> list[str]:
    """SentencePiece in a few lines: merge the neighbours that make the best piece, then spell what is none in bytes."""
    symbols = list(text.replace(" ", SPACE))
    while True:
        pairs = ["".join(pair) for pair in itertools.pairwise(symbols)]
        candidates = [(PIECES.index(pair), place) for place, pair in enumerate(pairs) if pair in PIECES]
        if not candidates:
            break
        place = min(candidates)[1]
        symbols[place : place + 2] = [pairs[place]]
    spelled = [[each] if each in PIECES else [f"<0x{byte:02X}>" for byte in each.encode()] for each in symbols]
    return [token for tokens in spelled for token in tokens]


@pytest.mark.parametrize("adds_space", [True, False])
def test_sentencepiece_merges_by_score(tmp_path: Path, adds_space: bool) -> None:
    tokenizer, config, generation = imported(sentencepiece_model(add_space_prefix=adds_space), tmp_path)
    assert (config["unk_token"], config["add_bos_token"], generation["eos_token_id"]) == ("<unk>", True, 2)
    for text in (*TEXTS, "the and then", "  the  and", "hand in the tea", "thethe"):
        prefix = " " if adds_space and text else ""
        encoding = tokenizer.encode(text)
        assert encoding.tokens == ["<s>", *best_score_first(prefix + text)]
        assert tokenizer.decode(encoding.ids) == text


def test_sentencepiece_puts_a_space_before_every_stretch_of_text(tmp_path: Path) -> None:
    """As llama.cpp, and as Llama's own tokenizer did: after a special token too."""
    tokenizer, _, _ = imported(sentencepiece_model(), tmp_path)
    assert tokenizer.encode("the</s>the", add_special_tokens=False).tokens == [f"{SPACE}the", "</s>", f"{SPACE}the"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unknown_token_id": None}, "unknown_token_id"),
        ({"scores": None}, r"metadata tokenizer\.ggml\.scores"),
        ({"scores": np.full(259 + len(PIECES), np.nan, "<f4")}, "finite"),
        ({"token_type": np.ones(259 + len(PIECES), "<i4")}, "256 tokens of bytes, got '?0 of"),
        ({"precompiled_charsmap": np.zeros(4, "u1")}, "precompiled_charsmap"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces"),
    ],
)
def test_what_sentencepiece_needs_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        imported(sentencepiece_model(**changes), tmp_path)
