"""The tokenizer of a model folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mila.errors import CheckpointError, DataError
from mila.generation.text.chat_template import ChatTemplate, Message
from mila.generation.text.files import TokenizerSettings
from mila.generation.text.incremental import IncrementalDecoder
from mila.generation.text.tokenizer_files import load_tokenizer
from mila.generation.token_ids import TokenSequence, checked_ids

#: How vocabularies made by SentencePiece spell a token that is one byte.
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TextTokenizer:
    """Text to ids and back, as the files of a model say.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
        settings: what the other files of the folder say.

    Attributes:
        vocabulary: number of ids; the network's may be padded beyond it.
        stop_tokens: ids that end a text: all that ``generation_config.json`` and ``config.json`` name as
            ``eos_token_id``, and the ``eos_token`` of ``tokenizer_config.json``, in this order. Their union is taken
            because the files of chat models often disagree, and each is right: one ends a turn, the other a document.
    """

    def __init__(self, tokenizer: Any, settings: TokenizerSettings) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self.vocabulary = _vocabulary(tokenizer)
        self.stop_tokens = self._find_stop_tokens()

    @classmethod
    def from_folder(cls, folder: str | Path) -> TextTokenizer:
        """Read ``tokenizer.json``, or GPT-2's older ``vocab.json`` and ``merges.txt``, and the files beside them.

        Raises:
            CheckpointError: no tokenizer, one that needs another program, or a file that is malformed; the message
                names it.
        """
        settings = TokenizerSettings.from_folder(Path(folder))
        return cls(load_tokenizer(settings), settings)

    @property
    def folder(self) -> Path:
        """Where it is from."""
        return self._settings.folder

    def encode(self, text: str, *, add_special_tokens: bool = True, name: str = "text") -> list[int]:
        """The ids of ``text``.

        Special tokens that stand in the text are taken for what they are.

        Args:
            text: any text.
            add_special_tokens: put those around it that the model expects, such as one that begins a document.
            name: what errors call it.

        Raises:
            DataError: something else than a text, half a surrogate pair, which is no character, or a text that the
                tokenizer has no tokens for.
        """
        if not isinstance(text, str):
            raise DataError(f"{name}: expected a text, got {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise DataError(f"{name}: expected characters, got U+{code:04X} at position {error.start}") from None
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except Exception as error:  # the package has no class of its own for what it refuses
            raise DataError(f"{self.folder}: the tokenizer refuses {name}: {error}") from None
        return ids

    def decode(self, ids: TokenSequence, *, skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; bytes that make no character become U+FFFD.

        Raises:
            TokenIdError: no sequence of ids, or an id outside the vocabulary; the message names it and its place.
        """
        checked = checked_ids(ids, self.vocabulary, "tokens").tolist()
        text: str = self._tokenizer.decode(checked, skip_special_tokens=skip_special_tokens)
        return text

    def decoder(self, context: TokenSequence = ()) -> IncrementalDecoder:
        """What decodes one token at a time; special tokens give no text.

        Args:
            context: the tokens before; their text is not given, and the first new word keeps its leading space.

        Raises:
            TokenIdError: no sequence of ids, or an id outside the vocabulary.
        """
        before = checked_ids(context, self.vocabulary, "context").tolist()
        return IncrementalDecoder(
            self.decode, is_skipped=self._special_tokens.__contains__, is_byte=self._is_byte, context=before
        )

    @cached_property
    def template(self) -> ChatTemplate | None:
        """How a conversation becomes text, where the folder says it.

        Raises:
            CheckpointError: an entry that is no template.
        """
        return ChatTemplate.from_settings(self._settings)

    @property
    def chat_template(self) -> str | None:
        """The source of the template."""
        return None if self.template is None else self.template.source

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The text of a conversation; encode it with ``add_special_tokens=False``: it holds those it needs.

        Args:
            messages: each with a ``role`` and its ``content``.
            add_generation_prompt: end with the start of the assistant's answer.

        Raises:
            CheckpointError: no template, or one that is malformed.
            DataError: something else than messages.
            ConfigurationError: the template refuses the messages.
        """
        if self.template is None:
            raise CheckpointError(
                f"{self.folder}: expected a chat template (chat_template.jinja or tokenizer_config.json), got none; "
                f"the model continues text, as `mila generate` does"
            )
        return self.template.render(messages, add_generation_prompt=add_generation_prompt)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a conversation, up to the start of the assistant's answer; errors as in :meth:`render_chat`."""
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    @cached_property
    def _special_tokens(self) -> frozenset[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def _is_byte(self, token: int) -> bool:
        text = self._tokenizer.id_to_token(token)
        return text is not None and _BYTE.fullmatch(text) is not None

    def _find_stop_tokens(self) -> tuple[int, ...]:
        end = self._settings.special_tokens.get("eos_token")
        named = [] if end is None else [self._tokenizer.token_to_id(end)]
        return tuple(dict.fromkeys([*self._settings.stop_token_ids(), *named]))


def _vocabulary(tokenizer: Any) -> int:
    """One more than the largest id: where ids have gaps, their number is not enough."""
    size: int = tokenizer.get_vocab_size(with_added_tokens=True)
    if size and tokenizer.id_to_token(size - 1) is None:
        return 1 + int(max(tokenizer.get_vocab(with_added_tokens=True).values()))
    return size
