"""Arguments of a launch, checked against what the kernel declares.

CuPy and the driver take whatever they are given: a Python float becomes 8 bytes, of which a ``float`` parameter reads
the wrong half, and a pointer to bfloat16 is as good as one to float32. Here each of these is an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import ml_dtypes
import numpy as np

from tests.emulator.engine import ParameterRecord
from tests.emulator.errors import LaunchError

#: Codes of runtime/interface.h by NumPy's kind of a scalar.
_CODES = {"f": "f", "i": "i", "u": "u", "b": "b", "V": "s"}
_WORDS = {"p": "a pointer", "f": "floating point", "i": "an integer", "u": "an integer", "b": "bool"}


class DeviceMemory(Protocol):
    """What a pointer parameter takes: some memory of the device, with the type of its elements if that is known."""

    @property
    def address(self) -> int:
        """First byte."""

    @property
    def nbytes(self) -> int:
        """How many bytes belong to it."""

    @property
    def element_type(self) -> np.dtype[Any] | None:
        """What it holds; None for bytes of any kind."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel; codes as in runtime/interface.h."""

    code: str
    size: int
    pointee_code: str
    pointee_size: int
    pointee_is_const: bool
    type: str

    @classmethod
    def from_record(cls, record: ParameterRecord) -> Parameter:
        """Copy what a module says."""
        return cls(
            record.code.decode(),
            record.size,
            record.pointee_code.decode(),
            record.pointee_size,
            record.pointee_is_const,
            record.type.decode(),
        )


Range = tuple[int, int]  # from the first byte to behind the last


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory that an operation reads and writes."""

    reads: tuple[Range, ...] = ()
    writes: tuple[Range, ...] = ()


def marshal(
    kernel: str, parameters: Sequence[Parameter], arguments: Sequence[Any]
) -> list[ctypes.Array[ctypes.c_char]]:
    """Return the bytes of each argument.

    Raises:
        LaunchError: If there are more or fewer than parameters, or one does not fit.
    """
    if len(arguments) != len(parameters):
        takes = ", ".join(parameter.type for parameter in parameters)
        raise LaunchError(f"{kernel}: got {len(arguments)} arguments, it takes {len(parameters)}: ({takes})")
    return [
        _bytes_of(f"{kernel}: argument {position}", parameter, argument)
        for position, (parameter, argument) in enumerate(zip(parameters, arguments, strict=True))
    ]


def memory_usage(parameters: Sequence[Parameter], arguments: Sequence[Any]) -> Usage:
    """Return what a kernel reads, and what it may write: memory behind pointers to what is not const."""
    reads: list[Range] = []
    writes: list[Range] = []
    for parameter, argument in zip(parameters, arguments, strict=True):
        if _is_memory(argument) and argument.nbytes:
            ranges = reads if parameter.pointee_is_const else writes
            ranges.append((argument.address, argument.address + argument.nbytes))
    return Usage(tuple(reads), tuple(writes))


def _is_memory(argument: Any) -> TypeGuard[DeviceMemory]:
    """Say whether an argument has what the protocol asks for; ``isinstance`` would take half the time of a launch."""
    return hasattr(argument, "address") and hasattr(argument, "nbytes") and hasattr(argument, "element_type")


def _bytes_of(where: str, parameter: Parameter, argument: Any) -> ctypes.Array[ctypes.c_char]:
    if argument is None or _is_memory(argument):
        if parameter.code != "p":
            raise LaunchError(f"{where} is a pointer, the parameter is {parameter.type}")
        if argument is not None:
            _check_elements(where, parameter, argument.element_type)
        return _raw((argument.address if argument is not None else 0).to_bytes(8, "little"))
    if isinstance(argument, ctypes.Structure):
        code, size, content, word = "s", ctypes.sizeof(argument), bytes(argument), type(argument).__name__
    elif isinstance(argument, np.generic):
        code, size, content, word = (
            _scalar_code(argument),
            argument.dtype.itemsize,
            argument.tobytes(),
            argument.dtype.name,
        )
    else:
        raise LaunchError(
            f"{where} is a {type(argument).__name__}, expected a device array, a NumPy scalar or a structure"
        )
    if size != parameter.size or not _same_kind(code, parameter.code):
        expected = f"{_WORDS.get(parameter.code, 'a structure')} of {parameter.size} bytes ({parameter.type})"
        raise LaunchError(f"{where} is {word} ({size} bytes), the parameter is {expected}")
    return _raw(content)


def _raw(content: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(content, len(content))


def _scalar_code(scalar: np.generic) -> str:
    return element_code(scalar.dtype) if scalar.dtype.itemsize == 2 else _CODES.get(scalar.dtype.kind, "s")


def element_code(dtype: np.dtype[Any]) -> str:
    """Return the code of an element type; s for what is neither a number nor a bool."""
    if dtype == np.float16:
        return "h"
    if dtype == ml_dtypes.bfloat16:
        return "n"
    return _CODES.get(dtype.kind, "s")


def _same_kind(given: str, wanted: str) -> bool:
    """Signed and unsigned integers pass for each other."""
    return given == wanted or {given, wanted} == {"i", "u"}


def _check_elements(where: str, parameter: Parameter, dtype: np.dtype[Any] | None) -> None:
    """Compare the elements of an array with what the parameter points to, where both are scalars.

    Bytes may be anything, and vectors and structures may be read from arrays of any type.
    """
    if dtype is None or dtype.itemsize == 1 or parameter.pointee_code in "svp" or parameter.pointee_size == 1:
        return
    if dtype.itemsize != parameter.pointee_size or not _same_kind(element_code(dtype), parameter.pointee_code):
        raise LaunchError(f"{where} is an array of {dtype.name}, the parameter is {parameter.type}")
