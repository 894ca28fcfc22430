"""Names of CuPy: found in a source, and looked up in the real CuPy."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulator.cupy_names import Mention, mentioned_names, unknown_names
from tests.emulator.stand_in.activate import stand_in_cupy

needs_cupy = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")

SOURCE = """
import cupy as cp
import cupy.cuda.cublas
from cupy import cuda
from cupy.cuda import cublas as blas, runtime
import numpy as np

def run(array):
    with cp.cuda.Stream(non_blocking=True) as stream:
        stream.anything()
        blas.gemmEx(cuda.get_cublas_handle())
        np.empty(runtime.getDevice())
        return cp.empty(array.shape)
"""


def test_names_are_found_through_every_form_of_import() -> None:
    assert [mention.name for mention in mentioned_names(SOURCE)] == [
        "cupy",
        "cupy.cuda",
        "cupy.cuda.Stream",
        "cupy.cuda.cublas",
        "cupy.cuda.cublas",
        "cupy.cuda.cublas.gemmEx",
        "cupy.cuda.get_cublas_handle",
        "cupy.cuda.runtime",
        "cupy.cuda.runtime.getDevice",
        "cupy.empty",
    ]


def test_a_source_without_cupy_mentions_nothing() -> None:
    assert mentioned_names("import numpy\nfrom .cupy import thing\nnumpy.cuda.Stream") == []


@needs_cupy
def test_cupy_has_what_a_correct_source_uses() -> None:
    assert (
        unknown_names("import cupy as cp\ncp.empty, cp.RawModule, cp.cuda.Stream.null, cp.cuda.runtime.memGetInfo")
        == []
    )


@needs_cupy
def test_a_misspelt_name_is_found_with_its_line() -> None:
    source = "import cupy as cp\n\ncp.cuda.get_elapsed_tim\ncp.cuda.Event"
    assert unknown_names(source) == [Mention("cupy.cuda.get_elapsed_tim", 3)]


@needs_cupy
def test_what_is_no_module_cannot_be_imported_as_one() -> None:
    assert unknown_names("import cupy.cuda.stream\nfrom cupy.cuda import runtime") == []
    assert unknown_names("import cupy.cuda.Stream") == [Mention("cupy.cuda.Stream", 1, True)]


@needs_cupy
def test_names_of_cublas_are_known_without_its_library() -> None:
    source = "from cupy.cuda import cublas\ncublas.gemmEx, cublas.CUBLAS_OP_N, cublas.gemmOx, cublas.mEx"
    assert [mention.name for mention in unknown_names(source)] == ["cupy.cuda.cublas.gemmOx", "cupy.cuda.cublas.mEx"]


@needs_cupy
def test_cupy_has_every_public_name_of_the_stand_in() -> None:
    with stand_in_cupy() as cupy:
        names = [
            *names_of(cupy, "cupy"),
            *names_of(cupy.cuda, "cupy.cuda"),
            *(f"cupy.cuda.{module}.{name}" for module, name in MODULE_NAMES),
        ]
    assert unknown_names("\n".join(["import cupy", *names])) == []


#: Of modules that say nothing themselves of what is public.
MODULE_NAMES = [
    *(("runtime", name) for name in ("CUDARuntimeError", "deviceSynchronize", "driverGetVersion", "getDevice")),
    *(("runtime", name) for name in ("getDeviceCount", "getDeviceProperties", "memGetInfo", "runtimeGetVersion")),
    *(("cublas", name) for name in ("gemmEx", "gemmStridedBatchedEx", "setStream", "setMathMode", "setPointerMode")),
    *(("cublas", name) for name in ("CUBLAS_OP_N", "CUBLAS_OP_T", "CUBLAS_COMPUTE_32F", "CUBLAS_COMPUTE_64F")),
    *(("cublas", name) for name in ("CUBLAS_GEMM_DEFAULT", "CUBLAS_POINTER_MODE_HOST", "CUBLAS_DEFAULT_MATH")),
    ("compiler", "CompileException"),
    ("driver", "CUDADriverError"),
    ("memory", "OutOfMemoryError"),
]


def names_of(module: Any, path: str) -> Iterator[str]:
    """Yield what a module offers, and what its classes offer in turn."""
    for name in module.__all__:
        thing = getattr(module, name)
        yield f"{path}.{name}"
        if isinstance(thing, type):
            yield from (f"{path}.{name}.{member}" for member in vars(thing) if is_public(thing, member))


def is_public(owner: type, member: str) -> bool:
    """Leave out what says that it is the emulator's own."""
    return not member.startswith("_") and "no name of CuPy's" not in (getattr(owner, member).__doc__ or "")
