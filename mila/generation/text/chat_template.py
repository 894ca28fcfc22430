"""Chat templates: messages to the text that a model was trained on, as a Jinja template in the model's folder says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from mila.errors import CheckpointError, ConfigurationError, DataError
from mila.generation.text.files import TOKENIZER_CONFIG_FILE, TokenizerSettings, read_object, read_text
from mila.generation.token_ids import is_sequence

#: One message: ``{"role": "user", "content": "…"}``; a template may read more fields.
Message = Mapping[str, Any]

_TEMPLATE_FILE = "chat_template.jinja"
_OLDER_TEMPLATE_FILE = "chat_template.json"
_DEFAULT = "default"

#: ``{% generation %}`` marks the model's own words for training; for rendering it is a block like any other.
_GENERATION_TAG = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")


class ChatTemplate:
    """A template, compiled when it is first rendered, in Jinja's sandbox: it reaches nothing but the messages.

    Args:
        source: the template.
        where: the file it is from, for errors.
        special_tokens: variables of the template: ``{"bos_token": "<s>"}``.
    """

    def __init__(self, source: str, where: Path | str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.where = where
        self._special_tokens = dict(special_tokens or {})

    @classmethod
    def from_settings(cls, settings: TokenizerSettings) -> ChatTemplate | None:
        """The template of a model folder, if it has one.

        ``chat_template.jinja`` comes before ``tokenizer_config.json``, and that before ``chat_template.json``.

        Raises:
            CheckpointError: an entry that is no template, or several without a default.
        """
        folder = settings.folder
        if (folder / _TEMPLATE_FILE).exists():
            return cls(read_text(folder / _TEMPLATE_FILE), folder / _TEMPLATE_FILE, settings.special_tokens)
        older = read_object(folder / _OLDER_TEMPLATE_FILE) or {}
        for name, values in ((TOKENIZER_CONFIG_FILE, settings.tokenizer_config), (_OLDER_TEMPLATE_FILE, older)):
            entry = values.get("chat_template")
            if entry is not None:
                return cls(_choose(entry, folder / name), folder / name, settings.special_tokens)
        return None

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation.

        Args:
            messages: in their order.
            add_generation_prompt: end with the start of the assistant's answer.

        Raises:
            DataError: something else than messages, each with a ``role``; a text, or what a template makes of it, is
                its ``content``, if it has one.
            ConfigurationError: the template refuses the messages: a role it does not know, roles in a wrong order.
            CheckpointError: the template is malformed, or fails.
        """
        _check_messages(messages)
        template = self._compiled
        try:
            text = template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except _RefusedMessagesError as error:
            raise ConfigurationError(f"{self.where}: the chat template refuses these messages: {error}") from None
        except Exception as error:  # a template is a program: it may raise anything
            raise CheckpointError(f"{self.where}: the chat template fails: {type(error).__name__}: {error}") from None
        return str(text)

    @cached_property
    def _compiled(self) -> Any:
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse_messages
        environment.globals["strftime_now"] = _time_now
        try:
            return environment.from_string(_GENERATION_TAG.sub(_plain_block, self.source))
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            place = "" if line is None else f" on line {line}"
            raise CheckpointError(f"{self.where}: the chat template is malformed{place}: {error}") from None
        except RecursionError:
            raise CheckpointError(f"{self.where}: the chat template is nested too deeply to follow") from None


def _check_messages(messages: Any) -> None:
    """Before the template runs, which would be blamed; contents that are lists of parts are up to it."""
    if not is_sequence(messages):
        raise DataError(f"messages: expected a sequence of messages, got {type(messages).__name__}")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(f"message {place}: expected a dictionary with a role and its content, got {message!r:.80}")
        content = message.get("content", "")
        if not isinstance(content, str | list | tuple) and not (content is None and "tool_calls" in message):
            raise DataError(f"message {place}: expected a text as its content, got {type(content).__name__}")


class _RefusedMessagesError(Exception):
    """What ``raise_exception`` of a template raises."""


def _refuse_messages(message: object) -> NoReturn:
    raise _RefusedMessagesError(str(message))


def _time_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter writes HTML entities."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _plain_block(tag: re.Match[str]) -> str:
    return f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}"


def _choose(entry: Any, where: Path) -> str:
    """The template of an entry: text, or named templates of which one is the default."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list):
        entry = {each.get("name"): each.get("template") for each in entry if isinstance(each, dict)}
    named = {name: text for name, text in entry.items() if isinstance(text, str)} if isinstance(entry, dict) else {}
    if not named:
        raise CheckpointError(f"{where}: expected chat_template to be a template, or named ones, got {entry!r:.80}")
    if _DEFAULT not in named and len(named) > 1:
        names = ", ".join(map(str, named))
        raise CheckpointError(f"{where}: expected a chat template named {_DEFAULT!r}, got {names}")
    return named.get(_DEFAULT) or next(iter(named.values()))
