"""Tokenizers that need no files: bytes, and the characters of a text.

Token ids are int32 arrays of one axis. Both tokenizers are frozen configs: ``to_json`` writes everything that
``tokenizer_from_json`` needs to make an equal one. Encoding and decoding look ids up in tables, a piece of text at a
time, so that the peak is the text, the result and a few megabytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from mila.errors import DataError, DTypeError, ShapeError, TokenIdError

TokenArray = NDArray[np.int32]
TokenIds = NDArray[np.integer[Any]] | Sequence[int]

PIECE = 1 << 20  # characters or ids handled at once: the temporaries stay at some megabytes


def check_token_ids(name: str, ids: TokenIds, vocab_size: int) -> NDArray[np.integer[Any]]:
    """Return ``ids`` as an integer array of one axis, unchanged in value, after checking every id.

    The check happens before any narrowing, so that 2**32 + 5 cannot become 5.

    Raises:
        ShapeError: not one axis.
        DTypeError: not integers.
        TokenIdError: an id outside ``0 .. vocab_size - 1``; the message names the first one and its position.
    """
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ShapeError(f"{name}: expected token ids of one axis, got shape {array.shape}")
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype == object and all(isinstance(token, int) for token in array):
        refused = next(position for position, token in enumerate(array) if not 0 <= token < vocab_size)
    elif array.dtype.kind not in "iu":
        raise DTypeError(f"{name}: expected integer token ids, got {array.dtype}")
    elif array.min() >= 0 and array.max() < vocab_size:
        return array
    else:
        refused = int(np.argmax((array < 0) | (array >= vocab_size)))
    raise TokenIdError(
        f"{name}: expected token ids from 0 to {vocab_size - 1}, got {int(array[refused])} at position {refused}"
    )


class BaseTokenizer(BaseModel, ABC):
    """Text to token ids and back."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of ids; they run from 0 to ``vocab_size - 1``."""

    @abstractmethod
    def encode(self, text: str) -> TokenArray:
        """Return the ids of ``text``, int32, one axis.

        Raises:
            DataError: a character that has no id; the message names it and its position.
        """

    @abstractmethod
    def decode(self, ids: TokenIds) -> str:
        """Return the text of ``ids``.

        Raises:
            ShapeError: not one axis.
            DTypeError: not integers.
            TokenIdError: an id outside the vocabulary; the message names it and its position.
        """

    def to_json(self) -> str:
        """Return the tokenizer as JSON, for ``tokenizer_from_json``."""
        return self.model_dump_json()


class ByteTokenizer(BaseTokenizer):
    """The bytes of the text in UTF-8: 256 ids, and every text has some."""

    kind: Literal["byte"] = "byte"

    @property
    def vocab_size(self) -> int:
        """256."""
        return 256

    def encode(self, text: str) -> TokenArray:
        """Return one id per UTF-8 byte, int32.

        Raises:
            DataError: half a surrogate pair, which UTF-8 cannot write.
        """
        try:
            encoded = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise unknown_character(text[error.start], error.start, "a character that UTF-8 can write") from None
        return np.frombuffer(encoded, np.uint8).astype(np.int32)

    def decode(self, ids: TokenIds) -> str:
        """Return the text; bytes that are not UTF-8 become U+FFFD."""
        tokens = check_token_ids(type(self).__name__, ids, self.vocab_size)
        return tokens.astype(np.uint8).tobytes().decode("utf-8", errors="replace")


