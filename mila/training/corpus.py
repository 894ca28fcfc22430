r"""Text files as one sequence of tokens, and its split into a training and a validation part.

A corpus is a set of files in the order of their paths (as text, `/` between folders), whatever order they were given
in, so that the same files give the same tokens on every machine. Files are read as they are, UTF-8 without newline
translation. Between two files stands a separator, which is text like all other and is encoded by the tokenizer: a
newline keeps a last line from running into the next file; ``"\0"`` makes a token that says where a file ends.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from mila.errors import ConfigurationError, DataError
from mila.training.tokenization import BaseTokenizer, TokenArray

DecodingErrors = Literal["strict", "replace", "skip"]


@dataclass(frozen=True)
class TextCorpus:
    """Text files that are read when asked for.

    ``errors`` decides what happens to a file that is not UTF-8: ``"strict"`` refuses it, ``"replace"`` puts U+FFFD in
    place of the bytes, ``"skip"`` leaves the whole file out.

    Raises:
        DataError: no paths.
        ConfigurationError: an unknown ``errors``.
    """

    paths: tuple[Path, ...]
    errors: DecodingErrors = "strict"
    separator: str = "\n"

    def __post_init__(self) -> None:
        if self.errors not in ("strict", "replace", "skip"):
            raise ConfigurationError(f"errors: expected strict, replace or skip, got {self.errors!r}")
        if not self.paths:
            raise DataError("corpus: expected at least one text file, got none")
        object.__setattr__(self, "paths", sorted_paths(self.paths))

    @classmethod
    def from_folder(
        cls, folder: Path, pattern: str = "**/*.txt", errors: DecodingErrors = "strict", separator: str = "\n"
    ) -> Self:
        """Take the files of ``folder`` that match the glob ``pattern``.

        Raises:
            DataError: no file matches, or the pattern is none.
        """
        try:
            paths = tuple(path for path in folder.glob(pattern) if path.is_file())
        except (NotImplementedError, ValueError) as error:
            raise DataError(f"{folder}: expected a relative pattern such as **/*.txt, got {pattern!r}") from error
        if not paths:
            raise DataError(f"{folder}: expected files that match {pattern}, got none")
        return cls(paths, errors, separator)

    def documents(self) -> Iterator[tuple[Path, str]]:
        """Yield the path and the text of every file, in order.

        Raises:
            DataError: a file that cannot be read or, under ``strict``, is not UTF-8; the message names it.
        """
        for path in self.paths:
            text = read_text(path, self.errors)
            if text is not None:
                yield path, text

    def text(self) -> str:
        """Return all files as one text, the separator between them.

        Raises:
            DataError: as ``documents``; or there is no text at all.
        """
        text = self.separator.join(text for _, text in self.documents())
        if not text:
            raise DataError(f"corpus: expected text in {len(self.paths)} files from {self.paths[0]} on, got none")
        return text

    def tokens(self, tokenizer: BaseTokenizer) -> TokenArray:
        """Return all files as one array of token ids, int32, the separator's tokens between them.

        Raises:
            DataError: as ``text``; or a character that the tokenizer does not know.
        """
        return tokenizer.encode(self.text())


@dataclass(frozen=True)
class TokenSplit:
    """Two parts of one sequence that share no token: views of int32 arrays of one axis."""

    training: TokenArray
    validation: TokenArray


def split_tokens(tokens: TokenArray, validation_fraction: float = 0.1) -> TokenSplit:
    """Hold out the last ``validation_fraction`` of the tokens, rounded down; nothing is copied.

    The end is taken, not a sample, because text nearby is alike: held-out windows between training windows would
    flatter the result.

    Raises:
        ConfigurationError: a fraction that is not between 0 and 1.
        DataError: one of the parts would be empty.
    """
    if not 0.0 < validation_fraction < 1.0:
        raise ConfigurationError(f"validation_fraction: expected a number between 0 and 1, got {validation_fraction}")
    validation_size = int(tokens.size * validation_fraction)
    if not 0 < validation_size < tokens.size:
        raise DataError(
            f"tokens: expected enough to hold out the last {validation_fraction:g} of them, got {tokens.size} tokens"
        )
    border = tokens.size - validation_size
    return TokenSplit(training=tokens[:border], validation=tokens[border:])


def standard_library_sources(maximum_bytes: int | None = None, include_tests: bool = False) -> tuple[Path, ...]:
    """Return the ``.py`` files of this Python's own standard library: text that is on every machine.

    Installed packages are left out; so are the library's test folders unless they are asked for. The files come in the
    order of their paths, up to the last one with which they are no more than ``maximum_bytes`` together.

    Raises:
        DataError: this Python keeps no sources of its library, or the first file is larger than ``maximum_bytes``.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    excluded = {"site-packages", "dist-packages"} | (set() if include_tests else {"test", "tests", "idle_test"})
    found = []
    for folder, inner_folders, names in os.walk(library):
        inner_folders[:] = [name for name in inner_folders if name not in excluded]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    taken: list[Path] = []
    total = 0
    for path in sorted_paths(path for path in found if path.is_file()):
        total += path.stat().st_size
        if maximum_bytes is not None and total > maximum_bytes:
            break
        taken.append(path)
    if not taken:
        limit = "" if maximum_bytes is None else f" of at most {maximum_bytes} bytes"
        raise DataError(f"{library}: expected .py files{limit}, got none")
    return tuple(taken)


def sorted_paths(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the paths in an order that depends on their text alone, not on the file system or the locale."""
    return tuple(sorted(paths, key=lambda path: path.as_posix()))


def read_text(path: Path, errors: DecodingErrors) -> str | None:
    """Return the text of a file, or None for one that ``skip`` leaves out."""
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: expected a text file, got a folder or a special file")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a readable text file, got: {error.strerror}") from error
    try:
        return content.decode("utf-8", errors="replace" if errors == "replace" else "strict")
    except UnicodeDecodeError as error:
        if errors == "skip":
            return None
        raise DataError(
            f"{path}: expected UTF-8, got byte 0x{content[error.start]:02X} at offset {error.start}; "
            "such files can be skipped, or their bytes replaced"
        ) from error
