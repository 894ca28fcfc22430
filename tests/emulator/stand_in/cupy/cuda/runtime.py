"""The few calls of the CUDA runtime that ask about the device."""

# ruff: noqa: N802  the names are CUDA's

from __future__ import annotations

from typing import Any

#: Memory of the device, of which `set_allocated` has taken some.
TOTAL_BYTES = 16 << 30
_allocated = [0]


class CUDARuntimeError(RuntimeError):
    """A call of the runtime failed."""


def getDeviceCount() -> int:
    """Return the number of devices."""
    return 1


def getDevice() -> int:
    """Return the current device."""
    return 0


def runtimeGetVersion() -> int:
    """Return the version in the form 1000 major + 10 minor."""
    return 13000


def driverGetVersion() -> int:
    """Return the newest version that the driver supports."""
    return 13000


def getDeviceProperties(device: int) -> dict[str, Any]:
    """Return what a device is."""
    if device != 0:
        raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
    return {
        "name": b"CPU emulator",
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 132,
        "sharedMemPerBlock": 48 << 10,
        "sharedMemPerBlockOptin": 227 << 10,
        "totalGlobalMem": TOTAL_BYTES,
        "warpSize": 32,
    }


def memGetInfo() -> tuple[int, int]:
    """Return free and total bytes."""
    return TOTAL_BYTES - _allocated[0], TOTAL_BYTES


def deviceSynchronize() -> None:
    """Wait for every stream."""
    from .device import Device

    Device(0).synchronize()


def change_allocated(nbytes: int) -> None:
    """Count bytes that were taken, or given back where negative; no call of CUDA's."""
    _allocated[0] += nbytes
