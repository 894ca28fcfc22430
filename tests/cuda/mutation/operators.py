"""What is done to a kernel's text to make a mutant of it.

Operators look at code alone: comments, strings, lines of the preprocessor and launch bounds are blank to them. They
follow the style of the sources, where binary operators stand between blanks and brackets of templates do not.

What cannot change a result is not touched:

- integral ``constexpr`` constants, arguments of templates, sizes of arrays, alignments and ``#pragma unroll``: they say
  how work is divided, and the host knows many of them;
- the end of halving loops, ``half > 0``: beyond it such a loop never ends, and would only cost time;
- casts to ``int``, ``float`` and the like: an implicit conversion would take their place. Casts to ``index_t`` and
  ``unsigned`` are dropped, those to ``double`` of squares, and roundings to half precision. The grid's size keeps its
  cast: grids of loops are as large as what runs at once, and never come near 2^31 threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a text: replacements of spans that do not overlap, in order, and what it is in words."""

    change: str
    spans: tuple[tuple[int, int, str], ...]

    def applied(self, text: str) -> str:
        """The text after the change."""
        for start, stop, replacement in reversed(self.spans):
            text = text[:start] + replacement + text[stop:]
        return text


Operator = Callable[[str], Iterator[Edit]]

_IGNORED = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ ]*\#(?:[^\n]*\\\n)*[^\n]*|__launch_bounds__\([^)]*\)"""
    r"""|\balignas\([^;{]*?\)(?=\s\w)|__align__\(\w+\)|\bstatic_assert\([^;]*;|\btemplate\s<[^;{]*?>(?=\s)|\boperator\W+\("""
    r"""|\b(?:static\s)?constexpr\s(?:int|unsigned|index_t)\s\w+\s=\s[^;]*;|\benum\s[^;]*;""",
    re.DOTALL | re.MULTILINE,
)


def code_of(text: str) -> str:
    """The text with blanks instead of what operators must not see; every character keeps its place."""
    return _IGNORED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _closing(code: str, start: int) -> int:
    """Where the bracket that opens at ``start`` closes."""
    depth = 0
    for place in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return place
    return len(code) - 1


def _swapped(pairs: dict[str, str], before: str = " ", after: str = " ") -> Operator:
    """Tokens replaced by others."""
    tokens = "|".join(sorted(map(re.escape, pairs), key=len, reverse=True))
    pattern = re.compile(f"(?<={before})({tokens})(?={after})")

    def operator(code: str) -> Iterator[Edit]:
        for match in pattern.finditer(code):
            yield Edit(f"{match[1]} becomes {pairs[match[1]]}", ((*match.span(1), pairs[match[1]]),))

    return operator


def _dropped(pattern: str, change: str, replacement: str) -> Operator:
    """Matches replaced; the template of the replacement may have their groups."""
    compiled = re.compile(pattern, re.MULTILINE)

    def operator(code: str) -> Iterator[Edit]:
        for match in compiled.finditer(code):
            yield Edit(match.expand(change), ((*match.span(), match.expand(replacement)),))

    return operator


def comparisons(code: str) -> Iterator[Edit]:
    """``<`` becomes ``<=``, ``==`` becomes ``!=``, and so on."""
    swapped = _swapped({"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="})
    for edit in swapped(code):
        if not re.match(r" > 0; \w+ /= 2", code[edit.spans[0][0] - 1 :]):
            yield edit


def bounds(code: str) -> Iterator[Edit]:
    """The bound of a loop is one less."""
    for match in re.finditer(r"; \w+ <=? ([\w.()]+)(?=;| &&)", code):
        yield Edit("bound is one less", ((match.end(1), match.end(1), " - 1"),))


def conditions(code: str) -> Iterator[Edit]:
    """``if`` takes the other way."""
    for match in re.finditer(r"\bif \(", code):
        start = match.end() - 1
        yield Edit("condition negated", ((start, start, " (!"), (_closing(code, start) + 1,) * 2 + (")",)))


_LARGE = 1e4


def constants(code: str) -> Iterator[Edit]:
    """A number is one more; 1 becomes 0, and a float that one more would be rounded off is halved."""
    for match in re.finditer(
        r"(?<![\w.\[<])(\d+\.\d*(?:e-?\d+)?f?|0x[\da-f]+(?:u|ull)?|\d+(?:u|ll|ull)?)(?![\w.\]>])", code
    ):
        number, before = match[1], code[: match.start()]
        if re.match(r"; \w+ /= 2", code[match.end() :]) and before.endswith(" > "):
            continue
        if code[match.end() : match.end() + 10] == " / sizeof(" or before.endswith("/= "):
            continue
        changed = {"1": "0", "1.0f": "0.0f"}.get(number, f"({number} + 1)")
        if "." in number and float(number.rstrip("f")) > _LARGE:
            changed = f"({number} / 2)"
        yield Edit(f"{number} becomes {changed}", ((*match.span(1), changed),))


