"""JSON as the specification has it, read without trust: what the ``json`` module lets pass is refused here.

Refused: text that is not UTF-8, NUL bytes, repeated keys at any level, ``NaN`` and ``Infinity``, numbers too large for
a float, integers of many digits, lone surrogates, nesting too deep to follow. The Python objects made are in proportion
to the text.
"""

from __future__ import annotations

import json
import math
import os
import re
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from mila.errors import CheckpointError
from mila.serialization.failures import refusal, refusals, shown
from mila.serialization.foreign_content import INCOMPLETE, foreign_content_hint
from mila.serialization.regular_file import open_regular_file

LARGEST_JSON_FILE = 100_000_000
"""Bytes; the tokenizers of large vocabularies take tens of millions."""
_LONGEST_INTEGER_IN_A_FILE = 1000
"""Digits; the states of random generators are integers of more than 64 bits, a tokenizer's "no limit" is 10**30."""

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_WHITE_SPACE = b" \t\n\r"


class _RefusedTextError(ValueError):
    """Raised inside the hooks of the ``json`` module; carries what came."""


def read_json_object(path: Path | str, *, what: str = "file", limit: int = LARGEST_JSON_FILE) -> dict[str, Any]:
    """Return the JSON object that a file holds, such as a ``config.json``, read as strictly as a header.

    Args:
        path: the file; links are followed.
        what: what the text is, for the error: ``"config"``.
        limit: the longest file that is read, in bytes.

    Raises:
        CheckpointError: no such file, one that may not be read, too long a one, or anything else than one strict JSON
            object; an empty file, a Git LFS pointer and HTML are called that.
    """
    with BufferedReader(open_regular_file(path)) as file, refusals(path, "could not be read"):
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size, limit) + 1)  # a read sets aside all the bytes that it is asked for
    if len(content) > limit:
        raise refusal(path, expected=f"at most {limit} bytes of JSON", got="more")
    return parse_json_object(content, path, what=what, longest_integer=_LONGEST_INTEGER_IN_A_FILE)


def parse_json_object(data: bytes, path: Path | str, *, what: str, longest_integer: int = 20) -> dict[str, object]:
    """Return the JSON object that `data` holds.

    Args:
        data: UTF-8 text; white space around the object is allowed.
        path: the file, for the error.
        what: what the text is, for the error: ``"header"``.
        longest_integer: the most digits of an integer; 20 hold every unsigned 64-bit number.

    Raises:
        CheckpointError: anything else than one strict JSON object.
    """
    text = _decode(data, path, what)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object_without_repeated_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=lambda digits: _integer(digits, longest_integer),
        )
    except _RefusedTextError as error:
        raise refusal(path, expected=f"a {what} of strict JSON", got=str(error)) from None
    except json.JSONDecodeError as error:
        got = f"text that is not JSON: {error.msg.removesuffix(' at')} at character {error.pos}"
        raise refusal(path, expected=f"a {what} of valid JSON", got=got) from None
    except RecursionError:
        raise refusal(path, expected=f"a {what} of flat JSON", got="nesting too deep to follow") from None
    if not isinstance(value, dict):
        raise refusal(path, expected=f"a {what} that is a JSON object", got=type(value).__name__)
    if _SURROGATE_ESCAPE.search(text):
        _refuse_lone_surrogates(value, path, what)
    return value


def _decode(data: bytes, path: Path | str, what: str) -> str:
    if not data.lstrip(_WHITE_SPACE).startswith(b"{"):
        raise _unexpected_start(data, path, what)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"byte 0x{data[error.start]:02x} at {error.start}"
        raise refusal(path, expected=f"a {what} in UTF-8", got=got) from None
    if "\0" in text:
        raise refusal(path, expected=f"a {what} padded with spaces", got=f"a NUL byte at {data.index(0)}")
    return text


def _unexpected_start(data: bytes, path: Path | str, what: str) -> CheckpointError:
    got = foreign_content_hint(data) or (shown(data[:16]) if data else "nothing")
    hint = None if data.strip(_WHITE_SPACE) else INCOMPLETE
    return refusal(path, expected=f"a {what} that starts with '{{'", got=got, hint=hint)


def _object_without_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedTextError(f"the key {shown(key)} twice")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise _RefusedTextError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedTextError(f"the number {shown(text)}, beyond every float")
    return value


def _integer(digits: str, longest: int) -> int | float:
    if len(digits.lstrip("-")) > longest:
        raise _RefusedTextError(f"an integer of {len(digits)} digits")
    # "-0" is a negative zero: read as 0 it would pass for a size.
    return -0.0 if digits == "-0" else int(digits)


def _refuse_lone_surrogates(value: object, path: Path | str, what: str) -> None:
    pending: list[object] = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            pending.extend(current)
            pending.extend(current.values())
        elif isinstance(current, list):
            pending.extend(current)
        elif isinstance(current, str):
            try:
                current.encode("utf-8")
            except UnicodeEncodeError:
                got = f"half a surrogate pair in {shown(current)}"
                raise refusal(path, expected=f"a {what} of Unicode text", got=got) from None
