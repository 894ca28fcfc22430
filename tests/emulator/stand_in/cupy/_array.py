"""Arrays: a NumPy view of device memory that only queued work looks into."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tests.emulator.arguments import Range, Usage

from .cuda.device import Device
from .cuda.memory import MemoryPointer, alloc
from .cuda.stream import Stream, current

_NO_CONVERSION = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
)


class ndarray:  # noqa: N801  CuPy's name
    """An array on the device.

    Args:
        shape: Sizes of the axes.
        dtype: Type of the elements.
        memptr: Memory to lie over; new memory if None.
        strides: Bytes from one element to the next along each axis; C order if None.
        order: ``C`` or ``F``, where ``strides`` is None.
    """

    __array_priority__ = 100

    def __init__(
        self,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = float,
        memptr: MemoryPointer | None = None,
        strides: tuple[int, ...] | None = None,
        order: Any = "C",
    ) -> None:
        sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.data = alloc(math.prod(sizes) * self.dtype.itemsize) if memptr is None else memptr
        room = self.data.mem.size - (self.data.ptr - self.data.mem.ptr)
        raw = memoryview((ctypes.c_char * room).from_address(self.data.ptr))
        self._view: NDArray[Any] = np.ndarray(sizes, self.dtype, raw, 0, strides, order)

    shape = property(lambda self: self._view.shape)
    strides = property(lambda self: self._view.strides)
    size = property(lambda self: self._view.size)
    ndim = property(lambda self: self._view.ndim)
    itemsize = property(lambda self: self._view.itemsize)
    nbytes = property(lambda self: self._view.nbytes)
    flags = property(lambda self: self._view.flags)
    device = property(lambda self: Device(0))
    T = property(lambda self: self.transpose())

    def __len__(self) -> int:
        return len(self._view)

    def __array__(self, *arguments: Any, **options: Any) -> NDArray[Any]:
        """Refuse what CuPy refuses."""
        raise TypeError(_NO_CONVERSION)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """How others find its memory."""
        return {"data": (self.data.ptr, False), "shape": self.shape, "typestr": self.dtype.str, "version": 3}

    @property
    def memory_range(self) -> Range:
        """From the first byte to behind the last, for the emulator; no name of CuPy's."""
        if not self._view.size:
            return self.data.ptr, self.data.ptr
        low, high = np.lib.array_utils.byte_bounds(self._view)
        return low, high

    def get(
        self,
        stream: Stream | None = None,
        order: Any = "C",
        out: NDArray[Any] | None = None,
        blocking: bool = True,
    ) -> NDArray[Any]:
        """Copy to the host; without ``blocking``, the result is there when the stream was waited for."""
        result = np.empty(self._view.shape, self.dtype, order) if out is None else out
        if result.shape != self._view.shape or result.dtype != self.dtype:
            raise ValueError(f"Shape or dtype mismatch: {result.shape} {result.dtype}, {self._view.shape} {self.dtype}")
        chosen = current(stream)
        chosen.queue.enqueue("ndarray.get", lambda: np.copyto(result, self._view), Usage(reads=(self.memory_range,)))
        if blocking:
            chosen.synchronize()
        return result

    def set(self, arr: NDArray[Any], stream: Stream | None = None) -> None:
        """Copy from the host. Pageable memory is read at once, as the driver stages it."""
        if arr.shape != self._view.shape or arr.dtype != self.dtype:
            raise ValueError(f"Shape or dtype mismatch: {arr.shape} {arr.dtype}, {self._view.shape} {self.dtype}")
        values = arr.copy()
        self._write("ndarray.set", lambda: np.copyto(self._view, values), stream)

    def fill(self, value: Any) -> None:
        """Set every element."""
        self._write("ndarray.fill", lambda: self._view.fill(value), None)

    def copy(self, order: Any = "C") -> ndarray:
        """Return a copy in new memory."""
        result = ndarray(self._view.shape, self.dtype, order=order)
        usage = Usage(reads=(self.memory_range,), writes=(result.memory_range,))
        current(None).queue.enqueue("ndarray.copy", lambda: np.copyto(result._view, self._view), usage)
        return result

    def reshape(self, *shape: Any) -> ndarray:
        """Return a view of another shape."""
        return self._of(self._view.reshape(*shape))

    def view(self, dtype: DTypeLike | None = None) -> ndarray:
        """Return a view, of other elements if asked for."""
        return self._of(self._view.view() if dtype is None else self._view.view(dtype))

    def ravel(self) -> ndarray:
        """Return a view with one axis."""
        return self._of(self._view.reshape(-1))

    def transpose(self, *axes: Any) -> ndarray:
        """Return a view with its axes in another order."""
        return self._of(self._view.transpose(*axes))

    def __getitem__(self, key: Any) -> ndarray:
        """Return a view; indices that would need a copy are refused."""
        keys = key if isinstance(key, tuple) else (key,)
        return self._of(self._view[keys if ... in keys else (*keys, ...)])

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            raise TypeError(f"Unsupported type {type(value)}")
        target = self[key]
        if not isinstance(value, ndarray):
            target.fill(value)
            return
        usage = Usage(reads=(value.memory_range,), writes=(target.memory_range,))
        current(None).queue.enqueue("ndarray.__setitem__", lambda: np.copyto(target._view, value._view), usage)

    def _write(self, name: str, action: Any, stream: Stream | None) -> None:
        current(stream).queue.enqueue(name, action, Usage(writes=(self.memory_range,)))

    def _of(self, view: NDArray[Any]) -> ndarray:
        if view.size and not np.may_share_memory(view, self._view):
            raise NotImplementedError("the stand-in makes views only: this needs a copy")
        offset = view.__array_interface__["data"][0] - self.data.ptr if view.size else 0
        return ndarray(view.shape, view.dtype, self.data + offset, view.strides)


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = float, order: Any = "C") -> ndarray:
    """Return new memory; every byte is 0xff."""
    return ndarray(shape, dtype, order=order)


def full(shape: int | tuple[int, ...], fill_value: Any, dtype: DTypeLike | None = None, order: Any = "C") -> ndarray:
    """Return an array of one value."""
    result = empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, order)
    result.fill(fill_value)
    return result


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike = float, order: Any = "C") -> ndarray:
    """Return an array of zeros."""
    return full(shape, 0, dtype, order)


def ones(shape: int | tuple[int, ...], dtype: DTypeLike = float, order: Any = "C") -> ndarray:
    """Return an array of ones."""
    return full(shape, 1, dtype, order)


def empty_like(a: ndarray, dtype: DTypeLike | None = None) -> ndarray:
    """Return new memory of an array's shape."""
    return empty(a.shape, a.dtype if dtype is None else dtype)


def zeros_like(a: ndarray, dtype: DTypeLike | None = None) -> ndarray:
    """Return zeros of an array's shape."""
    return zeros(a.shape, a.dtype if dtype is None else dtype)


def asarray(a: Any, dtype: DTypeLike | None = None) -> ndarray:
    """Copy an array of the host to the device; one of the device is returned as it is."""
    if isinstance(a, ndarray):
        if dtype is not None and np.dtype(dtype) != a.dtype:
            raise NotImplementedError("the stand-in converts nothing on the device")
        return a
    host = np.asarray(a, dtype)
    result = ndarray(host.shape, host.dtype)
    result.set(host)
    return result


def asnumpy(a: Any, stream: Stream | None = None) -> NDArray[Any]:
    """Copy an array to the host."""
    return a.get(stream) if isinstance(a, ndarray) else np.asarray(a)
