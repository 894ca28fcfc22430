"""CUDA kernels that take NumPy arrays: the cases of the CPU kernels run on them unchanged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Array, Kernels

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

#: Parameters that are float32 where the network is stored in less: row statistics, moments, losses, workspaces.
STATISTICS = frozenset(
    ("workspace", "mean", "rstd", "log_sum_exp", "loss", "dloss", "first_moment", "second_moment", "scales")
)
HALVES = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
#: Elements of float64 that suffice for the CPU's kernels on small shapes.
_REFERENCE_WORKSPACE = 1 << 20


class OnDevice:
    """The kernels of a device as if they took NumPy arrays.

    Every call copies the arrays to the device, runs there, and copies them back. Arrays that share memory share it on
    the device, so that kernels work in place as they do on the CPU.

    Arrays of half precision are float32 on the device where they are :data:`STATISTICS`. Arrays of float64 belong to
    references: the CPU computes those.

    Args:
        device: where the arrays go.
        kernels: what runs there; the device's own if None.
    """

    def __init__(self, device: CudaDevice, kernels: Kernels | None = None) -> None:
        self._device = device
        self._kernels = kernels or device.kernels
        self._references = CpuKernels(1)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._kernels, name)
        if not callable(method):
            return method

        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            given = {**dict(zip(_parameters(method), arguments, strict=False)), **named}
            if not any(isinstance(value, np.ndarray) for value in given.values()):
                return method(*arguments, **named)
            if any(array.dtype == np.float64 for _, array in _arrays_of(given)):
                spare = {"workspace": np.empty(_REFERENCE_WORKSPACE)} if "workspace" in given else {}
                return getattr(self._references, name)(**{**given, **spare})
            arrays = _Arrays(self._device, given)
            result = method(**arrays.on_device())
            if name.startswith("bind_"):
                return arrays.around(result)
            arrays.bring_back()
            return result

        return call


class _Arrays:
    """The arguments of one call, on both sides."""

    def __init__(self, device: CudaDevice, given: Mapping[str, Any]) -> None:
        self._device = device
        self._given = given
        self._owners: dict[int, Array] = {}  # the arrays whose memory it is, by address
        self._dtypes: dict[int, np.dtype[Any]] = {}
        self._copies: dict[int, Array] = {}
        for name, array in _arrays_of(given):
            assert array.flags.c_contiguous, f"{name}: kernels take C-contiguous arrays"
            owner = _owner(array)
            widened = name in STATISTICS and array.dtype in HALVES
            self._owners[id(owner)] = owner
            self._dtypes[id(owner)] = np.dtype(np.float32) if widened else array.dtype
        for key, owner in self._owners.items():
            self._copies[key] = self._device.to_device(owner.astype(self._dtypes[key]))

    def on_device(self) -> dict[str, Any]:
        """The arguments with device arrays in place of NumPy's."""
        return {**self._given, **{name: self._copy_of(array) for name, array in _arrays_of(self._given)}}

    def _copy_of(self, array: Array) -> Array:
        owner = _owner(array)
        copy = self._copies[id(owner)]
        if not array.size:
            return copy.reshape(-1)[:0].reshape(array.shape)
        start = (array.ctypes.data - owner.ctypes.data) // array.dtype.itemsize
        return copy.reshape(-1)[start : start + array.size].reshape(array.shape)

    def bring_back(self) -> None:
        """Copy everything from the device."""
        for key, owner in self._owners.items():
            values = self._device.download(self._copies[key])
            with np.errstate(over="ignore"):  # a workspace may hold anything, also what half precision does not
                owner[...] = values

    def around(self, bound: Callable[..., Any]) -> Callable[..., Any]:
        """A bound kernel that works on the NumPy arrays."""

        def call(*arguments: Any) -> Any:
            for key, owner in self._owners.items():
                self._device.upload(self._copies[key], owner)
            result = bound(*arguments)
            self.bring_back()
            return result

        return call


def _arrays_of(given: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    return ((name, value) for name, value in given.items() if isinstance(value, np.ndarray))


def _owner(array: Array) -> Array:
    """The array whose memory a view shows."""
    owner = array
    while isinstance(owner.base, np.ndarray) and owner.base.dtype == array.dtype:
        owner = owner.base
    assert owner.flags.c_contiguous
    return owner


def _parameters(method: Any) -> tuple[str, ...]:
    code = method.__code__
    names: tuple[str, ...] = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return names
