"""The emulated CUDA device: Mila's own host code on the stand-in for CuPy, for the tests of this folder alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import mila.devices
from mila.devices import DeviceId, ExecutionContext, execution_context
from tests.emulator.stand_in.activate import stand_in_cupy
from tests.emulator.toolchain import missing_tools

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

BACKEND = "mila.devices.cuda"


@dataclass
class Emulated:
    """The modules that are there only inside these tests, and the one device they share."""

    modules: dict[str, ModuleType]
    device: CudaDevice | None = None


@pytest.fixture(scope="session")
def emulated() -> Emulated:
    """Import the backend on the stand-in, and take both away again."""
    reason = missing_tools()
    if reason is not None:
        pytest.skip(reason)
    with stand_in_cupy():
        backend = importlib.import_module(BACKEND)
        modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "cupy"}
    del sys.modules[BACKEND], mila.devices.cuda
    return Emulated({**modules, BACKEND: backend})


@pytest.fixture(autouse=True)
def emulated_cuda(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ``cuda:0`` be the emulated device, and wait for it at the end: what it finds fails the test."""
    for name, module in emulated.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    emulated.device = emulated.device or emulated.modules[BACKEND].CudaDevice(DeviceId.parse("cuda:0"))
    monkeypatch.setattr(execution_context, "_cuda_device", lambda device_id: emulated.device)
    yield
    emulated.device.synchronize()


@pytest.fixture
def cuda(emulated: Emulated, emulated_cuda: None) -> CudaDevice:
    """Return the emulated device."""
    assert emulated.device is not None
    return emulated.device


@pytest.fixture
def context(emulated_cuda: None) -> ExecutionContext:
    """Return an execution context on the emulated device."""
    return ExecutionContext("cuda:0")
