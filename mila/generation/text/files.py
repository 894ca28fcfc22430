"""The files around a tokenizer in a model folder, read without trust."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mila.errors import CheckpointError
from mila.serialization import read_json_object
from mila.serialization.failures import refusals
from mila.serialization.regular_file import open_regular_file

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
CONFIG_FILE = "config.json"

#: Ids are below it.
LARGEST_ID = 1 << 31

#: Roles whose text Mila needs; what else ends in ``_token`` is handed to chat templates where it is text.
_NEEDED_ROLES = ("bos_token", "eos_token")

#: How an added token is found in a text.
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


def read_text(path: Path) -> str:
    """A text file, UTF-8.

    Raises:
        CheckpointError: it cannot be read, or is not UTF-8.
    """
    with open_regular_file(path) as file, refusals(path, "could not be read"):
        content = file.readall()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: expected text in UTF-8, got byte 0x{content[error.start]:02x}") from None


def read_object(path: Path) -> dict[str, Any] | None:
    """A file that holds one JSON object; ``None`` where there is no file.

    Raises:
        CheckpointError: anything else than one strict JSON object.
    """
    return read_json_object(path) if path.exists() else None


@dataclass(frozen=True)
class TokenizerSettings:
    """What the files beside ``tokenizer.json`` say.

    Attributes:
        folder: the model folder.
        tokenizer_config: of ``tokenizer_config.json``; empty without one.
        generation_config: of ``generation_config.json``.
        config: of ``config.json``.
        special_tokens: text of the special tokens by role: ``{"bos_token": "<s>"}``.
        added_tokens: tokens beside the trained vocabulary: their ids, and how they are found in a text.
    """

    folder: Path
    tokenizer_config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    config: Mapping[str, Any]
    special_tokens: Mapping[str, str]
    added_tokens: Mapping[str, tuple[int, Mapping[str, bool]]]

    @classmethod
    def from_folder(cls, folder: Path) -> TokenizerSettings:
        """Read them all.

        Raises:
            CheckpointError: a file that is not what it should be; the message names it.
        """
        tokenizer_config = read_object(folder / TOKENIZER_CONFIG_FILE) or {}
        return cls(
            folder,
            tokenizer_config,
            read_object(folder / GENERATION_CONFIG_FILE) or {},
            read_object(folder / CONFIG_FILE) or {},
            _special_tokens(folder, tokenizer_config),
            _added_tokens(folder, tokenizer_config),
        )

    def stop_token_ids(self) -> list[int]:
        """Ids that end a text, of ``generation_config.json`` first and ``config.json`` then; one of them may repeat.

        Raises:
            CheckpointError: an ``eos_token_id`` that is neither an id nor a list of ids.
        """
        found: list[int] = []
        for name, values in ((GENERATION_CONFIG_FILE, self.generation_config), (CONFIG_FILE, self.config)):
            value = values.get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(token) is int and 0 <= token < LARGEST_ID for token in ids):
                raise CheckpointError(f"{self.folder / name}: expected eos_token_id to be an id or ids, got {value!r}")
            found += ids
        return found


def _special_tokens(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """By role; ``tokenizer_config.json`` comes before the older ``special_tokens_map.json``."""
    name = "special_tokens_map.json"
    found: dict[str, str] = {}
    for file, values in ((name, read_object(folder / name) or {}), (TOKENIZER_CONFIG_FILE, tokenizer_config)):
        for role, value in values.items():
            if not role.endswith("_token") or isinstance(value, bool) or value is None:
                continue  # add_bos_token and its like are switches
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[role] = text
            elif role in _NEEDED_ROLES:
                raise CheckpointError(f"{folder / file}: expected {role} to be the text of a token, got {value!r}")
    return found


def _added_tokens(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, tuple[int, Mapping[str, bool]]]:
    """From ``added_tokens.json`` (older folders) and ``added_tokens_decoder`` of ``tokenizer_config.json``."""
    path = folder / "added_tokens.json"
    found: dict[str, tuple[int, Mapping[str, bool]]] = {}
    for text, token in (read_object(path) or {}).items():
        if type(token) is not int or not 0 <= token < LARGEST_ID:
            raise CheckpointError(f"{path}: expected the id of {text!r}, got {token!r}")
        found[text] = (token, {})
    path = folder / TOKENIZER_CONFIG_FILE
    entries = tokenizer_config.get("added_tokens_decoder", {})
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path}: expected added_tokens_decoder to be an object, got {entries!r}")
    for token, entry in entries.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not (token.isascii() and token.isdigit() and isinstance(content, str)):
            raise CheckpointError(
                f"{path}: added_tokens_decoder: expected an id and its token, got {token!r}: {entry!r}"
            )
        found[content] = (int(token), {name: entry[name] for name in _FLAGS if isinstance(entry.get(name), bool)})
    return found
