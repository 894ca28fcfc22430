"""Kernels compile for real GPUs, and what only a GPU's compiler refuses is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.emulator import nvrtc, resource_table
from tests.emulator.errors import CompileError
from tests.emulator.kernel_files import KERNELS, NAMES
from tests.emulator.nvrtc import ARCHITECTURES, Resources

needs_nvrtc = pytest.mark.skipif(nvrtc.missing_nvrtc() is not None, reason=nvrtc.missing_nvrtc() or "")

LOG = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5scaleIfEvPT_' for 'sm_90'
ptxas info    : Function properties for _Z5scaleIfEvPT_
    40 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 40 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compiling entry function 'add' for 'sm_90'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.cu")), ids=lambda path: path.name)
def test_every_kernel_compiles_to_machine_code(path: Path, architecture: str) -> None:
    compiled = nvrtc.compile_file(path, architecture, NAMES.get(path.name, ()))
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.resources
    assert set(NAMES.get(path.name, ())) <= compiled.resources.keys()
    for resources in compiled.resources.values():
        assert 0 < resources.registers <= 255
        assert resources.spill_stores == resources.spill_loads == 0


@needs_nvrtc
def test_static_shared_memory_is_counted() -> None:
    assert nvrtc.compile_file(KERNELS / "matmul.cu", "sm_90").resources["matmul"].static_shared == 2 * 16 * 16 * 4


@needs_nvrtc
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#include <algorithm>\n", "cannot open source file"),
        ('extern "C" __global__ void k(int* y) { y[0] = getpid(); }', r"identifier \"getpid\" is undefined"),
        ('extern "C" __global__ void k(float* y) { __shared__ float s[13000]; s[threadIdx.x] = y[0]; __syncthreads(); '
         "y[0] = s[5]; }", "uses too much shared data"),
        ('int host() { return 1; }\nextern "C" __global__ void k(int* y) { y[0] = host(); }', "host"),
    ],
    ids=["standard header", "host function", "too much shared memory", "call of a host function"],
)  # fmt: skip
def test_what_a_gpu_cannot_run_is_refused(text: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        nvrtc.compile_text(text, "sm_90", filename="refused.cu")


def test_the_assembler_s_output_is_read() -> None:
    assert nvrtc.parse_log(LOG) == {
        "_Z5scaleIfEvPT_": Resources(255, 12, 16, 40, 128),
        "add": Resources(10, 0, 0, 0, 0),
    }


def test_output_that_is_not_understood_is_an_error() -> None:
    with pytest.raises(CompileError, match="not understood"):
        nvrtc.parse_log(LOG.replace("spill stores", "something new"))


@needs_nvrtc
def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = resource_table.measure(
        {KERNELS / "gelu.cu": (), KERNELS / "layer_norm.cu": NAMES["layer_norm.cu"]}, ["sm_80"]
    )
    assert len(table) == 3
    resource_table.write(tmp_path / "table.tsv", table)
    version, again = resource_table.read(tmp_path / "table.tsv")
    assert (version, again) == ("{}.{}".format(*nvrtc.version()), table)
    assert resource_table.problems(again, table) == []


def test_what_got_worse_than_the_table_is_named() -> None:
    before = Resources(32, 0, 0, 0, 128)
    recorded = {("a.cu", "a", "sm_90"): before, ("a.cu", "gone", "sm_90"): before}
    worse = replace(before, registers=40, spill_stores=8, spill_loads=8)
    measured = {("a.cu", "a", "sm_90"): worse, ("a.cu", "new", "sm_90"): before}
    assert resource_table.problems(recorded, measured) == [
        "a.cu: a for sm_90 spills 8 bytes of registers",
        "a.cu: a for sm_90: registers rose from 32 to 40",
        "a.cu: a for sm_90: spill_loads rose from 0 to 8",
        "a.cu: a for sm_90: spill_stores rose from 0 to 8",
        "a.cu: gone for sm_90 is in the table, but no such kernel was compiled",
        "a.cu: new for sm_90 is not in the table",
    ]
    assert resource_table.problems({("a.cu", "a", "sm_90"): worse}, {("a.cu", "a", "sm_90"): before}) == []
