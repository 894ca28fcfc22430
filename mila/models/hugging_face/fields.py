"""Reading ``config.json``: every field is mapped, checked, known not to matter, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mila.errors import CheckpointError
from mila.models.hugging_face.harmless_fields import HARMLESS_FIELDS


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


#: The default of a field that must be there.
REQUIRED: Any = _Required()


@dataclass(frozen=True)
class Kind:
    """What a field's value has to be, and what it means.

    Attributes:
        name: what errors call it.
        types: of the JSON value; a truth value is no number.
        names: the meaning of each allowed text, where the value is one of some texts.
    """

    name: str
    types: tuple[type, ...]
    names: Mapping[str, str] | None = None

    def read(self, value: Any) -> Any:
        """The value of a JSON value; raises ``ValueError`` with what was expected."""
        if not isinstance(value, self.types) or isinstance(value, bool) is not (self.types == (bool,)):
            raise ValueError(f"expected {self.name}, got {short(value)}")
        if self.names is not None:
            if value not in self.names:
                raise ValueError(f"expected one of {', '.join(self.names)}, got {short(value)}")
            return self.names[str(value)]
        return float(value) if float in self.types else value  # type: ignore[arg-type]

    def write(self, value: Any) -> Any:
        """The JSON value of a value: for a text, the first that means it."""
        if self.names is None:
            return value
        return next(text for text, meaning in self.names.items() if meaning == value)


INTEGER = Kind("an integer", (int,))
NUMBER = Kind("a number", (int, float))
TRUTH = Kind("true or false", (bool,))
#: Dtypes of weights, with and without the prefix that old files have.
DTYPE = Kind(
    "the name of a dtype",
    (str,),
    {f"{prefix}{name}": name for prefix in ("", "torch.") for name in ("float32", "bfloat16", "float16", "float64")},
)
#: Activation functions; some have several names.
ACTIVATION = Kind(
    "the name of an activation function",
    (str,),
    {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_accurate": "gelu_tanh",
        "gelu_python_tanh": "gelu_tanh",
        "gelu": "gelu",
        "gelu_python": "gelu",
        "quick_gelu": "quick_gelu",
        "silu": "silu",
        "swish": "silu",
        "relu": "relu",
        "tanh": "tanh",
        "sigmoid": "sigmoid",
        "linear": "none",
        "mish": "mish",
        "leaky_relu": "leaky_relu",
    },
)


@dataclass(frozen=True)
class Field:
    """A field that becomes one field of a Mila config.

    Attributes:
        key: in ``config.json``.
        target: in the Mila config.
        kind: of the value.
        default: the Mila value where the key is absent: only where ``transformers`` documents that default and
            writes, or wrote, files without the key.
        nullable: whether ``null`` is allowed, and means ``None``.
    """

    key: str
    target: str
    kind: Kind
    default: Any = REQUIRED
    nullable: bool = False


class FieldReader:
    """The fields of one ``config.json``: what was asked for, and everything that is wrong with it.

    Args:
        raw: the file's content.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._known = {"model_type"}

    def read(self, key: str, kind: Kind, default: Any = REQUIRED, *, nullable: bool = False) -> Any:
        """The value of a field; where it is wrong or missing, ``None`` and a problem."""
        self._known.add(key)
        if key not in self.raw:
            if default is REQUIRED:
                self.problems.append(f"missing {key}: expected {kind.name}")
                return None
            return default
        value = self.raw[key]
        if value is None and (nullable or default is None):
            return None
        try:
            return kind.read(value)
        except ValueError as error:
            self.problems.append(f"{key}: {error}")
            return None

    def take(self, key: str) -> Any:
        """The JSON value of a field that the caller checks; ``None`` where there is none."""
        self._known.add(key)
        return self.raw.get(key)

    def require(self, key: str, allowed: Collection[Any]) -> None:
        """Note a problem where a field is there and has none of the allowed values."""
        self._known.add(key)
        if key in self.raw and not any(_same(self.raw[key], value) for value in allowed):
            expected = " or ".join(repr(value) for value in allowed)
            self.problems.append(f"{key}: expected {expected}, got {short(self.raw[key])}, which Mila does not compute")

    def finish(self, path: Path, ignored: Collection[str]) -> None:
        """Look at the fields that nobody asked for.

        Args:
            path: the file, for the error.
            ignored: unknown fields that the caller knows not to matter.

        Raises:
            CheckpointError: one message with all problems.
        """
        problems = self.all_problems(ignored)
        if problems:
            raise CheckpointError(f"{path}: " + "; ".join(problems))

    def all_problems(self, ignored: Collection[str]) -> list[str]:
        """The problems so far, and one for every field that nobody asked for and ``ignored`` does not name."""
        unknown = [
            f"{key} = {short(value)} is not known and may change the result; "
            f"if it does not, pass ignore_fields=[{key!r}]"
            for key, value in self.raw.items()
            if not (key in self._known or key in HARMLESS_FIELDS or key in ignored or value is None)
        ]
        return [*self.problems, *unknown]


def _same(one: Any, other: Any) -> bool:
    """Equal, and a truth value only to a truth value: in Python ``True == 1``."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def short(value: Any) -> str:
    """A JSON value as a few words."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def describe_validation(error: ValidationError, keys: Mapping[str, str]) -> str:
    """What pydantic found, on one line, in the words of the file.

    Args:
        error: of a Mila config.
        keys: the file's name of each field of the config that the file calls otherwise.
    """

    def in_the_files_words(text: str) -> str:
        return re.sub(r"\w+", lambda word: keys.get(word[0], word[0]), text)

    problems = []
    for each in error.errors(include_url=False):
        text = in_the_files_words(each["msg"]).removeprefix("Value error, ")
        if each["loc"]:
            place = ".".join(keys.get(str(part), str(part)) for part in each["loc"])
            text = f"{place}: {text.replace('Input should be', 'expected')}, got {short(each['input'])}"
        problems.append(text)
    return "; ".join(problems)
