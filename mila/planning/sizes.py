"""Sizes as people write them: ``12GiB``, ``32k``, ``1k..128k``."""

from __future__ import annotations

import re
from decimal import Decimal

from mila.errors import ConfigurationError

_BYTES = re.compile(r"([0-9]{1,60}(?:\.[0-9]{1,9})?) ?([a-z]*)", re.IGNORECASE | re.ASCII)
_COUNT = re.compile(r"([0-9]{1,60})([km]?)", re.IGNORECASE | re.ASCII)
#: More bytes, and more of anything, than memory could ever hold.
_MOST = (1 << 63) - 1
_LETTERS = "kmgtpe"
_EXPECTED = (
    "a size such as 12GiB, 24GB or 8589934592 (units: KiB, MiB, GiB, TiB, PiB, EiB; KB, MB, GB, TB, PB, EB of 1000s)"
)
#: Decimal and binary units, by their names in small letters.
_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate(_LETTERS, 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate(_LETTERS, 1)},
}
_FACTORS = {"": 1, "k": 1024, "m": 1024**2}
_RANGE = ".."


def parse_bytes(what: str, text: str) -> int:
    """Bytes of ``"12GiB"``, ``"24 GB"`` (10⁹ each), ``"1.5MiB"`` or ``"1000000"``; parts of a byte are dropped.

    Args:
        what: errors are about.
        text: the size.

    Raises:
        ConfigurationError: no size, one of 8 EiB or more, or a unit that could be either (``12G``).
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        hint = ""
        if match is not None and len(match[2]) == 1 and match[2].lower() in _LETTERS:
            letter = match[2].upper()
            hint = f"; write {letter}iB for powers of 1024, {letter}B for powers of 1000"
        raise ConfigurationError(f"{what}: expected {_EXPECTED}, got {text!r:.60}{hint}")
    size = int(Decimal(match[1]) * _UNITS[match[2].lower()])
    if size > _MOST:
        raise ConfigurationError(f"{what}: expected less than 8EiB, got {text!r:.60}")
    return size


def parse_count(what: str, text: str) -> int:
    """A number from 1 on, such as ``"4096"``, or ``"32k"`` (1024 each).

    Raises:
        ConfigurationError: anything else.
    """
    match = _COUNT.fullmatch(text.strip())
    value = 0 if match is None else int(match[1]) * _FACTORS[match[2].lower()]
    if value < 1:
        raise ConfigurationError(f"{what}: expected a number from 1 on, such as 4096 or 32k, got {text!r:.60}")
    if value > _MOST:
        raise ConfigurationError(f"{what}: expected at most {_MOST:,}, got {text!r:.60}")
    return value


def parse_counts(what: str, text: str) -> list[int]:
    """Numbers by commas; ``a..b`` stands for both ends and the powers of two between them.

    Raises:
        ConfigurationError: no such list.
    """
    values: list[int] = []
    for part in text.split(","):
        first, is_range, last = part.partition(_RANGE)
        values.append(parse_count(what, first))
        if is_range:
            start, end = values[-1], parse_count(what, last)
            if start >= end:
                raise ConfigurationError(f"{what}: expected a range from less to more, got {part!r:.60}")
            power = 1 << start.bit_length()
            while power < end:
                values.append(power)
                power *= 2
            values.append(end)
    return list(dict.fromkeys(values))
