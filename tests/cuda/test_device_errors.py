"""What CuPy refuses is one error of Mila's that names the device, and a pool is asked about its own device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mila.devices import DeviceId
from mila.errors import DeviceError
from tests.cuda.conftest import BACKEND, Emulated

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

FLOAT16 = np.dtype(np.float16)


def raising(error: Exception) -> Any:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find CUDA headers. Please install CUDA toolkit headers"),
        ImportError("libnvrtc.so.13: not found"),
        RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
    ],
    ids=["headers", "compiler", "driver"],
)
def test_a_module_that_cannot_be_made_is_named(
    error: Exception, emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = emulated.modules[BACKEND].CudaDevice(DeviceId.parse("cuda:0"))
    monkeypatch.setattr(emulated.modules["cupy"], "RawModule", raising(error))
    with pytest.raises(
        DeviceError, match=rf"^kernel file ids\.cu: could not be compiled for cuda:0, or loaded: {error}"
    ):
        device.launch("ids", "range_int32", FLOAT16, 1, 32, [])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ImportError("libcublas.so.13"),
            r"cuBLAS was not found \(libcublas.so.13\); CuPy's extra ctk brings it: pip install 'cupy-cuda13x\[ctk\]'",
        ),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), "cuBLAS could not start: CUBLAS_STATUS_ALLOC_FAILED"),
    ],
)
def test_a_device_without_products_says_why(
    error: Exception, message: str, emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulated.modules["cupy.cuda.cublas"], "create", raising(error))
    with pytest.raises(DeviceError, match=f"^device cuda:0: {message}"):
        emulated.modules[BACKEND].CudaDevice(DeviceId.parse("cuda:0"))


class WatchedPool:
    """A pool that notes on which stream it is asked: CuPy's answers for the current device."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.streams: list[Any] = []

    def used_bytes(self) -> int:
        self.streams.append(self._cupy.cuda.get_current_stream())
        return 0

    free_bytes = used_bytes


def test_a_pool_is_asked_while_its_device_is_the_current_one(
    emulated: Emulated, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = WatchedPool(emulated.modules["cupy"])
    monkeypatch.setattr(cuda, "pool", pool)
    assert cuda.used_bytes() == 0
    assert cuda.available_bytes() <= cuda.total_bytes()
    assert pool.streams == [cuda.stream, cuda.stream]
