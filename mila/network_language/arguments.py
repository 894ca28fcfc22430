"""What an operator may be told besides its tensors: types, bounds, defaults, and the check of a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mila.errors import NetworkError
from mila.memory.storage import FLOAT32
from mila.network_language import limits
from mila.network_language.wording import shown
from mila.serialization.conversion import FLOATS

ArgumentType = Literal["int", "float", "bool", "str", "ints"]
Value = int | float | bool | str | tuple[int, ...]

RESERVED = ("name", "policy", "init", "trainable")
"""Keywords that every call takes."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument of an operator.

    Attributes:
        name: its keyword.
        type: ``"int"``, ``"float"`` (an int is accepted and stored as a float), ``"bool"``, ``"str"``, or
            ``"ints"``, which takes all positional values that are left, or one list of them.
        help: what it means, for the documentation.
        default: the value without one; ``None``: none.
        inferable: whether it may be left to inference.
        positional: whether it may be given by position, in order of declaration.
        minimum: the smallest value; of ``"ints"`` that of each.
        maximum: the largest.
        above: a bound that the value has to exceed.
        below: a bound that the value has to stay under.
        choices: the strings that are meant.
        most: how many values ``"ints"`` takes.
        dimension: the symbol of the shape pattern that has this value.
        stored: whether the value is written into tensors, so that the network's dtype has to hold it.
        advice: what the message about a value out of bounds adds.
    """

    name: str
    type: ArgumentType
    help: str
    default: Value | None = None
    inferable: bool = False
    positional: bool = True
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    most: int = limits.HIGHEST_RANK - 1
    dimension: str | None = None
    stored: bool = False
    advice: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in RESERVED:
            raise NetworkError("E_REGISTRY", f"an argument cannot be called {shown(self.name)}")
        if not self.help:
            raise NetworkError("E_REGISTRY", f"argument {self.name}: help is missing")
        if self.dimension is not None and self.type != "int":
            raise NetworkError("E_REGISTRY", f"argument {self.name}: only an int can be the size of an axis")
        if self.stored and self.type != "float":
            raise NetworkError("E_REGISTRY", f"argument {self.name}: only a float is stored in tensors")
        if self.default is not None:
            self.checked(self.default, lambda message: NetworkError("E_REGISTRY", f"the default: {message}"))

    @property
    def required(self) -> bool:
        """Whether a call has to give it."""
        return self.default is None and not self.inferable

    def checked(self, value: object, error: Callable[[str], NetworkError]) -> Value:
        """Return the value as it is stored.

        Raises:
            NetworkError: what ``error`` makes of the message: a wrong type, out of bounds, not a choice, not finite;
                ``E_RESOURCE`` for an integer that 64 bits do not hold.
        """
        if self.type == "ints":
            if not isinstance(value, tuple | list):
                one = value if isinstance(value, int) and not isinstance(value, bool) else 2
                advice = f"write {self.name}=[{shown(one)}]"
                raise error(f"{self.name} is a list of integers, got {shown(value)}; {advice}")
            if len(value) > self.most:
                raise error(f"{self.name} takes at most {self.most} integers, got {len(value)}")
            return tuple(self._integer(item, error) for item in value)
        if self.type == "int":
            return self._integer(value, error)
        if self.type == "float":
            return self._float(value, error)
        if self.type == "bool":
            if not isinstance(value, bool):
                raise error(f"{self.name} is True or False, got {shown(value)}")
            return value
        if not isinstance(value, str):
            raise error(f"{self.name} is {self._choices()}, got {shown(value)}")
        if self.choices and value not in self.choices:
            raise error(f"{self.name} is {self._choices()}, got {shown(value)}")
        return value

    def constraints(self) -> str:
        """Return bounds or choices in words; empty without any."""
        if self.choices:
            return self._choices()
        bounds = (("at least", self.minimum), ("at most", self.maximum), ("above", self.above), ("below", self.below))
        return ", ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)

    def _choices(self) -> str:
        return " or ".join(f'"{choice}"' for choice in self.choices) or "a string"

    def _integer(self, value: object, error: Callable[[str], NetworkError]) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise error(f"{self.name} is an integer, got {shown(value)}")
        if abs(value) > limits.LARGEST_ARGUMENT:
            raise NetworkError("E_RESOURCE", f"{self.name} takes integers of 64 bits, got one of {value.bit_length()}")
        self._check_bounds(value, error)
        return value

    def _float(self, value: object, error: Callable[[str], NetworkError]) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise error(f"{self.name} is a number, got {shown(value)}")
        number = float(value)
        if not abs(number) <= FLOATS[FLOAT32]:
            raise error(f"{self.name} is a finite number that float32 holds, got {number}")
        self._check_bounds(number, error)
        return number

    def _check_bounds(self, value: float, error: Callable[[str], NetworkError]) -> None:
        if (
            (self.minimum is not None and value < self.minimum)
            or (self.maximum is not None and value > self.maximum)
            or (self.above is not None and value <= self.above)
            or (self.below is not None and value >= self.below)
        ):
            advice = f"; {self.advice}" if self.advice else ""
            raise error(f"{self.name} is {self.constraints()}, got {value}{advice}")
