"""The one device there is."""

from __future__ import annotations

from typing import Any

from tests.emulator import streams

from .runtime import CUDARuntimeError

_ATTRIBUTES = {
    "MaxSharedMemoryPerBlock": 48 << 10,
    "MaxSharedMemoryPerBlockOptin": 227 << 10,
    "MaxThreadsPerBlock": 1024,
    "MultiProcessorCount": 132,
    "WarpSize": 32,
}


class Device:
    """Device 0, in name of compute capability 9.0; any other does not exist."""

    def __init__(self, device: int | Device | None = None) -> None:
        self.id: int = device.id if isinstance(device, Device) else int(device or 0)
        if self.id != 0:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    compute_capability = "90"
    attributes = _ATTRIBUTES

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    def use(self) -> None:
        """Make it the current device, which it always is."""

    def synchronize(self) -> None:
        """Wait for every stream."""
        streams.synchronize_all()

    @property
    def mem_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        from .runtime import memGetInfo

        return memGetInfo()


def get_cublas_handle() -> int:
    """Return the device's cuBLAS handle."""
    return 1
