"""HTML that cannot be broken by what stands in it: everything is escaped where it enters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from mila.memory import format_bytes

_VOID = frozenset({"meta", "br"})
#: Controls, formats (these turn the direction of a text), surrogates: all are written as escapes.
_SHOWN_AS_ESCAPES = frozenset({"Cc", "Cf", "Cs"})
_SMALLEST_SHARE = 0.001


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """Text as HTML, for contents and for attributes; characters that nobody sees are written as escapes."""
    if isinstance(text, Markup):
        return text
    if not text.isascii() or not text.isprintable():
        text = "".join(map(_shown, text))
    for character, name in (("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot"), ("'", "#39")):
        text = text.replace(character, f"&{name};")
    return Markup(text)


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _SHOWN_AS_ESCAPES:
        return character
    return (
        character.encode("ascii", "backslashreplace").decode() if ord(character) > 127 else f"\\x{ord(character):02x}"
    )


def element(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """An element with its content one after the other.

    Attributes that are ``None`` or ``False`` are left out, and ``True`` stands without a value; ``_`` in their names
    is ``-``, and one at the end is dropped (``class_``).
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.removesuffix("_").replace("_", "-")
        text = value if isinstance(value, str) else str(value)
        words.append(key if value is True else f'{key}="{escaped(text)}"')
    start = f"<{' '.join(words)}>"
    return Markup(start if name in _VOID else f"{start}{joined(content)}</{name}>")


def joined(parts: Iterable[str], separator: str = "") -> Markup:
    """The parts as HTML, one after the other."""
    return Markup(separator.join(map(escaped, parts)))


def scrolling(table: Markup, label: str) -> Markup:
    """A table that scrolls by itself where the window is narrower, with the keyboard too."""
    return element("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)


def share_text(part: int, whole: int) -> str:
    """``"12.3 %"``: how much of the whole a part is."""
    if not part or not whole:
        return "0 %"
    share = part / whole
    if share < _SMALLEST_SHARE:
        return "< 0.1 %"
    return f"{100 * share:.1f} %"


def percent(part: float) -> str:
    """A fraction as a CSS length."""
    return f"{100 * part:.3f}".rstrip("0").rstrip(".") + "%"


def ticks(end: int, most: int) -> list[int]:
    """Round multiples from 0 to ``end``: steps of 1, 2 or 5 times a power of ten, of the unit that suits ``end``."""
    unit = 1
    while end >= 1024 * unit:
        unit *= 1024
    step, factors = unit, (2, 5, 10)
    index, power = 0, 1
    while end // step > most:
        step = unit * power * factors[index]
        index += 1
        if index == len(factors):
            index, power = 0, power * 10
    return list(range(0, end + 1, step))


def tick_text(size: int) -> str:
    """``"16 GiB"``: a tick's bytes, without needless decimals."""
    return format_bytes(size).replace(".00", "")
