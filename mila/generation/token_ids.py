"""Ids from outside: checked one by one before they are narrowed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mila.errors import TokenIdError

#: Token ids of one sequence.
TokenSequence = Sequence[int] | NDArray[np.integer[Any]]


def checked_token(token: Any, vocabulary: int, where: str) -> int:
    """``token`` as a plain integer.

    Args:
        token: an integer of Python or NumPy.
        vocabulary: ids run from 0 to ``vocabulary - 1``.
        where: the place, for the message.

    Raises:
        TokenIdError: a float, a boolean or anything else that is no integer, or outside the vocabulary.
    """
    if type(token) is int or (isinstance(token, int | np.integer) and not isinstance(token, bool)):
        value = operator.index(token)
        if 0 <= value < vocabulary:
            return value
    raise TokenIdError(f"{where}: expected a token id from 0 to {vocabulary - 1}, got {token!r}")


def checked_ids(ids: TokenSequence, vocabulary: int, where: str) -> NDArray[np.int32]:
    """``ids`` as int32 (T,); T may be 0.

    Args:
        ids: a sequence of integers, or an integer array of one axis.
        vocabulary: ids run from 0 to ``vocabulary - 1``.
        where: the path and the row, for the message.

    Raises:
        TokenIdError: not a sequence of ids, or an id that :func:`checked_token` refuses; the first is named with its
            place.
    """
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1:
            raise TokenIdError(f"{where}: expected token ids of one axis, got shape {ids.shape}")
        whole = ids.size > 0 and ids.dtype.kind in "iu"
        if whole and int(ids.min()) >= 0 and int(ids.max()) < vocabulary:
            return ids.astype(np.int32)
    elif not is_sequence(ids):
        raise TokenIdError(f"{where}: expected token ids, got {type(ids).__name__}{_hint(ids)}")
    tokens = (checked_token(token, vocabulary, f"{where}, place {place}") for place, token in enumerate(ids))
    return np.fromiter(tokens, np.int32, len(ids))


def checked_prompt(prompt: TokenSequence, vocabulary: int, where: str) -> NDArray[np.int32]:
    """``prompt`` as int32 ids (T,), T at least 1; see :func:`checked_ids`.

    Raises:
        TokenIdError: as there, or an empty prompt.
    """
    ids = checked_ids(prompt, vocabulary, where)
    if not ids.size:
        raise TokenIdError(f"{where}: expected at least one token id, got none")
    return ids


def require_sequence(given: Any, what: str, where: str) -> None:
    """Refuse what has no rows.

    Args:
        given: one element per row.
        what: what the elements are, for the message.
        where: the path, for the message.

    Raises:
        TokenIdError: text, a set, a generator, an array without an axis, or no collection at all.
    """
    if not is_sequence(given):
        raise TokenIdError(f"{where}: expected a sequence of {what}, got {type(given).__name__}{_hint(given)}")


def is_sequence(given: Any) -> bool:
    """Whether it has a length and places, as lists and arrays with an axis do, and is no text."""
    if isinstance(given, np.ndarray):
        return given.ndim > 0
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)


def is_single_prompt(prompts: Any) -> bool:
    """Whether it is meant as one prompt, not as a sequence of prompts; what is neither counts as a wrong prompt."""
    return not is_sequence(prompts) or not len(prompts) or not isinstance(prompts[0], Sequence | np.ndarray)


def _hint(given: Any) -> str:
    return "; texts are for mila.generation.text.generate_text" if isinstance(given, str) else ""
