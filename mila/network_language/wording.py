"""Words that several messages share."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable

from mila.serialization import failures


def shown(value: object) -> str:
    """Return what a stranger wrote as one short line."""
    try:
        return failures.shown(value)
    except ValueError:  # Python writes no integers of thousands of digits
        return f"{type(value).__name__} with too many digits to show"


def listed(names: Iterable[str]) -> str:
    """Return names in order of the alphabet, or ``none``."""
    return ", ".join(sorted(names)) or "none"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return what the message may add where a known name is close."""
    close = difflib.get_close_matches(name[:64], sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def value_text(value: object) -> str:
    """Return the value of an argument as a definition writes it; several numbers with commas between them."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return repr(value)
