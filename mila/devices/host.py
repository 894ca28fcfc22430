"""The CPU as a device: arrays are NumPy's."""

from __future__ import annotations

import numpy as np

from mila.devices.memory import available_host_bytes
from mila.errors import DeviceError, DTypeError
from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Array, Kernels

_NO_BYTES: Array = np.empty(0, np.uint8)


class Host:
    """The memory of this process, with kernels on ``threads`` threads."""

    alignment = 64
    is_host = True
    no_bytes = _NO_BYTES

    def __init__(self, threads: int) -> None:
        self.kernels: Kernels = CpuKernels(threads)

    def allocate(self, size: int) -> Array:
        """``size`` uninitialised bytes, as NumPy's allocator gives them (aligned to 16)."""
        return np.empty(size, np.uint8)

    def available_bytes(self) -> int | None:
        """Bytes that can still be allocated, where the operating system says."""
        return available_host_bytes()

    def total_bytes(self) -> None:
        """Nothing: the memory belongs to all processes."""

    def used_bytes(self) -> None:
        """Nothing: NumPy does not count them, unless it is traced."""

    def synchronize(self) -> None:
        """Nothing: everything has already happened."""

    def hand_over(self) -> None:
        """Nothing: everything has already happened."""

    def address_of(self, array: Array) -> int:
        """Where the first element of an array is."""
        address: int = array.__array_interface__["data"][0]
        return address

    def as_array(self, what: str, value: object) -> Array:
        """``value`` as a NumPy array, without a copy; see :meth:`mila.devices.device.Device.as_array`."""
        if type(value) is np.ndarray:
            return value
        if isinstance(value, np.ma.MaskedArray):
            raise DTypeError(f"{what}: expected an array without a mask, got a masked array")
        if hasattr(value, "__cuda_array_interface__"):
            raise DeviceError(f"{what}: expected an array of the CPU, got one of a CUDA device")
        try:
            if isinstance(value, np.ndarray):  # a subclass, such as a memory map or a matrix
                return value.view(np.ndarray)
            if hasattr(value, "__dlpack__"):
                return np.from_dlpack(value)
            if hasattr(value, "__array_interface__"):
                return np.asarray(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise DTypeError(f"{what}: could not be read as an array: {error}") from error
        raise DTypeError(f"{what}: expected an array, got {type(value).__name__}")

    def set_bytes(self, array: Array, value: int) -> None:
        """Write ``value`` to every byte of an array of bytes, or 0 to any array."""
        self.kernels.fill(array, value)

    def upload(self, target: Array, values: Array) -> None:
        """``target[...] = values``."""
        target[...] = values

    def download(self, array: Array) -> Array:
        """``array`` itself."""
        return array

    def to_device(self, values: Array) -> Array:
        """``values`` itself."""
        return values
