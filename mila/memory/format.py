"""Bytes for people."""

from __future__ import annotations

from collections.abc import Sequence

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
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: tuple[str, ...]) -> str:
        cells = [
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(header), rule, *(line(row) for row in rows)])
