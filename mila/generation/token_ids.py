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


def checked_prompt(prompt: TokenSequence, vocabulary: int, where: str) -> NDArray[np.int32]:
    """``prompt`` as int32 ids (T,), T at least 1.

    Args:
        prompt: a sequence of integers, or an integer array of one axis.
        vocabulary: ids run from 0 to ``vocabulary - 1``.
        where: the path and the row, for the message.

    Raises:
        TokenIdError: not a sequence of ids, an empty one, or an id that :func:`checked_token` refuses; the first is
            named with its place.
    """
    if isinstance(prompt, np.ndarray):
        if prompt.ndim != 1:
            raise TokenIdError(f"{where}: expected token ids of one axis, got shape {prompt.shape}")
        whole = prompt.size > 0 and prompt.dtype.kind in "iu"
        if whole and int(prompt.min()) >= 0 and int(prompt.max()) < vocabulary:
            return prompt.astype(np.int32)
    elif isinstance(prompt, str | bytes) or not isinstance(prompt, Sequence):
        raise TokenIdError(f"{where}: expected a sequence of token ids, got {type(prompt).__name__}")
    if not len(prompt):
        raise TokenIdError(f"{where}: expected at least one token id, got none")
    tokens = (checked_token(token, vocabulary, f"{where}, place {place}") for place, token in enumerate(prompt))
    return np.fromiter(tokens, np.int32, len(prompt))
