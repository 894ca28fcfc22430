"""A CUDA device that need not be here: its kernels are asked for sizes, and nothing else."""

from __future__ import annotations

from typing import NoReturn

from mila.devices.cuda_sizes import CUDA_ALIGNMENT
from mila.devices.device_id import DeviceId
from mila.errors import DeviceError
from mila.kernels.cuda.table import CudaKernels
from mila.kernels.signatures import Array, Kernels


class PlannedCudaDevice:
    """What a CUDA device is to plans: alignment and sizes of workspaces, which are the same on all of them.

    Everything else is a :class:`DeviceError`: nothing can be allocated, copied or launched.

    Args:
        device_id: which one.
    """

    alignment = CUDA_ALIGNMENT
    is_host = False

    def __init__(self, device_id: DeviceId) -> None:
        self.device_id = device_id
        self.kernels: Kernels = CudaKernels(self)

    def available_bytes(self) -> int | None:
        """``None``: nobody knows."""
        return None

    def total_bytes(self) -> int | None:
        """``None``: nobody knows."""
        return None

    def used_bytes(self) -> int | None:
        """``None``: nothing can be allocated."""
        return None

    @property
    def most_shared_bytes(self) -> int | None:
        """``None``: nobody knows."""
        return None

    # ------------------------------------------------------------------ what only a real device can do

    @property
    def multiprocessor_count(self) -> int:
        """No size depends on it."""
        self._refuse("count multiprocessors")

    @property
    def scratch(self) -> Array:
        """Bytes that are not there."""
        self._refuse("give scratch")

    @property
    def no_bytes(self) -> Array:
        """An array that is not there."""
        self._refuse("give arrays")

    def allocate(self, size: int) -> Array:
        """Refused."""
        self._refuse(f"allocate {size:,} bytes")

    def synchronize(self) -> None:
        """Refused."""
        self._refuse("synchronize")

    def hand_over(self) -> None:
        """Nothing: nothing is ever launched."""

    def address_of(self, array: Array) -> int:
        """Refused."""
        self._refuse("give addresses")

    def as_array(self, what: str, value: object) -> Array:
        """Refused."""
        self._refuse(f"take {what}")

    def set_bytes(self, array: Array, value: int) -> None:
        """Refused."""
        self._refuse("set bytes")

    def upload(self, target: Array, values: Array) -> None:
        """Refused."""
        self._refuse("upload")

    def download(self, array: Array) -> Array:
        """Refused."""
        self._refuse("download")

    def to_device(self, values: Array) -> Array:
        """Refused."""
        self._refuse("upload")

    def read(self, array: Array) -> Array:
        """Refused."""
        self._refuse("download")

    def write(self, array: Array, values: Array) -> None:
        """Refused."""
        self._refuse("upload")

    def launch(self, source: str, kernel: str, *arguments: object, **options: object) -> None:
        """Refused."""
        self._refuse(f"launch {kernel}")

    def multiply(self, *arguments: object, **options: object) -> None:
        """Refused."""
        self._refuse("multiply")

    def _refuse(self, what: str) -> NoReturn:
        raise DeviceError(f"device {self.device_id}: is here to plan with only, and cannot {what}")
