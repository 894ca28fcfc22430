"""What a device offers besides kernels: memory, and the way of arrays there and back."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mila.kernels.signatures import Array, Kernels


class Device(Protocol):
    """Where arrays live. One object may serve several execution contexts."""

    @property
    def kernels(self) -> Kernels:
        """The maths."""

    @property
    def alignment(self) -> int:
        """Every buffer and every arena begins at a multiple of this many bytes."""

    @property
    def no_bytes(self) -> Array:
        """An array of no bytes (uint8); one for all, so that it takes nothing from the allocator."""

    @property
    def is_host(self) -> bool:
        """Whether its arrays are NumPy's, which Python reads and writes in place."""

    def allocate(self, size: int) -> Array:
        """``size`` uninitialised bytes (uint8); :class:`MemoryError` where there is no room for them."""

    def available_bytes(self) -> int | None:
        """Bytes that can still be allocated, where that is known."""

    def total_bytes(self) -> int | None:
        """Memory of the device, where it has its own."""

    def used_bytes(self) -> int | None:
        """Bytes that ``allocate`` has given and that are still in use, where the device counts them."""

    def synchronize(self) -> None:
        """Wait for everything that was launched."""

    def hand_over(self) -> None:
        """Order what the caller queues from now on, on a stream of its own, after everything that was launched."""

    def address_of(self, array: Array) -> int:
        """Where the first element of an array is."""

    def as_array(self, what: str, value: object) -> Array:
        """``value`` as an array of the device, without a copy.

        Args:
            what: what errors are about.
            value: an array of any kind that shows its memory.

        Raises:
            DeviceError: it lives on another device.
            DTypeError: it is no array.
        """

    def set_bytes(self, array: Array, value: int) -> None:
        """Write ``value`` to every byte of a contiguous array: of bytes, or of anything else if ``value`` is 0."""

    def upload(self, target: Array, values: Array) -> None:
        """Overwrite an array with NumPy ``values`` of its shape, converted to its dtype.

        Of devices other than the host, ``target`` is contiguous.
        """

    def download(self, array: Array) -> Array:
        """The values in NumPy, after everything launched before: a copy, but for the host, where it is ``array``."""

    def to_device(self, values: Array) -> Array:
        """A copy of a NumPy array on the device; on the host ``values`` itself."""


def address_of(array: Array) -> int:
    """Where the first element of an array of any device is."""
    is_host = isinstance(array, np.ndarray)
    interface = array.__array_interface__ if is_host else array.__cuda_array_interface__  # type: ignore[attr-defined]
    address: int = interface["data"][0]
    return address
