"""Kernel files are read as they stand: their parameters, and the text that compilers get."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mila.devices import kernel_files
from mila.devices.kernel_files import Parameter, compile_options, kernels_of, source_text, sources
from mila.errors import DeviceError
from mila.kernels.cuda.family import DTYPE_MACROS

FLOAT16 = np.dtype(np.float16)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of kernel files with the common part."""
    monkeypatch.setattr(kernel_files, "FOLDER", tmp_path)
    (tmp_path / "common.cuh").write_text("using index_t = long long;\n")
    for function in (source_text, kernels_of):
        function.cache_clear()
    return tmp_path


def test_parameters_are_read_from_declarations(folder: Path) -> None:
    (folder / "one.cu").write_text("""
        // extern "C" __global__ void not_this(int x) {}
        extern "C" __global__ void __launch_bounds__(256, 2) first(
            stored_t* __restrict__ y, const float *x, /* a, comment */ index_t count, unsigned long long key, Sizes s
        ) {}
        extern "C" __launch_bounds__(32) __global__ void second(const void* bytes, const int* ids, bool flag) {}
        extern "C" __global__ void third() {}
    """)
    kernels = kernels_of("one", FLOAT16)
    assert list(kernels) == ["first", "second", "third"]
    assert [(p.name, p.is_pointer, None if p.dtype is None else p.dtype.name) for p in kernels["first"]] == [
        ("y", True, "float16"),
        ("x", True, "float32"),
        ("count", False, "int64"),
        ("key", False, "uint64"),
        ("s", False, None),
    ]
    assert kernels["second"][0] == Parameter("bytes", True, None, "const void* bytes")
    assert [p.dtype for p in kernels["second"][1:]] == [np.dtype(np.int32), np.dtype(np.bool_)]
    assert kernels["third"] == ()


def test_files_stand_where_they_are_included_and_once(folder: Path) -> None:
    (folder / "part.cuh").write_text('#pragma once\n#include "other.cuh"\nint part;\n')
    (folder / "other.cuh").write_text("int other;\n")
    (folder / "one.cu").write_text('// first\n#include "part.cuh"\n#include "other.cuh"\nint one;\n')
    assert source_text("one").splitlines() == [
        '#line 1 "common.cuh"',
        "using index_t = long long;",
        '#line 1 "one.cu"',
        "// first",
        '#line 1 "part.cuh"',
        '#line 2 "part.cuh"',
        '#line 1 "other.cuh"',
        "int other;",
        '#line 3 "part.cuh"',
        "int part;",
        '#line 3 "one.cu"',
        '#line 4 "one.cu"',
        "int one;",
    ]


def test_a_file_that_does_not_exist_is_an_error(folder: Path) -> None:
    with pytest.raises(DeviceError, match=r"kernel file none.cu: does not exist in"):
        source_text("none")


@pytest.mark.parametrize("source", sources())
def test_every_shipped_file_has_kernels_of_every_dtype(source: str) -> None:
    names = {dtype.name: list(kernels_of(source, dtype)) for dtype in DTYPE_MACROS}
    assert names["float32"]
    assert names["float32"] == names["bfloat16"] == names["float16"]
    assert {compile_options(dtype)[0] for dtype in DTYPE_MACROS} == {"-std=c++17"}


@pytest.mark.parametrize("source", sources())
def test_texts_have_no_characters_that_a_locale_could_lack(source: str) -> None:
    assert source_text(source).isascii()


def test_such_characters_leave_their_places(folder: Path) -> None:
    (folder / "one.cu").write_text("int a;  // (A B)ᵀ = Bᵀ Aᵀ\nint b;\n", "utf-8")
    assert source_text("one").endswith("int a;  // (A B)? = B? A?\nint b;\n")
