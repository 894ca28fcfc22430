"""Shape patterns, such as ``x[B, T, D], ids[B, T]:int64 -> out[B, D]``: the ports of an operator and their shapes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from mila.errors import NetworkError
from mila.network_language import limits
from mila.network_language.arguments import RESERVED
from mila.network_language.wording import shown

RUN = "..."
PORT_DTYPES = ("compute", "any", "float32", "float16", "bfloat16", "int64", "int32", "bool")

_PORT = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(?P<variadic>\*)?(?:\[(?P<axes>[^\[\]]*)\])?(?::(?P<dtype>[a-z0-9]+))?")
_AXIS = re.compile(r"(?:(?P<scale>[1-9][0-9]*)\*)?(?P<symbol>[A-Za-z][A-Za-z0-9_]*)|(?P<size>[1-9][0-9]*)")


@dataclass(frozen=True)
class Axis:
    """An axis of a pattern: ``scale * symbol``, a size (``scale`` without a symbol), or the run of axes ``...``."""

    scale: int
    symbol: str | None

    def __str__(self) -> str:
        if self.symbol is None:
            return str(self.scale)
        return self.symbol if self.scale == 1 else f"{self.scale}*{self.symbol}"


@dataclass(frozen=True)
class PortPattern:
    """A port: its name, its axes (``None``: any shape) and its dtype.

    Attributes:
        name: the name; a variadic port gives ``name0``, ``name1``, ….
        axes: the axes, the batch first.
        dtype: ``compute``, the network's own dtype, ``any``, or the one dtype that is taken.
        variadic: whether it stands for several ports.
    """

    name: str
    axes: tuple[Axis, ...] | None
    dtype: str
    variadic: bool

    @property
    def has_run(self) -> bool:
        """Whether its rank is open."""
        return self.axes is not None and any(axis.symbol == RUN for axis in self.axes)

    def shape_text(self) -> str:
        """Return the axes as they are written; empty for any shape."""
        return "" if self.axes is None else f"[{', '.join(map(str, self.axes))}]"


@dataclass(frozen=True)
class ShapePattern:
    """The ports of an operator, inputs and outputs."""

    inputs: tuple[PortPattern, ...]
    outputs: tuple[PortPattern, ...]

    def symbols(self) -> set[str]:
        """Return the symbols of all axes but the batch and the run."""
        axes = (axis for port in (*self.inputs, *self.outputs) for axis in port.axes or ())
        return {axis.symbol for axis in axes if axis.symbol is not None} - {"B", RUN}


def parse_pattern(text: str) -> ShapePattern:
    """Return the ports that a pattern describes.

    Raises:
        NetworkError: ``E_REGISTRY``: a pattern that cannot be read.
    """
    sides = text.split("->")
    if len(sides) != 2:
        _refuse(text, "it has exactly one ->")
    inputs, outputs = (tuple(_ports(side, text)) for side in sides)
    for ports in (inputs, outputs):
        names = [port.name for port in ports]
        if not 1 <= len(ports) <= limits.MOST_PORTS or len(set(names)) != len(names):
            _refuse(text, f"each side has 1 to {limits.MOST_PORTS} ports of different names")
        if len(ports) > 1 and any(port.variadic for port in ports):
            _refuse(text, "a variadic port is alone on its side")
    if outputs[0].variadic and outputs[0].axes is not None:
        _refuse(text, "a variadic output has no axes")
    return ShapePattern(inputs, outputs)


def _ports(side: str, text: str) -> Iterator[PortPattern]:
    for part in re.split(r",(?![^\[]*\])", side):
        match = _PORT.fullmatch("".join(part.split()))
        if match is None:
            _refuse(text, f"{shown(part.strip())} is no port such as x[B, T, D] or ids[B, T]:int64")
        name, dtype = match["name"], match["dtype"] or "compute"
        if len(name) > limits.LONGEST_NAME or keyword.iskeyword(name) or name in RESERVED:
            _refuse(text, f"a port cannot be called {shown(name)}")
        if dtype not in PORT_DTYPES:
            _refuse(text, f"{dtype} is none of the dtypes {', '.join(PORT_DTYPES)}")
        axes = None if match["axes"] is None else tuple(_axis(axis, text) for axis in match["axes"].split(","))
        if axes is not None:
            _check_axes(axes, text)
        yield PortPattern(name, axes, dtype, match["variadic"] is not None)


def _axis(axis: str, text: str) -> Axis:
    if axis == RUN:
        return Axis(1, RUN)
    match = _AXIS.fullmatch(axis)
    if match is None:
        _refuse(text, f"{shown(axis)} is no axis such as T, 2*T, 16 or ...")
    return Axis(int(match["size"] or match["scale"] or 1), match["symbol"])


def _check_axes(axes: tuple[Axis, ...], text: str) -> None:
    symbols = [axis.symbol for axis in axes]
    if axes[0] != Axis(1, "B") or symbols.count("B") != 1:
        _refuse(text, "the first axis, and no other, is the batch B")
    runs = symbols.count(RUN)
    if runs > 1 or (not runs and not limits.LOWEST_RANK <= len(axes) <= limits.HIGHEST_RANK):
        _refuse(text, f"a port has a rank of {limits.LOWEST_RANK} to {limits.HIGHEST_RANK}, or one ...")


def _refuse(text: str, reason: str) -> NoReturn:
    raise NetworkError("E_REGISTRY", f"shape pattern {shown(text)}: {reason}")
