"""How many tokens a folder's tokenizer knows, against how many rows the model has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mila.errors import CheckpointError
from mila.serialization import read_json_object

TOKENIZER_FILE = "tokenizer.json"


def check_vocabulary(folder: Path, vocab_size: int) -> tuple[str, ...]:
    """Notes on rows of the token table that no token has.

    Raises:
        CheckpointError: the tokenizer has ids that the model lacks.
    """
    file = folder / TOKENIZER_FILE
    if not file.exists():
        return ()
    count = _id_count(read_json_object(file, what="tokenizer"))
    if count > vocab_size:
        raise CheckpointError(
            f"{file}: expected at most {vocab_size} tokens, the rows of the model's table, got ids up to {count - 1}; "
            "the tokenizer belongs to another model"
        )
    if not 0 < count < vocab_size:
        return ()
    return (f"the table has {vocab_size} rows, of which {vocab_size - count} have no token in {TOKENIZER_FILE}",)


def _id_count(tokenizer: dict[str, Any]) -> int:
    """One more than the largest id; 0 for a tokenizer of another form."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    count = 0
    if isinstance(vocabulary, dict):
        count = max((each for each in vocabulary.values() if isinstance(each, int)), default=-1) + 1
    elif isinstance(vocabulary, list):
        count = len(vocabulary)
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            count = max(count, token["id"] + 1)
    return count
