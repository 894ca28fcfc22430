"""Execution contexts: one device, its kernels, its threads and the seed of what is drawn on it."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mila.devices.device_id import DeviceId, DeviceType
from mila.devices.memory import available_host_bytes
from mila.errors import ConfigurationError, DeviceError
from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Kernels

#: More threads than this only wait for each other: NumPy holds the interpreter lock between calls.
MAXIMUM_THREADS = 8


class ExecutionContext:
    """A device with its kernels; can serve several roots.

    Args:
        device: ``"cpu"`` or ``"cuda:<index>"``.
        threads: kernel threads on the CPU; by default the processors this process may use, at most 8.
        seed: the seed of roots that are given none.

    Raises:
        DeviceError: the device does not exist here.
    """

    def __init__(self, device: str | DeviceId = "cpu", *, threads: int | None = None, seed: int = 0) -> None:
        self.device_id = DeviceId.parse(device)
        if self.device_id.type is not DeviceType.CPU:
            raise DeviceError(
                f"device {self.device_id}: this version of Mila computes on the CPU only; use device='cpu'"
            )
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise ConfigurationError(f"execution context: threads must be an integer of at least 1, got {threads!r}")
        self.threads = threads if threads is not None else min(_usable_processors(), MAXIMUM_THREADS)
        self.seed = check_seed("execution context", seed)
        self.kernels: Kernels = CpuKernels(self.threads)

    #: Every buffer and every arena begins at a multiple of this many bytes.
    alignment = 64

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """``size`` uninitialised bytes, as NumPy's allocator gives them (aligned to 16)."""
        return np.empty(size, np.uint8)

    def available_bytes(self) -> int | None:
        """Bytes that can still be allocated on the device, where that is known."""
        return available_host_bytes()

    def synchronize(self) -> None:
        """Wait for everything launched on the device; on the CPU everything has already happened."""

    def supports(self, dtype: np.dtype[Any]) -> bool:
        """Whether the kernels compute networks stored in ``dtype``."""
        return dtype in self.kernels.dtypes

    def __repr__(self) -> str:
        return f"ExecutionContext({str(self.device_id)!r}, threads={self.threads}, seed={self.seed})"


def check_seed(what: str, seed: int) -> int:
    """``seed``, if it is an integer of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigurationError(f"{what}: a seed is an integer of at least 0, got {seed!r}")
    return seed


@functools.cache
def kernels_to_plan_with() -> Kernels:
    """Kernels that are only asked for the sizes of workspaces, which are the same for any number of threads."""
    return CpuKernels(1)


def _usable_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
