"""From the files of a model folder to the tokenizer of the ``tokenizers`` package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mila.errors import CheckpointError
from mila.generation.text.files import LARGEST_ID, TOKENIZER_FILE, TokenizerSettings, read_object, read_text
from mila.serialization import holds_checkpoints
from mila.serialization.foreign_content import foreign_content_hint

_VOCABULARY_FILE = "vocab.json"
_MERGES_FILE = "merges.txt"
_SENTENCEPIECE_FILE = "tokenizer.model"

#: Where the list starts; a token of this name is followed by a number.
_ADDED_TOKENS = re.compile(r'"added_tokens"\s*:\s*(?=\[)')

#: Whose ``vocab.json`` and ``merges.txt`` are byte pairs of words as GPT-2 finds them; others find them otherwise.
_GPT2_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast")


def load_tokenizer(settings: TokenizerSettings) -> Any:
    """The ``tokenizers.Tokenizer`` of a folder, with its added and special tokens; it neither truncates nor pads.

    Raises:
        CheckpointError: no tokenizer, one that needs another program, or a file that is malformed.
    """
    folder = settings.folder
    if (folder / TOKENIZER_FILE).exists():
        tokenizer = _from_tokenizer_json(folder / TOKENIZER_FILE)
    elif (folder / _VOCABULARY_FILE).exists() and (folder / _MERGES_FILE).exists():
        tokenizer = _from_byte_pairs(settings)
    else:
        raise _no_tokenizer(folder)
    tokenizer.no_truncation()  # a property of the model's training, not of its text
    tokenizer.no_padding()
    _add_tokens(tokenizer, settings)
    return tokenizer


def _no_tokenizer(folder: Path) -> CheckpointError:
    if not folder.is_dir():
        return CheckpointError(f"{folder}: expected a model folder, got {'a file' if folder.exists() else 'nothing'}")
    if (folder / _SENTENCEPIECE_FILE).exists():
        return CheckpointError(
            f"{folder / _SENTENCEPIECE_FILE}: expected {TOKENIZER_FILE}, got a SentencePiece model alone; transformers "
            f"converts it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    expected = f"{folder}: expected {TOKENIZER_FILE}, or {_VOCABULARY_FILE} and {_MERGES_FILE}, got no tokenizer"
    hint = "; what `mila train` wrote is for `mila sample`" if holds_checkpoints(folder) else ""
    return CheckpointError(expected + hint)


def _from_tokenizer_json(path: Path) -> Any:
    from tokenizers import Tokenizer

    text = read_text(path)
    if not text.lstrip().startswith("{"):
        hint = foreign_content_hint(text[:64].encode()) or f"{text[:40]!r}; is the download complete?"
        raise CheckpointError(f"{path}: expected a tokenizer in JSON, got {hint}")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the package raises plain Exception
        raise CheckpointError(f"{path}: is not a tokenizer that can be read: {error}") from None
    _check_added_tokens(tokenizer, text, path)
    return tokenizer


def _check_added_tokens(tokenizer: Any, text: str, path: Path) -> None:
    """The package numbers added tokens on from the vocabulary, whatever the file says; where it has gaps, they move."""
    found = _ADDED_TOKENS.search(text)
    if found is None:
        return
    for entry in json.JSONDecoder().raw_decode(text, found.end())[0]:
        number = tokenizer.token_to_id(entry["content"])
        if number != entry["id"]:
            raise CheckpointError(
                f"{path}: the added token {entry['content']!r} is {entry['id']} by its entry, and {number} by the "
                f"vocabulary before it"
            )


def _from_byte_pairs(settings: TokenizerSettings) -> Any:
    """GPT-2's older folders."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    folder = settings.folder
    named = settings.tokenizer_config.get("tokenizer_class")
    model_type = settings.config.get("model_type", "gpt2")
    if named not in _GPT2_CLASSES and (named is not None or model_type != "gpt2"):
        raise CheckpointError(
            f"{folder}: expected {TOKENIZER_FILE}, got {_VOCABULARY_FILE} and {_MERGES_FILE} of {named or model_type}, "
            f"which are read for GPT-2 alone; transformers writes {TOKENIZER_FILE}: "
            f"AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    vocabulary = _read_vocabulary(folder / _VOCABULARY_FILE)
    merges = _read_merges(folder / _MERGES_FILE)
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:
        raise CheckpointError(f"{folder / _MERGES_FILE}: does not fit {_VOCABULARY_FILE}: {error}") from None
    leading = settings.tokenizer_config.get("add_prefix_space") is True
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=leading)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    ends = map(tokenizer.id_to_token, settings.stop_token_ids())
    tokenizer.add_special_tokens([token for token in ends if token is not None])
    return tokenizer


def _read_vocabulary(path: Path) -> dict[str, int]:
    vocabulary = read_object(path) or {}
    for token, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < LARGEST_ID:
            raise CheckpointError(f"{path}: expected the id of {token!r}, got {number!r}")
    return vocabulary


def _read_merges(path: Path) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise CheckpointError(f"{path}: expected two tokens on line {number}, got {line[:40]!r}")
        merges.append((parts[0], parts[1]))
    return merges


def _add_tokens(tokenizer: Any, settings: TokenizerSettings) -> None:
    """Tokens that only the files beside the tokenizer name, and the special ones among those it has."""
    from tokenizers import AddedToken

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for text, (number, flags) in sorted(settings.added_tokens.items(), key=lambda item: item[1][0]):
        if tokenizer.token_to_id(text) is None:
            tokenizer.add_tokens([AddedToken(text, **{"normalized": False, **flags})])
        if tokenizer.token_to_id(text) != number:
            raise CheckpointError(
                f"{settings.folder}: the added token {text!r} is {number} by its entry, and "
                f"{tokenizer.token_to_id(text)} in the tokenizer"
            )
        known.add(text)
    for role in ("bos_token", "eos_token"):
        named = settings.special_tokens.get(role)
        if named is None or named in known:
            continue
        if tokenizer.token_to_id(named) is None:
            raise CheckpointError(f"{settings.folder}: {role} is {named!r}, which the tokenizer does not have")
        tokenizer.add_special_tokens([named])