#: A square of floats that is taken in double.
_WIDENED = r"\bstatic_cast<double>(?=\(([\w\[\]]+)\) \* \1)"


def casts(code: str) -> Iterator[Edit]:
    """A cast or a rounding is left out."""
    for match in re.finditer(r"\bstatic_cast<(?:index_t|unsigned(?: long long)?)>(?=\((?!gridDim))|" + _WIDENED, code):
        yield Edit("cast dropped", ((*match.span(), ""),))
    for match in re.finditer(r"(?<=2)(bfloat16|half)_rn\b", code):
        yield Edit("rounding dropped", ((*match.span(), f"{match[1]}_rz"),))
    for match in re.finditer(r"(?<=[ (])rounded(?=\()(?!\(float)", code):
        yield Edit("rounding dropped", ((*match.span(), ""),))


def strides(code: str) -> Iterator[Edit]:
    """A loop takes every second step."""
    for match in re.finditer(r"; (\w+)(?:\+\+| \+= )", code):
        start = code.rfind("for (", 0, match.start())
        end = _closing(code, start + 4)
        if start < 0 or end < match.end():
            continue
        step = code[match.end() : end] or "1"
        yield Edit("stride doubled", ((match.start(), end, f"; {match[1]} += 2 * ({step})"),))


def reductions(code: str) -> Iterator[Edit]:
    """A sum or a maximum over threads is the thread's own value, and so is what another lane sends."""
    for match in re.finditer(
        r"\b(?:(?:warp|block)_(?:sum|max|least)|side_reduce<\w+>|Threads::\w+)(?=\(\w)(?!\((?:float|index_t) )", code
    ):
        if not match[0].endswith(("::thread", "::threads")):
            yield Edit("exchange dropped", ((*match.span(), ""),))
    for match in re.finditer(r"__shfl_xor_sync(\()ALL_LANES, ", code):
        end = _closing(code, match.start(1))
        comma = code.rfind(",", 0, end)
        yield Edit("exchange dropped", ((*match.span(), "("), (comma, end, "")))
    yield from _dropped(r"__syncthreads_(?:or|count)(?=\()", "exchange dropped", "")(code)


_STATEMENT = re.compile(
    r"^ *(?:\} else )?(?:(?:if|for|else)\b.*?[)e] )?"
    r"((?:\*?[\w.>\[\]*+() -]+? (?:[-+*/|^]|>>|<<)?= [^;{}=][^;{}]*"
    r"|[A-Za-z_]+(?:<[\w, ]+>)?\([^;{}]*\)|continue|break|return));$",
    re.MULTILINE,
)
_DECLARATION = re.compile(
    r"(?:const|constexpr|static|extern|using|return|auto|bool|int|unsigned|float|double|index_t|stored_t|Id|float4|Unit"
    r"|unsigned long long|[A-Z]\w*(?:<[\w ]+>)?)\*? \*?\w|__sync|for |if |static_assert"
)


def statements(code: str) -> Iterator[Edit]:
    """A statement is left out: an assignment, a call, a jump."""
    for match in _STATEMENT.finditer(code):
        if not _DECLARATION.match(match[1]):
            yield Edit("statement dropped", ((*match.span(1), ""),))


#: By name. Every mutant comes from one of them.
OPERATORS: dict[str, Operator] = {
    "barrier": _dropped(r"\b__sync(?:threads|warp)\([^()]*\);", "barrier dropped", ";"),
    "comparison": comparisons,
    "bound": bounds,
    "condition": conditions,
    "arithmetic": _swapped({"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "+=": "-=", "-=": "+=", "*=": "="}),
    "logic": _swapped({"&&": "||", "||": "&&", "&": "|", "|": "&", "^": "|", ">>": "<<", "<<": ">>", "|=": "="}),
    "sign": _dropped(r"(?<=[(=?:,] )-(?=[\w(])|(?<=\()-(?=[\w(])", "sign dropped", ""),
    "constant": constants,
    "initial value": _dropped(r"(Maximum)::neutral\(\)", "minus infinity becomes 0", "0.0f"),
    "cast": casts,
    "stride": strides,
    "exchange": reductions,
    "atomic": _dropped(r"\batomicAdd\(([^,;]+), ", "atomic made plain", r"(*(\1) += "),
    "choice": _swapped({"min": "max", "max": "min", "fminf": "fmaxf", "fabsf": ""}, r"\b", r"\("),
    "statement": statements,
}
