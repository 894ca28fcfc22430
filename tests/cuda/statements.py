"""Where kernel files have statements, read from the text: a compiler says nothing of templates that nobody uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
#: The head of a function or of a lambda expression, before its body.
_HEAD = re.compile(r"\)\s*(const|mutable)?$")
#: What compilers settle by themselves: declarations, conditions that are constants, and functions of constants.
_CONSTANT = re.compile(r"(using|static_assert|(extern )?__shared__|struct|enum)\b|.*\bconstexpr\b")
#: Variables without a value, ``float left[N], right[N]``.
_VARIABLES = re.compile(r"(?!return\b)[\w:]+(<[^()]*>)? \w+(\[[^()=]*\])*(, \w+(\[[^()=]*\])*)*$")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a function, or a function's head: its lines from the first to the last."""

    first: int
    last: int
    text: str


def statements(text: str) -> Iterator[Statement]:
    """The statements of all functions for which a compiler makes code, cut at semicolons and braces."""
    depths: list[bool] = []  # for every open brace whether it is, or is inside, a function's
    for part in _parts(_blanked(text)):
        inside, opens = bool(depths) and depths[-1], part.end == "{"
        is_constant = _CONSTANT.match(part.text) is not None
        is_head = opens and not is_constant and _HEAD.search(part.text) is not None
        has_words = re.search(r"\w", part.text.removeprefix("else")) is not None
        if has_words and (inside or is_head) and not is_constant and not _VARIABLES.match(part.text):
            yield Statement(part.first, part.last, part.text)
        if opens:
            depths.append(inside or is_head)
        elif part.end == "}":
            depths.pop()


@dataclass(frozen=True, slots=True)
class _Part:
    """The text before a semicolon or brace, on one line."""

    first: int
    last: int
    text: str
    end: str


def _parts(text: str) -> Iterator[_Part]:
    start = 0
    for match in re.finditer(r"[;{}]", text):
        piece = text[start : match.start()]
        before = start + len(piece) - len(piece.lstrip())
        first, last = (text.count("\n", 0, place) + 1 for place in (before, match.start()))
        last -= piece.count("\n", len(piece.rstrip()))
        yield _Part(min(first, last), last, " ".join(piece.split()), match[0])
        start = match.end()


def _blanked(text: str) -> str:
    """The text without comments and directives; every line keeps its number."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return _DIRECTIVE.sub(blank, _COMMENT.sub(blank, text))
