"""The shapes of an operator's parameters in the letters of its pattern and the names of its arguments.

The component of a call says what its parameters are, in numbers. Here a call has numbers that tell what a size was
multiplied from: a different prime for each argument, and for each letter a prime of its own times all of those, so that
heads divide widths. A second set of primes confirms what the first one says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from mila.errors import NetworkError
from mila.network_language.operator import Operator, Shape
from mila.network_language.patterns import RUN, PortPattern
from mila.network_language.resolved import ResolvedNode
from mila.network_language.shapes import NetworkShape
from mila.network_language.wording import value_text

#: Of arguments, so that experts stay few, and of letters.
_LOWEST_PRIME, _LOWEST_LETTER_PRIME = 11, 101

_Texts = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class ParameterRow:
    """One parameter, or several whose names differ in a number.

    Attributes:
        name: its name; a number in it is ``<i>``.
        shape: its axes, such as ``("D_out", "D_in")`` or ``("mlp_ratio * D", "D")``.
        condition: which argument decides whether it is there, such as ``with `layer_scale=True```; empty where none
            does.
    """

    name: str
    shape: tuple[str, ...]
    condition: str = ""


def parameter_rows(example: ResolvedNode) -> list[ParameterRow]:
    """Return the parameters of the operator of a node; with the node's own sizes where they are no products."""
    default = _symbolic(example, {})
    if default is None:
        numbers = {_general(name): shape for name, shape in example.parameter_shapes().items()}
        return [ParameterRow(name, tuple(map(str, shape))) for name, shape in numbers.items()]
    shapes, conditions = default, dict.fromkeys(default, "")
    for name, value in _choices(example.operator):
        changed = _symbolic(example, {name: value})
        if changed is None:
            continue
        words = f"`{name}={value_text(value)}`"
        conditions |= {parameter: f"unless {words}" for parameter in default if parameter not in changed}
        added = {parameter: f"with {words}" for parameter in changed if parameter not in default}
        if added:
            conditions |= added
            shapes = changed | shapes
    return [ParameterRow(name, shape, conditions[name]) for name, shape in shapes.items()]


def _choices(operator: Operator) -> Iterator[tuple[str, Any]]:
    """The values of a bool or of a choice that are not its default."""
    for argument in operator.arguments:
        values = (True, False) if argument.type == "bool" else argument.choices
        yield from ((argument.name, value) for value in values if value != argument.default)


def _symbolic(example: ResolvedNode, changes: Mapping[str, Any]) -> _Texts | None:
    """Return the shapes in letters; ``None`` where a size is no product, or the operator refuses the changes."""
    for keeps_defaults in (False, True):
        found = [_shapes(example, changes, keeps_defaults, is_reversed) for is_reversed in (False, True)]
        if found[0] is not None and found[0] == found[1]:
            return found[0]
    return None


def _shapes(
    example: ResolvedNode, changes: Mapping[str, Any], keeps_defaults: bool, is_reversed: bool
) -> _Texts | None:
    operator = example.operator
    arguments: dict[str, Any] = {
        argument.name: example.arguments[argument.name] if argument.default is None else argument.default
        for argument in operator.arguments
    }
    free = [
        argument.name
        for argument in operator.arguments
        if argument.type == "int"
        and argument.dimension is None
        and argument.name != operator.count
        and not (keeps_defaults and argument.default is not None)
    ]
    symbols = sorted(operator.ports.symbols())
    numbers = dict(zip(free, _primes(_LOWEST_PRIME, len(free), is_reversed), strict=True))
    scale = 2 * prod(numbers.values())
    letters = _primes(_LOWEST_LETTER_PRIME, len(symbols), is_reversed)
    numbers |= {symbol: scale * letter for symbol, letter in zip(symbols, letters, strict=True)}
    sized = {argument.name: numbers[argument.dimension] for argument in operator.arguments if argument.dimension}
    arguments.update({**sized, **{name: numbers[name] for name in free}, **changes})
    if operator.validate is not None and operator.validate(arguments) is not None:
        return None
    node = replace(
        example,
        arguments=arguments,
        input_shapes=_port_shapes(operator.input_ports(arguments), example.input_shapes, numbers),
        output_shapes=_port_shapes(operator.output_ports(arguments), example.output_shapes, numbers),
    )
    try:
        shapes = node.parameter_shapes()
    except NetworkError:
        return None
    return _texts(shapes, numbers)


def _port_shapes(
    ports: Iterable[tuple[str, PortPattern]], example: Mapping[str, NetworkShape], numbers: Mapping[str, int]
) -> dict[str, NetworkShape]:
    shapes: dict[str, NetworkShape] = {}
    for name, port in ports:
        if port.axes is None:
            shapes[name] = example[name]
        else:
            sizes = [axis.scale * numbers.get(axis.symbol or "", 1) for axis in port.axes[1:] if axis.symbol != RUN]
            shapes[name] = ("B", *sizes)
    return shapes


def _texts(shapes: Mapping[str, Shape], numbers: Mapping[str, int]) -> _Texts | None:
    texts: _Texts = {}
    for name, shape in shapes.items():
        sizes = [_text(size, numbers) for size in shape]
        written = tuple(size for size in sizes if size is not None)
        if len(written) != len(sizes) or texts.setdefault(_general(name), written) != written:
            return None
    return texts


def _text(size: int, numbers: Mapping[str, int]) -> str | None:
    """Return a size as a product of letters and arguments, and of a small number before them."""
    factors: list[str] = []
    for name, number in sorted(numbers.items(), key=lambda item: -item[1]):
        while size % number == 0:
            size //= number
            factors.insert(0, name)
    if size >= _LOWEST_PRIME:
        return None
    return " * ".join([*([str(size)] if size > 1 or not factors else []), *factors])


def _general(name: str) -> str:
    return re.sub(r"(?<=\.)[0-9]+(?=\.)", "<i>", name)


def _primes(lowest: int, count: int, is_reversed: bool) -> list[int]:
    found: list[int] = []
    number = lowest
    while len(found) < count:
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            found.append(number)
        number += 2
    return found[::-1] if is_reversed else found
