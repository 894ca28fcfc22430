"""Arrays in the emulated device's memory."""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from tests.emulator import engine
from tests.emulator.arguments import Usage
from tests.emulator.errors import EmulatorError
from tests.emulator.streams import Stream, host_access

#: The widest access of a kernel, in bytes. A wider alignment would leave room between an array and the guard page.
ALIGNMENT = 16


class DeviceArray:
    """A C-contiguous array whose end lies at a guard page; every byte is 0xff before it is written.

    Args:
        shape: Sizes of the axes.
        dtype: Type of the elements.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.nbytes = math.prod(shape) * self.dtype.itemsize
        self.address = engine.allocate(self.nbytes, ALIGNMENT)
        self._finalizer = weakref.finalize(self, engine.free, self.address)

    @classmethod
    def from_host(cls, values: ArrayLike, stream: Stream | None = None) -> DeviceArray:
        """Copy an array to the device: now, or on a stream."""
        host = np.ascontiguousarray(values)
        array = cls(host.shape, host.dtype)
        array.copy_from(host, stream)
        return array

    @property
    def element_type(self) -> np.dtype[Any]:
        """The type of the elements, which a kernel's pointer must have too."""
        return self.dtype

    def copy_from(self, values: NDArray[Any], stream: Stream | None = None) -> None:
        """Overwrite the array. On a stream, ``values`` are read when the copy runs: leave them alone until then."""
        if values.shape != self.shape or values.dtype != self.dtype or not values.flags.c_contiguous:
            raise EmulatorError(
                f"expected a C-contiguous {self.dtype.name} array of shape {self.shape}, "
                f"got {values.dtype.name} of shape {values.shape}"
            )

        def action() -> None:
            ctypes.memmove(self._live_address(), values.ctypes.data, self.nbytes)

        usage = Usage(writes=((self.address, self.address + self.nbytes),))
        if stream is not None:
            stream.enqueue("copy to the device", action, usage)
            return
        host_access("copy to the device", usage)
        action()

    def to_host(self) -> NDArray[Any]:
        """Return a copy of what the device's memory holds now.

        Raises:
            StreamError: If work that writes it is queued and the host has not waited for it.
        """
        host_access("read of a result", Usage(reads=((self.address, self.address + self.nbytes),)))
        host = np.empty(self.shape, self.dtype)
        ctypes.memmove(host.ctypes.data, self._live_address(), self.nbytes)
        return host

    def free(self) -> None:
        """Give the memory back. A kernel that still uses it is reported."""
        self._finalizer()

    def _live_address(self) -> int:
        if not self._finalizer.alive:
            raise EmulatorError("the array was freed")
        return self.address
