"""The texts of the CUDA kernel files, and what their kernels take: read from the declarations themselves."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import mila.kernels.cuda
from mila.errors import DeviceError
from mila.kernels.cuda.family import DTYPE_MACROS

DType = np.dtype[Any]

FOLDER = Path(mila.kernels.cuda.__file__).parent
_COMMON = "common.cuh"

_INCLUDE = re.compile(r'#include "(\w+\.cuh)"')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BOUNDS = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
_KERNEL = re.compile(rf'extern\s+"C"\s+{_BOUNDS}__global__\s+{_BOUNDS}void\s+{_BOUNDS}(\w+)\s*\(([^)]*)\)')
_QUALIFIERS = re.compile(r"\b(?:const|volatile|__restrict__)\b")

#: The name of the stored type in kernel files.
_STORED = "stored_t"
#: What types of parameters are to NumPy. Pointers to any other type take arrays of any dtype.
_TYPES: dict[str, DType] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "float": np.float32,
        "__nv_bfloat16": ml_dtypes.bfloat16,
        "__half": np.float16,
        "int": np.int32,
        "unsigned": np.uint32,
        "unsigned int": np.uint32,
        "index_t": np.int64,
        "long long": np.int64,
        "unsigned long long": np.uint64,
        "bool": np.bool_,
    }.items()
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        name: its own.
        is_pointer: whether it takes an array or a null pointer, not a scalar.
        dtype: of the array's elements or of the scalar; ``None`` for an array of any dtype, or for a structure.
        type: as it is declared.
    """

    name: str
    is_pointer: bool
    dtype: DType | None
    type: str


Kernels = Mapping[str, Sequence[Parameter]]


@functools.cache
def source_text(source: str) -> str:
    """The text that is compiled for ``<source>.cu``: the common part, then the file with what it includes.

    Files of the same folder stand where they are included for the first time, so that no compiler needs to find them;
    every line keeps the number that it has in its own file.
    """
    return _numbered(_COMMON, _read(_COMMON)) + _file_text(source)


@functools.cache
def kernels_of(source: str, stored: DType) -> Kernels:
    """The kernels of ``<source>.cu`` with their parameters, where ``stored_t`` is ``stored``."""
    text = _COMMENT.sub(" ", _file_text(source))
    return {
        name: tuple(_parameter(part, stored) for part in parameters.split(",") if part.strip())
        for name, parameters in _KERNEL.findall(text)
    }


def sources() -> list[str]:
    """The stems of all kernel files."""
    return sorted(path.stem for path in FOLDER.glob("*.cu"))


def compile_options(stored: DType) -> tuple[str, ...]:
    """What every compiler of the texts is told."""
    return ("-std=c++17", f"-D{DTYPE_MACROS[stored]}")


def _file_text(source: str) -> str:
    return _expanded(f"{source}.cu", {_COMMON})


def _expanded(name: str, included: set[str]) -> str:
    """A file, numbered, with the files that it includes instead of the lines that include them."""
    included.add(name)
    parts, start = [], 1
    lines = _read(name).splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        match = _INCLUDE.match(line)
        if match is None and not line.startswith("#pragma once"):
            continue
        parts.append(_numbered(name, "".join(lines[start - 1 : number - 1]), start))
        if match is not None and match[1] not in included:
            parts.append(_expanded(match[1], included))
        start = number + 1
    parts.append(_numbered(name, "".join(lines[start - 1 :]), start))
    return "".join(parts)


def _numbered(name: str, text: str, start: int = 1) -> str:
    return f'#line {start} "{name}"\n{text}'


def _read(name: str) -> str:
    try:
        text = (FOLDER / name).read_text("utf-8")
    except FileNotFoundError:
        raise DeviceError(f"kernel file {name}: does not exist in {FOLDER}") from None
    return text.encode("ascii", "replace").decode()  # CuPy writes it to a file in the locale's encoding


def _parameter(text: str, stored: DType) -> Parameter:
    declared = " ".join(text.split())
    words = _QUALIFIERS.sub(" ", declared).replace("*", " * ").split()
    name, kind = words[-1], words[:-1]
    is_pointer = kind[-1:] == ["*"]
    base = " ".join(kind[:-1] if is_pointer else kind)
    dtype = stored if base == _STORED else _TYPES.get(base)
    return Parameter(name, is_pointer, dtype, declared)
