"""The cache serves concurrent processes, knows what a result depends on, and says what a machine lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.emulator import toolchain
from tests.emulator.errors import MissingToolError
from tests.emulator.kernel_files import needs_emulator
from tests.emulator.module import Module

KERNEL = '#include "value.cuh"\nextern "C" __global__ void fill(float* y) { y[0] = VALUE; }'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(toolchain.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@needs_emulator
def test_threads_that_build_the_same_get_one_result(cache: Path) -> None:
    def build(folder: Path) -> None:
        time.sleep(0.05)
        (folder / "result").write_text("done")

    with ThreadPoolExecutor(8) as executor:
        folders = set(executor.map(lambda _: toolchain.compile_once("thing", ["same"], build), range(8)))
    (folder,) = folders
    assert (folder / "result").read_text() == "done"
    assert list(cache.iterdir()) == [folder]


@needs_emulator
def test_a_build_that_fails_leaves_nothing(cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        toolchain.compile_once("thing", [], build)
    assert list(cache.iterdir()) == []


@needs_emulator
def test_what_nobody_uses_goes_away(cache: Path) -> None:
    old, used = (toolchain.compile_once("thing", [name], lambda folder: None) for name in ("old", "used"))
    for folder in (old, used):
        os.utime(folder, (0, 0))
    toolchain.compile_once("thing", ["used"], lambda folder: None)
    toolchain.compile_once("thing", ["new"], lambda folder: None)
    assert used.exists()
    assert not old.exists()


@needs_emulator
def test_a_changed_header_or_option_is_another_module(tmp_path: Path) -> None:
    def folder(*options: str) -> Path:
        return Module(KERNEL, options=[f"-I{tmp_path}", *options]).folder

    (tmp_path / "value.cuh").write_text("#define VALUE 1.0f\n")
    first = folder()
    assert folder() == first
    assert folder("-DOTHER") != first
    (tmp_path / "value.cuh").write_text("#define VALUE 2.0f\n")
    assert folder() != first


@needs_emulator
def test_processes_may_compile_the_same_at_once(tmp_path: Path) -> None:
    source = f'extern "C" __global__ void fill(float* y) {{ y[0] = {time.time_ns()}; }}'
    program = f"from tests.emulator.module import Module\nprint(Module({source!r}).folder)"
    root = Path(__file__).resolve().parents[2]
    running = [
        subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert len(outputs) == 1
    shutil.rmtree(outputs.pop().strip())


def test_the_cache_can_be_moved(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert toolchain.cache_folder() == cache
    monkeypatch.delenv(toolchain.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert toolchain.cache_folder() == tmp_path / "mila" / "cuda_emulator"


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingToolError, match=r"g\+\+ and addr2line are needed"):
        toolchain.compiler_version.__wrapped__()


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "NEEDED_HEADERS", ("no_such_header.h",))
    with pytest.raises(MissingToolError, match=r"pip install '.\[cuda-test\]'"):
        toolchain.cuda_include.__wrapped__()
