"""Bytes for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
#: From here on two decimals would print as 1,024.00.
_ROUNDS_UP = 1023.995


def format_bytes(size: int) -> str:
    """``1536`` becomes ``"1.50 KiB"``: IEC units, two decimals, plain bytes below 1,024."""
    if abs(size) < 1024:
        return f"{size} B"
    value, unit = size / 1024, 0
    while abs(value) >= _ROUNDS_UP and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.2f} {_UNITS[unit]}"


def format_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, right: tuple[int, ...] = ()) -> str:
    """A plain-text table; ``right`` names the columns that are aligned to the right."""
    first, *others = aligned([header, *rows], right=right)
    rule = "  ".join("-" * max(map(len, column)) for column in zip(header, *rows, strict=True))
    return "\n".join([first, rule, *others])


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Rows as lines whose columns are as wide as their widest cell and two spaces apart; ``right`` as in a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_cells(row, widths, right)).rstrip() for row in rows]


def _cells(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> Iterator[str]:
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.rjust(width) if i in right else cell.ljust(width)
