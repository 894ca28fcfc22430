"""How many tokens a folder's tokenizer knows, against how many rows the model has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mila.errors import CheckpointError
from mila.serialization.foreign_content import foreign_content_hint

# The brackets tell them from tokens of these names; inside a text, the quotes would have backslashes.
_VOCABULARY = re.compile(r'"vocab"\s*:\s*(?=[\[{])')
_ADDED_TOKENS = re.compile(r'"added_tokens"\s*:\s*(?=\[)')


def check_vocabulary(folder: Path, vocab_size: int) -> tuple[str, ...]:
    """Notes on rows of the token table that no token has.

    Of ``tokenizer.json``, the vocabulary and the added tokens are read alone: the merges, most of a file of up to tens
    of megabytes, take four times as long, and all of it is checked where texts are read.

    Raises:
        CheckpointError: something else in place of the file, or a tokenizer with ids that the model lacks.
    """
    from mila.generation.text.files import TOKENIZER_FILE, read_text  # only where there is a tokenizer

    file = folder / TOKENIZER_FILE
    if not file.exists():
        return ()
    text = read_text(file)
    if not text.lstrip().startswith("{"):
        hint = foreign_content_hint(text[:64].encode()) or repr(text[:40])
        raise CheckpointError(f"{file}: expected a tokenizer in JSON, got {hint}")
    count = _id_count(_value_after(_VOCABULARY, text, file), _value_after(_ADDED_TOKENS, text, file))
    if count > vocab_size:
        raise CheckpointError(
            f"{file}: expected at most {vocab_size} tokens, the rows of the model's table, got ids up to {count - 1}; "
            "the tokenizer belongs to another model"
        )
    if not 0 < count < vocab_size:
        return ()
    return (f"the table has {vocab_size} rows, of which {vocab_size - count} have no token in {TOKENIZER_FILE}",)


def _value_after(key: re.Pattern[str], text: str, file: Path) -> Any:
    """The JSON value behind a key; an empty list where there is no such key."""
    found = key.search(text)
    if found is None:
        return []
    try:
        return json.JSONDecoder().raw_decode(text, found.end())[0]
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: expected a tokenizer of valid JSON, got {error}") from None


def _id_count(vocabulary: Any, added_tokens: Any) -> int:
    """One more than the largest id; 0 for a tokenizer of another form.

    Args:
        vocabulary: ids by token, or the list of all tokens with their scores.
        added_tokens: each with its id.
    """
    if isinstance(vocabulary, dict):
        count = max((each for each in vocabulary.values() if isinstance(each, int)), default=-1) + 1
    else:
        count = len(vocabulary) if isinstance(vocabulary, list) else 0
    for token in added_tokens if isinstance(added_tokens, list) else ():
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            count = max(count, token["id"] + 1)
    return count
