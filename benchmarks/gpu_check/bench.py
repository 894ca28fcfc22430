"""A device of Mila with a clock, arrays to measure on, and the rate at which it copies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu_check.settings import Settings
from benchmarks.gpu_check.timing import MilaClock, Run, median_milliseconds
from mila.devices import ExecutionContext
from mila.kernels.signatures import Array
from mila.memory.storage import DType, network_dtype

#: Elements that are drawn; larger arrays repeat them.
_DRAWN = 1 << 16


@dataclass(frozen=True)
class Call:
    """A kernel call, and what it has to move: each array that it reads once, each that it writes once.

    Attributes:
        what: the kernel with its sizes.
        run: queues it.
        read, written: arrays; one that is updated is in both.
    """

    what: str
    run: Run
    read: tuple[Array, ...]
    written: tuple[Array, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes of the arrays of the call; workspaces are the kernel's own affair."""
        return sum(array.nbytes for array in (*self.read, *self.written))


class Bench:
    """A CUDA device of Mila.

    Args:
        settings: which, and how often calls are repeated.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.context = ExecutionContext(settings.device)
        self.device: Any = self.context.device  # beyond what all devices have: stream and pool
        self.kernels: Any = self.context.kernels
        self.clock = MilaClock(self.device, settings.flush_bytes)

    # ------------------------------------------------------------------ arrays

    def empty(self, *shape: int, dtype: DType) -> Array:
        """Uninitialised."""
        size = math.prod(shape) * dtype.itemsize
        block: Array = self.device.allocate(size) if size else self.device.no_bytes
        return block.view(dtype).reshape(shape)

    def values(self, *shape: int, dtype: DType) -> Array:
        """Normal numbers, repeated: to draw them all would take longer than what is measured."""
        count = math.prod(shape)
        generator = np.random.default_rng(0)
        return self._repeated(generator.standard_normal(min(count, _DRAWN), np.float32).astype(dtype), shape)

    def ids(self, count: int, limit: int, *, permuted: bool = False) -> Array:
        """Ids below ``limit``, int32; ``permuted``: each of them once, and ``count`` is ``limit``."""
        generator = np.random.default_rng(0)
        drawn = generator.permutation(limit) if permuted else generator.integers(0, limit, count)
        array: Array = self.device.to_device(drawn.astype(np.int32))
        return array

    def _repeated(self, block: Array, shape: tuple[int, ...]) -> Array:
        array = self.empty(*shape, dtype=block.dtype)
        flat = array.reshape(-1)
        self.device.upload(flat[: block.size], block)
        done = block.size
        while done < flat.size:
            step = min(done, flat.size - done)
            self.kernels.copy(flat[done : done + step], flat[:step])
            done += step
        return array

    def release(self) -> None:
        """Give what the pool keeps back to the driver."""
        self.device.synchronize()
        self.device.pool.free_all_blocks()

    # ------------------------------------------------------------------ measuring

    def milliseconds(self, run: Run) -> float:
        """The median time of a call."""
        return median_milliseconds(self.clock, run, self.settings.warmups, self.settings.rounds)

    def copy_rate(self) -> float:
        """Bytes per second, read and written, of the driver's own copy on the device: what shares are shares of."""
        source, target = (self.device.allocate(self.settings.array_bytes) for _ in range(2))
        self.device.set_bytes(source, 0)
        stream, size = self.device.stream, source.nbytes
        time = self.milliseconds(lambda: target.data.copy_from_device_async(source.data, size, stream))
        return 1e3 * float(source.nbytes + target.nbytes) / time

    def product_rate(self, dtype: DType) -> float:
        """Operations per second of a product of two square matrices, through cuBLAS."""
        size = self.settings.product_size
        a, b = (self.values(size, size, dtype=dtype) for _ in range(2))
        output = self.empty(size, size, dtype=dtype)
        milliseconds = self.milliseconds(lambda: self.device.multiply(output, a, b, transpose_b=True))
        return 1e3 * 2 * size * size * size / milliseconds


class Arrays:
    """Arrays of one stored dtype for kernel calls, and the calls."""

    def __init__(self, bench: Bench, dtype: str) -> None:
        self.bench = bench
        self.dtype = network_dtype(dtype)
        self.settings = bench.settings

    def values(self, *shape: int) -> Array:
        """Stored values."""
        return self.bench.values(*shape, dtype=self.dtype)

    def empty(self, *shape: int) -> Array:
        """For stored results."""
        return self.bench.empty(*shape, dtype=self.dtype)

    def statistics(self, *shape: int) -> Array:
        """Numbers in float32, whatever is stored."""
        return self.bench.values(*shape, dtype=np.dtype(np.float32))

    def workspace(self, elements: int) -> Array:
        """Scratch of a kernel, float32."""
        return self.bench.empty(elements, dtype=np.dtype(np.float32))

    def rows(self, columns: int, itemsize: int | None = None) -> int:
        """Rows of an array of the size that settings ask for."""
        return max(1, self.settings.array_bytes // (columns * (itemsize or self.dtype.itemsize)))

    def sequences(self, columns: int) -> tuple[int, int]:
        """Rows B and positions T of such an array (B, T, C)."""
        rows = self.rows(columns)
        length = min(rows, self.settings.length_of_rows)
        return rows // length, length

    def label(self, method: str, array: Array, note: str = "") -> str:
        """What rows call a call."""
        return " ".join(filter(None, (method, self.dtype.name, str(tuple(array.shape)), note)))

    def call(
        self,
        method: str,
        *,
        writes: tuple[str, ...] = (),
        updates: tuple[str, ...] = (),
        note: str = "",
        ordered: bool = True,
        **arguments: Any,
    ) -> Call:
        """A call of a kernel by its parameters' names.

        Args:
            method: of the kernel table.
            writes: parameters that are written and not read.
            updates: those that are both. All other arrays but ``workspace`` are read.
            note: what tells the call from others of the kernel with the same sizes.
            ordered: whether sums are in a fixed order, as they are by default.
            **arguments: of the kernel.
        """
        kernels = self.bench.kernels if ordered else self.bench.kernels.unordered()
        kernel: Callable[..., object] = getattr(kernels, method)
        arrays = {name: value for name, value in arguments.items() if name != "workspace" and hasattr(value, "nbytes")}
        largest = max(arrays.values(), key=lambda array: array.nbytes)
        return Call(
            self.label(method, largest, note),
            lambda: kernel(**arguments),
            tuple(array for name, array in arrays.items() if name not in writes),
            tuple(array for name, array in arrays.items() if name in writes or name in updates),
        )
