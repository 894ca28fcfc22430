"""Tokenizers of model folders: both forms, their stop tokens, and files that are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from mila.errors import CheckpointError, DataError, TokenIdError
from mila.generation.text import TextTokenizer, recommended_sampling
from tests.generation.text_models import END, END_OF, START, TEXTS, TOKENIZERS, byte_level, read_folder, write_folder

HARD_TEXT = "the quick  fox\n<|im_start|>[INST] it's 🙂 日本 \x00 é"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_text_comes_back(kind: str, tmp_path: Path) -> None:
    tokenizer = read_folder(tmp_path, kind)
    reference = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (*TEXTS[:3], HARD_TEXT, ""):
        for special in (True, False):
            assert (
                tokenizer.encode(text, add_special_tokens=special) == reference.encode(text, None, False, special).ids
            )
        ids = tokenizer.encode(text)
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode(tokenizer.encode(TEXTS[1])) == TEXTS[1]
    assert tokenizer.vocabulary == reference.get_vocab_size()


def test_it_neither_truncates_nor_pads(tmp_path: Path) -> None:
    """What a training script left in the file."""
    tokenizer = byte_level()
    expected = tokenizer.encode(TEXTS[0]).ids
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=200)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TextTokenizer.from_folder(tmp_path).encode(TEXTS[0]) == expected


def test_a_vocabulary_with_gaps_reaches_to_its_largest_id(tmp_path: Path) -> None:
    state = json.loads(byte_level().to_str())
    state["model"]["vocab"]["far"] = 5000
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match=r"im_start.* is 330 by its entry"):  # the package would move it
        TextTokenizer.from_folder(tmp_path)
    path.write_text(json.dumps(state | {"added_tokens": []}))
    tokenizer = TextTokenizer.from_folder(tmp_path)
    assert tokenizer.vocabulary == 5001
    assert tokenizer.decode([5000, 4000]) == "far"


@pytest.mark.parametrize("token", [-1, 400, 2**32 + 5])
def test_an_id_outside_the_vocabulary_is_named(token: int, tmp_path: Path) -> None:
    with pytest.raises(TokenIdError, match=f"tokens, place 1: expected a token id from 0 to .*, got {token}"):
        read_folder(tmp_path).decode([3, token])


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"U\+D83D at position 1"):
        read_folder(tmp_path).encode("a\ud83d")


# ---------------------------------------------------------------------- stop tokens


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config": {}}, []),
        ({"tokenizer_config": {"eos_token": END}}, [END]),
        ({"tokenizer_config": {"eos_token": {"content": END, "lstrip": False}}}, [END]),
        ({"tokenizer_config": {}, "special_tokens_map": {"eos_token": {"content": END}}}, [END]),
        ({"tokenizer_config": {"eos_token": END}, "special_tokens_map": {"eos_token": START}}, [END]),
        ({"tokenizer_config": {"eos_token": None}, "config": {"eos_token_id": 7}}, [7]),
        ({"tokenizer_config": {"eos_token": END}, "config": {"eos_token_id": 0}}, [0, END]),
        (
            {"tokenizer_config": {}, "generation_config": {"eos_token_id": [9, 8]}, "config": {"eos_token_id": 8}},
            [9, 8],
        ),
        ({"tokenizer_config": {}, "generation_config": {"eos_token_id": None}, "config": {"eos_token_id": [5]}}, [5]),
    ],
)
def test_stop_tokens_are_what_all_files_say(files: dict[str, Any], expected: list[Any], tmp_path: Path) -> None:
    tokenizer = read_folder(tmp_path, **files)
    numbers = byte_level().get_vocab()
    assert tokenizer.stop_tokens == tuple(numbers.get(token, token) for token in expected)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config", {"eos_token_id": True}, "eos_token_id"),
        ("config", {"eos_token_id": -1}, "eos_token_id"),
        ("config", {"eos_token_id": 2**40}, "eos_token_id"),
        ("generation_config", {"eos_token_id": [3, "4"]}, "eos_token_id"),
        ("generation_config", {"eos_token_id": 1.5}, "eos_token_id"),
        ("tokenizer_config", {"eos_token": 3}, "eos_token"),
        ("tokenizer_config", {"eos_token": "<|gone|>"}, "does not have"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "y"}}}, "added_tokens_decoder"),
        ("tokenizer_config", {"added_tokens_decoder": {"900": {"content": "<far>"}}}, "'<far>' is 900"),
        ("tokenizer_config", {"added_tokens_decoder": {"3": {"content": END}}}, "is 3 by its entry"),
        ("added_tokens", {"<far>": "9"}, "<far>"),
    ],
)
def test_what_contradicts_the_tokenizer_is_refused(
    name: str, content: dict[str, Any], said: str, tmp_path: Path
) -> None:
    files: dict[str, Any] = {name: content}
    with pytest.raises(CheckpointError, match=said) as caught:
        read_folder(tmp_path, **files)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tokens_that_only_the_config_names_are_added(tmp_path: Path) -> None:
    first = byte_level().get_vocab_size()
    entries = {
        str(first + 1): {"content": "<tool>", "special": False, "lstrip": True},
        str(first): {"content": "<|eot|>", "special": True},
    }
    files = {"added_tokens_decoder": entries, "eos_token": "<|eot|>", "model_max_length": 10**30 + 19884624838656}
    tokenizer = read_folder(tmp_path, tokenizer_config=files)
    assert tokenizer.encode("a<|eot|>  <tool>")[1:] == [first, first + 1]
    assert (tokenizer.stop_tokens, tokenizer.vocabulary) == ((first,), first + 2)
    assert tokenizer.decode([first, first + 1]) == "<tool>"


# ---------------------------------------------------------------------- GPT-2's older folders


def write_older_folder(folder: Path) -> TextTokenizer:
    """The same tokenizer as two files; returns what ``tokenizer.json`` gives."""
    expected = read_folder(folder, config={"model_type": "gpt2", "eos_token_id": 5})
    byte_level().model.save(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    for text in (START, END):
        vocabulary[text] = expected.encode(text)[0]
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (folder / "tokenizer.json").unlink()
    return expected


def test_vocabulary_and_merges_are_the_same_tokenizer(tmp_path: Path) -> None:
    expected = write_older_folder(tmp_path)
    merges = tmp_path / "merges.txt"
    merges.write_bytes(merges.read_bytes().replace(b"\n", b"\r\n"))
    tokenizer = TextTokenizer.from_folder(tmp_path)
    assert tokenizer.vocabulary == expected.vocabulary
    for text in [*TEXTS[:3], "a " + END + " b"]:
        assert tokenizer.encode(text) == expected.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == expected.decode(expected.encode(text))
    assert set(tokenizer.stop_tokens) == {5, *expected.encode(END)}
    assert tokenizer.decode([5]) == ""  # the token that ends a text is special, whatever it is


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("merges.txt", "#version: 0.2\nt h\nthe\n", "line 3"),
        ("merges.txt", "t zzz\n", "does not fit vocab.json"),
        ("merges.txt", b"\xff\xfe", "UTF-8"),
        ("vocab.json", '{"a": true}', "'a'"),
        ("vocab.json", '{"a": 0, "b"', "JSON"),
        ("vocab.json", '{"a": 0, "a": 1}', "twice"),
        ("tokenizer_config.json", '{"tokenizer_class": "Qwen2Tokenizer"}', "tokenizer.json"),
        ("config.json", '{"model_type": "roberta"}', "roberta"),
    ],
)
def test_older_folders_that_do_not_fit(file: str, content: str | bytes, said: str, tmp_path: Path) -> None:
    write_older_folder(tmp_path)
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CheckpointError, match=said) as caught:
        TextTokenizer.from_folder(tmp_path)
    assert str(tmp_path) in str(caught.value)


# ---------------------------------------------------------------------- files that are no tokenizers


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.999])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_truncated_file_is_named(name: str, share: float, tmp_path: Path) -> None:
    path = write_folder(tmp_path) / name
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(CheckpointError, match=name):
        TextTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n", "Git LFS"),
        (b"<!DOCTYPE html>", "HTML"),
        (b"[1, 2]", "JSON"),
        (b"{}", "not a tokenizer"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}', "not a tokenizer"),
        (b'{"\xff": 1}', "UTF-8"),
    ],
)
def test_what_is_no_tokenizer_is_said(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=said) as caught:
        TextTokenizer.from_folder(tmp_path)
    assert "tokenizer.json" in str(caught.value)


def test_a_folder_without_a_tokenizer_is_explained(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"got no tokenizer$"):
        TextTokenizer.from_folder(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="mila sample"):
        TextTokenizer.from_folder(tmp_path / "run")
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: .* transformers\s+converts"):
        TextTokenizer.from_folder(tmp_path)
    with pytest.raises(CheckpointError, match="got nothing"):
        TextTokenizer.from_folder(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="got a file"):
        TextTokenizer.from_folder(tmp_path / "tokenizer.model")


# ---------------------------------------------------------------------- recommendations


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {}),
        ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 0}, {"temperature": 0.6, "top_p": 0.9}),
        ({"do_sample": True, "top_k": 20, "min_p": None}, {"temperature": 1.0, "top_k": 20}),
        ({"do_sample": True, "temperature": 0.0, "top_k": 20}, {"temperature": 0.0}),
    ],
)
def test_recommended_sampling(content: dict[str, Any] | None, expected: dict[str, Any], tmp_path: Path) -> None:
    files: dict[str, Any] = {} if content is None else {"generation_config": content}
    write_folder(tmp_path, **files)
    assert recommended_sampling(tmp_path) == expected


@pytest.mark.parametrize("value", ["hot", -1, True])
def test_a_recommendation_without_meaning_is_refused(value: Any, tmp_path: Path) -> None:
    write_folder(tmp_path, generation_config={"do_sample": True, "temperature": value})
    with pytest.raises(CheckpointError, match=r"generation_config\.json: temperature"):
        recommended_sampling(tmp_path)


def test_the_end_token_of_each_kind_is_special(tmp_path: Path) -> None:
    for kind, end in END_OF.items():
        tokenizer = read_folder(tmp_path / kind, kind)
        assert [tokenizer.decode([token]) for token in tokenizer.stop_tokens] == [""]
        assert tokenizer.encode(end, add_special_tokens=False)[-1:] == list(tokenizer.stop_tokens)