class CharacterTokenizer(BaseTokenizer):
    """One id per character of a learned vocabulary, in the order of the code points.

    ``unknown`` is a character of the vocabulary that stands for every character outside it. Without one, such a
    character is an error.

    Raises:
        pydantic.ValidationError: ``characters`` is empty, not sorted or has duplicates; ``unknown`` is not among them.
    """

    kind: Literal["character"] = "character"
    characters: str = Field(min_length=1)
    unknown: str | None = None

    @model_validator(mode="after")
    def hold_one_vocabulary(self) -> Self:
        """Refuse characters that are not strictly ascending, and an unknown that has no id."""
        code_points = code_points_of(self.characters)
        if code_points.size > 1 and not (code_points[1:] > code_points[:-1]).all():
            raise ValueError("characters: expected distinct characters in the order of their code points")
        if self.unknown is not None and (len(self.unknown) != 1 or self.unknown not in self.characters):
            raise ValueError(f"unknown: expected one of the characters, got {self.unknown!r}")
        return self

    @classmethod
    def from_text(cls, text: str, unknown: str | None = None) -> Self:
        """Learn the vocabulary: the distinct characters of ``text``, and ``unknown`` where it is given.

        Raises:
            DataError: ``text`` is empty, or holds half a surrogate pair.
        """
        if not text:
            raise DataError(f"{cls.__name__}: expected a text to learn the characters from, got an empty one")
        found = set(text)
        surrogates = [character for character in found if "\ud800" <= character <= "\udfff"]
        if surrogates:
            position = min(map(text.index, surrogates))
            raise unknown_character(text[position], position, "a character that UTF-8 can write")
        return cls(characters="".join(sorted(found | set(unknown or ""))), unknown=unknown)

    @property
    def vocab_size(self) -> int:
        """The number of characters."""
        return len(self.characters)

    @property
    def unknown_id(self) -> int | None:
        """The id of ``unknown``, or None: unknown characters are refused."""
        return None if self.unknown is None else self.characters.index(self.unknown)

    def encode(self, text: str) -> TokenArray:
        """Return one id per character, int32; see the class for characters outside the vocabulary."""
        table = self.table_of_ids()
        ids = np.empty(len(text), np.int32)
        for start in range(0, len(text), PIECE):
            piece = ids[start : start + PIECE]
            # clip: every code point above the table finds the table's last entry.
            np.take(table, code_points_of(text[start : start + PIECE]), out=piece, mode="clip")
            if self.unknown is None and piece.min() < 0:
                position = start + int(np.argmax(piece < 0))
                raise unknown_character(text[position], position, f"one of {self.vocab_size} known characters")
        return ids

    def decode(self, ids: TokenIds) -> str:
        """Return one character per id."""
        tokens = check_token_ids(type(self).__name__, ids, self.vocab_size)
        code_points = code_points_of(self.characters)
        pieces = (tokens[start : start + PIECE] for start in range(0, tokens.size, PIECE))
        return "".join(code_points[piece].tobytes().decode("utf-32-le") for piece in pieces)

    def table_of_ids(self) -> TokenArray:
        """Return the id of every code point up to the largest known one, then one for all those above; -1: none."""
        code_points = code_points_of(self.characters)
        table = np.full(int(code_points[-1]) + 2, -1 if self.unknown_id is None else self.unknown_id, np.int32)
        table[code_points] = np.arange(self.vocab_size, dtype=np.int32)
        return table


def code_points_of(text: str) -> NDArray[np.uint32]:
    """Return the code point of every character; surrogates too, so that a table can refuse them by position."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")


def unknown_character(character: str, position: int, expected: str) -> DataError:
    """Return the error that names a character without an id."""
    return DataError(f"text: expected {expected}, got {character!a} (U+{ord(character):04X}) at position {position}")


Tokenizer = Annotated[ByteTokenizer | CharacterTokenizer, Field(discriminator="kind")]


def tokenizer_from_json(text: str | bytes) -> Tokenizer:
    """Read what ``tokenizer.to_json()`` wrote; the field ``kind`` says which tokenizer it is.

    Raises:
        pydantic.ValidationError: not JSON, an unknown kind, or fields that the tokenizer refuses.
    """
    tokenizer: Tokenizer = TypeAdapter[Tokenizer](Tokenizer).validate_json(text)
    return tokenizer
