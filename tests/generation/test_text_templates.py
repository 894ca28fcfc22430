"""Chat templates: where they are found, what they are given, and templates that fail."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mila.errors import CheckpointError, ConfigurationError
from mila.generation.text import ChatTemplate
from tests.generation.chat_templates import CONVERSATIONS, TEMPLATES
from tests.generation.text_models import END, read_folder

QUESTION = [{"role": "user", "content": "Hi"}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def rendered(name: str, conversation: str, generate: bool = True) -> str:
    template = ChatTemplate(TEMPLATES[name], "template", SPECIAL)
    return template.render(CONVERSATIONS[conversation], add_generation_prompt=generate)


def test_what_templates_write() -> None:
    assert rendered("chatml", "question", generate=False) == "<|im_start|>user\n  What is <b>this</b>?\n<|im_end|>\n"
    assert rendered("chatml", "system").endswith("Why?<|im_end|>\n<|im_start|>assistant\n")
    assert rendered("instructions_in_brackets", "turns") == (
        "<s>[INST] Hi 🙂 [/INST] Hello \"you\" & 'me' </s>[INST] 日本? [/INST]"
    )
    assert rendered("headers_and_a_date", "system").startswith(
        "<s><|header|>system<|end_header|>\n\nToday: 26 Jul 2024"
    )
    assert re.fullmatch(r"\d{4} 日本\?", rendered("the_year", "turns"))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config": {"chat_template": "config"}}, "config"),
        ({"chat_template": "file", "tokenizer_config": {"chat_template": "config"}}, "file"),
        ({"tokenizer_config": {"chat_template": [{"name": "only", "template": "one"}]}}, "one"),
        (
            {
                "tokenizer_config": {
                    "chat_template": [{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}]
                }
            },
            "b",
        ),
        ({"tokenizer_config": {"chat_template": {"default": "c", "tool_use": "d"}}}, "c"),
        ({}, None),
    ],
)
def test_where_a_template_is_found(files: dict[str, Any], expected: str | None, tmp_path: Path) -> None:
    assert read_folder(tmp_path, **files).chat_template == expected


def test_a_template_in_its_older_file(tmp_path: Path) -> None:
    read_folder(tmp_path)
    (tmp_path / "chat_template.json").write_text('{"chat_template": "older {{ eos_token }}"}')
    tokenizer = read_folder(tmp_path)
    assert tokenizer.render_chat(QUESTION) == f"older {END}"


@pytest.mark.parametrize(
    "entry", [3, [], {}, [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}], [{"template": 3}]]
)
def test_an_entry_that_is_no_template_is_refused(entry: Any, tmp_path: Path) -> None:
    tokenizer = read_folder(tmp_path, tokenizer_config={"chat_template": entry})
    with pytest.raises(CheckpointError, match=r"chat.template"):
        tokenizer.render_chat(QUESTION)


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a chat template") as caught:
        read_folder(tmp_path).render_chat(QUESTION)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a\n{% for m in messages %}", "malformed on line 2"),
        ("{{ messages | nothing }}", "malformed"),
        ("{{ messages[0].content.no.where }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 3 }}", "TypeError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(3) }}", "SecurityError"),
        ("{% include 'other' %}", "fails"),
        ("{{ nowhere | tojson }}", "TypeError"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_a_template_that_fails_is_one_error(source: str, said: str, tmp_path: Path) -> None:
    tokenizer = read_folder(tmp_path, chat_template=source)
    with pytest.raises(CheckpointError, match=said) as caught:
        tokenizer.render_chat(QUESTION)
    assert str(tmp_path / "chat_template.jinja") in str(caught.value)


def test_a_template_may_refuse_messages() -> None:
    template = ChatTemplate(TEMPLATES["instructions_in_brackets"], "template", SPECIAL)
    with pytest.raises(ConfigurationError, match="refuses these messages: Roles must alternate"):
        template.render([*QUESTION, *QUESTION])


def test_messages_stay_as_they_are() -> None:
    template = ChatTemplate("{% set messages = messages[1:] %}{{ messages | length }}", "template")
    messages = [*QUESTION, *QUESTION]
    assert (template.render(messages), template.render(messages), len(messages)) == ("1", "1", 2)
