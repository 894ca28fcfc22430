"""The CUDA device of the tests of this folder: emulated under the stand-in for CuPy, or with ``-m gpu`` a real one.

A run has one of the two. The cases are the same, under the same names: those that take a device are marked ``gpu``
where a real one was asked for, and skipped where there is none. What only the emulator has (other orders of threads,
checks of every access, the stand-in itself) is not among them.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import mila.devices
from mila.devices import DeviceId, ExecutionContext, execution_context
from tests.emulator.module import FORWARD, Mode, Run
from tests.emulator.stand_in.activate import stand_in_cupy
from tests.emulator.toolchain import missing_tools

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

BACKEND = "mila.devices.cuda"
CUDA_0 = DeviceId.parse("cuda:0")
FOLDER = Path(__file__).parent
#: The one way of running kernels that a GPU has, too.
ANYWHERE = Run(Mode.FAST, FORWARD)


def asks_for_gpu(config: pytest.Config) -> bool:
    """Whether the run is of the tests that are marked ``gpu``."""
    return re.search(r"(?<!not )\bgpu\b", config.option.markexpr) is not None


@cache
def is_here(path: Path) -> bool:
    """Whether a file is in this folder; asked for thousands of tests."""
    return FOLDER in path.parents


def takes_a_device(item: pytest.Item) -> bool:
    """Whether a test runs on any CUDA device, and not on the emulated one alone."""
    names: list[str] = getattr(item, "fixturenames", [])
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    is_anywhere = all(value == ANYWHERE for value in given if isinstance(value, Run))
    return is_here(item.path) and not {"cuda", "context"}.isdisjoint(names) and "emulated" not in names and is_anywhere


def needs_the_emulator(item: pytest.Item) -> bool:
    """Whether a test of this folder cannot run without it; the others say for themselves what they need."""
    names: list[str] = getattr(item, "fixturenames", [])
    return is_here(item.path) and not {"cuda", "context", "emulated"}.isdisjoint(names)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what a GPU is to run, before marks choose; skip thousands of tests without setting up each."""
    if asks_for_gpu(config):
        for item in filter(takes_a_device, items):
            item.add_marker(pytest.mark.gpu)
    elif (reason := missing_tools()) is not None:
        for item in filter(needs_the_emulator, items):
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass
class Emulated:
    """The modules that are there only inside these tests, and the one device they share."""

    modules: dict[str, ModuleType]
    device: CudaDevice | None = None


@pytest.fixture(scope="session")
def emulated(pytestconfig: pytest.Config) -> Emulated:
    """Import the backend on the stand-in, and take both away again."""
    if asks_for_gpu(pytestconfig):
        pytest.fail("this run is of a real CuPy: nothing is emulated beside it")
    reason = missing_tools()
    if reason is not None:
        pytest.skip(reason)
    with stand_in_cupy():
        backend = importlib.import_module(BACKEND)
        modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "cupy"}
    del sys.modules[BACKEND], mila.devices.cuda
    return Emulated({**modules, BACKEND: backend})


@pytest.fixture(autouse=True)
def emulated_cuda(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Let ``cuda:0`` be the device of this run, and wait for it at the end: what it finds fails the test."""
    if asks_for_gpu(pytestconfig):
        yield
        ExecutionContext(CUDA_0).synchronize()
        return
    emulated: Emulated = request.getfixturevalue("emulated")
    for name, module in emulated.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    emulated.device = emulated.device or emulated.modules[BACKEND].CudaDevice(CUDA_0)
    monkeypatch.setattr(execution_context, "_cuda_device", lambda device_id: emulated.device)
    yield
    emulated.device.synchronize()


@pytest.fixture
def context(emulated_cuda: None) -> ExecutionContext:
    """Return an execution context on the device."""
    return ExecutionContext(CUDA_0)


@pytest.fixture
def cuda(context: ExecutionContext) -> CudaDevice:
    """Return the device."""
    return context.device  # type: ignore[return-value]
