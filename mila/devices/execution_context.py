"""Execution contexts: one device, its kernels, its threads and the seed of what is drawn on it."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from mila.devices.device import Device
from mila.devices.device_id import DeviceId, DeviceType
from mila.devices.host import Host
from mila.errors import ConfigurationError, DeviceError, DTypeError
from mila.kernels.signatures import Array, Kernels

#: More threads than this only wait for each other: NumPy holds the interpreter lock between calls.
MAXIMUM_THREADS = 8


class ExecutionContext:
    """A device with its kernels; can serve several roots.

    Args:
        device: ``"cpu"`` or ``"cuda:<index>"``.
        threads: kernel threads on the CPU; by default the processors this process may use, at most 8. A CUDA device
            has its own.
        seed: the seed of roots that are given none.
        deterministic: whether the same run gives the same bits every time. ``False`` lets a device add up floats in
            any order where that is faster, so that runs differ by roundings. On the CPU it changes nothing: there the
            fixed order costs nothing.

    Raises:
        ConfigurationError: threads, a seed or a switch that is none.
        DeviceError: the device does not exist here, or what Mila needs for it is not installed.
    """

    def __init__(
        self,
        device: str | DeviceId = "cpu",
        *,
        threads: int | None = None,
        seed: int = 0,
        deterministic: bool = True,
    ) -> None:
        self.device_id = DeviceId.parse(device)
        if not isinstance(deterministic, bool):
            raise ConfigurationError(f"execution context: deterministic must be True or False, got {deterministic!r}")
        self.deterministic = deterministic
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise ConfigurationError(f"execution context: threads must be an integer of at least 1, got {threads!r}")
        self.threads = threads if threads is not None else min(_usable_processors(), MAXIMUM_THREADS)
        self.seed = check_seed("execution context", seed)
        on_cpu = self.device_id.type is DeviceType.CPU
        self.device: Device = Host(self.threads) if on_cpu else _cuda_device(self.device_id)
        self.kernels: Kernels = self.device.kernels if deterministic else self.device.kernels.unordered()
        self.alignment = self.device.alignment

    @classmethod
    def to_plan_with(cls, device: str | DeviceId) -> ExecutionContext:
        """A context for plans of a device that need not be here: to the byte what the real one would say.

        Builds with a CUDA device of this kind raise :class:`DeviceError`.
        """
        context = cls("cpu")
        context.device_id = DeviceId.parse(device)
        if context.device_id.type is DeviceType.CUDA:
            from mila.devices.planned import PlannedCudaDevice  # all CUDA kernels, which most processes never need

            context.device = PlannedCudaDevice(context.device_id)
            context.kernels, context.alignment = context.device.kernels, context.device.alignment
        return context

    #: Of the CPU; every buffer and every arena begins at a multiple of this many bytes.
    alignment = Host.alignment

    def allocate(self, size: int) -> Array:
        """``size`` uninitialised bytes."""
        return self.device.allocate(size)

    def available_bytes(self) -> int | None:
        """Bytes that can still be allocated on the device, where that is known."""
        return self.device.available_bytes()

    def synchronize(self) -> None:
        """Wait for everything launched on the device; on the CPU everything has already happened."""
        self.device.synchronize()

    def to_device(self, values: Array) -> Array:
        """A copy of a NumPy array on the device, to give to ``forward``; on the CPU ``values`` itself.

        Raises:
            DTypeError: something else than a NumPy array of numbers or truth values in this machine's byte order.
        """
        if not isinstance(values, np.ndarray):
            raise DTypeError(f"to_device: expected a NumPy array, got {type(values).__name__}")
        dtype = values.dtype
        if dtype.kind in "OSUMmc" or dtype.names is not None or not dtype.isnative:
            raise DTypeError(f"to_device: expected numbers in this machine's byte order, got dtype {dtype}")
        return self.device.to_device(values)

    def to_host(self, array: Array) -> Array:
        """An array of the device in NumPy: a copy, but for the CPU, where it is ``array`` itself.

        Raises:
            DeviceError: an array of another device.
            DTypeError: it is no array.
        """
        return self.device.download(self.device.as_array("to_host", array))

    def supports(self, dtype: np.dtype[Any]) -> bool:
        """Whether the kernels compute networks stored in ``dtype``."""
        return dtype in self.kernels.dtypes

    def __repr__(self) -> str:
        order = "" if self.deterministic else ", deterministic=False"
        return f"ExecutionContext({str(self.device_id)!r}, threads={self.threads}, seed={self.seed}{order})"


def check_seed(what: str, seed: int) -> int:
    """``seed``, if it is an integer of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigurationError(f"{what}: a seed is an integer of at least 0, got {seed!r}")
    return seed


@functools.cache
def host_to_plan_with() -> Host:
    """The CPU for components that have no device yet."""
    return Host(1)


def kernels_to_plan_with() -> Kernels:
    """Kernels that are only asked for the sizes of workspaces, which are the same for any number of threads."""
    return host_to_plan_with().kernels


@functools.cache
def _cuda_device(device_id: DeviceId) -> Device:
    """The device, once per process: a stream, a pool and a workspace for matrix products serve all contexts."""
    try:
        from mila.devices.cuda import CudaDevice
    except ImportError as error:
        raise DeviceError(
            f"device {device_id}: CUDA devices need CuPy, which could not be imported ({error}); install it with "
            "pip install 'cupy-cuda13x[ctk]>=14.2', or 'cupy-cuda12x[ctk]>=14.2' for CUDA 12"
        ) from error
    return CudaDevice(device_id)


def _usable_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
