"""Contracts as text: comments at the top of a definition, options of a command.

A definition with its contracts in comments is a file of its own::

    # input: B, 6
    # output: B, 8
    # input_dtype: int64
    tokens = embedding(x, 32, 8)
    features = linear(tokens)
    gather_token(features, x)

Several inputs or outputs have a line each, with a name: ``# input: ids = B, 6``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mila.errors import NetworkError
from mila.network_language.resolving import ShapeContract
from mila.network_language.shapes import Entry
from mila.network_language.source import Place
from mila.network_language.wording import shown

ContractKey = Literal["input", "output", "dtype", "input_dtype"]
KEYS: tuple[ContractKey, ...] = get_args(ContractKey)

_COMMENT = re.compile(rf"\s*#\s*(?P<key>{'|'.join(KEYS)})\s*:(?P<value>.*)")
_NAMED = re.compile(r"(?P<name>[^\W\d]\w*)\s*=(?P<value>.*)", re.DOTALL)
#: Longer numbers are no sizes, and Python does not read them from text without end.
_SIZE = re.compile(r"[0-9]{1,18}")
_BRACKETS = ("[]", "()")


@dataclass(frozen=True)
class ContractComment:
    """One line such as ``# input: B, 6``.

    Attributes:
        key: what it is about.
        value: what stands behind the colon.
        place: where that stands.
    """

    key: ContractKey
    value: str
    place: Place

    def refuse(self, message: str) -> NetworkError:
        """Return the error for what it says."""
        return self.place.error("E_SCHEMA", f"# {self.key}: {message}")


def contract_comments(source: str) -> Iterator[ContractComment]:
    """Yield the contracts among the comments before the first line that is none."""
    for number, line in _top_lines(source):
        match = _COMMENT.fullmatch(line)
        if match is not None:
            value = match["value"].strip()
            column = match.start("value") + len(match["value"]) - len(match["value"].lstrip()) + 1
            yield ContractComment(_key(match["key"]), value, Place(number, column))


def near_miss(source: str, key: ContractKey) -> str | None:
    """Return in words the first comment at the top that is nearly a contract: ``line 1 says # Inputs: ...``."""
    spelling = re.compile(rf"\s*#\s*(?P<written>{key.replace('_', '[ _-]?')}s?)\s*:.*", re.IGNORECASE)
    for number, line in _top_lines(source):
        match = spelling.fullmatch(line)
        if match is not None and match["written"] != key:
            return f"line {number} says # {match['written']}: where # {key}: is a contract"
    return None


def read_shapes(texts: Sequence[str], refuse: Callable[[int, str], Exception]) -> ShapeContract:
    """Return a shape (``"B, 6"``), or shapes by name (``"x = B, 6"``, ``"ids = B, 6"``), as ``resolve`` takes them.

    Args:
        texts: one for each tensor; brackets around a shape are allowed.
        refuse: makes the error: which text, and what is wrong with it.

    Raises:
        Exception: what ``refuse`` makes of a text that is no shape, a name given twice, or a second shape without one.
    """
    shapes: dict[str | None, Sequence[Entry]] = {}
    for index, (name, value) in enumerate(_pairs(texts, refuse)):
        shape = _shape(value)
        if shape is None:
            expected = "expected a shape such as B, 6, 8, or one with a name such as x = B, 6, 8"
            raise refuse(index, f"{expected}; got {shown(texts[index])}")
        shapes[name] = shape
    if None in shapes:
        return shapes[None]
    return {name: shape for name, shape in shapes.items() if name is not None}


def read_input_dtype(texts: Sequence[str], refuse: Callable[[int, str], Exception]) -> str | dict[str, str]:
    """Return a dtype (``"int64"``), or dtypes by input (``"ids = int64"``), as ``resolve`` takes them.

    Raises:
        Exception: see ``read_shapes``.
    """
    dtypes: dict[str | None, str] = dict(_pairs(texts, refuse))
    if None in dtypes:
        return dtypes[None]
    return {name: dtype for name, dtype in dtypes.items() if name is not None}


def comment_lines(
    input_shape: ShapeContract,
    output_shape: ShapeContract,
    dtype: str = "float32",
    input_dtype: str | Mapping[str, str] | None = None,
) -> list[str]:
    """Return the comments that say these contracts; a dtype of float32 is not said."""
    lines = [*_shape_lines("input", input_shape), *_shape_lines("output", output_shape)]
    if dtype != "float32":
        lines.append(f"# dtype: {dtype}")
    if isinstance(input_dtype, Mapping):
        lines += [f"# input_dtype: {name} = {each}" for name, each in input_dtype.items()]
    elif input_dtype is not None:
        lines.append(f"# input_dtype: {input_dtype}")
    return lines


def _top_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines before the first that is neither empty nor a comment, with their numbers."""
    for number, line in enumerate(re.split(r"\r\n|\r|\n", source), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield number, line


def _key(text: str) -> ContractKey:
    return next(key for key in KEYS if key == text)


def _pairs(texts: Sequence[str], refuse: Callable[[int, str], Exception]) -> Iterator[tuple[str | None, str]]:
    """Yield name and value of each text; the name is ``None`` for the only text where it has none."""
    seen: set[str | None] = set()
    for index, text in enumerate(texts):
        match = _NAMED.fullmatch(text.strip())
        name = None if match is None else match["name"]
        if name in seen and name is not None:
            raise refuse(index, f"{name} is given twice")
        seen.add(name)
        if None in seen and len(texts) > 1:
            raise refuse(index, "several tensors have a line each and all a name, such as x = ...")
        yield name, (text if match is None else match["value"]).strip()


def _shape(text: str) -> tuple[Entry, ...] | None:
    if text[:1] + text[-1:] in _BRACKETS:
        text = text[1:-1]
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry == "B" or _SIZE.fullmatch(entry) for entry in entries):
        return None
    return tuple(entry if entry == "B" else int(entry) for entry in entries)


def _shape_lines(key: str, contract: ShapeContract) -> list[str]:
    if isinstance(contract, Mapping):
        return [f"# {key}: {name} = {_listed(shape)}" for name, shape in contract.items()]
    return [f"# {key}: {_listed(contract)}"]


def _listed(shape: Sequence[Entry]) -> str:
    return ", ".join(map(str, shape))
