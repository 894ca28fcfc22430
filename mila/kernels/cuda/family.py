"""The base of all CUDA kernel families: what they need of a device, and the sizes of plain grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from mila.kernels.signatures import Array

DType = np.dtype[Any]

FLOAT32, BFLOAT16, FLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)

#: Stored dtypes that kernel files are compiled for, and the macro that chooses each.
DTYPE_MACROS: dict[DType, str] = {FLOAT32: "MILA_FLOAT32", BFLOAT16: "MILA_BFLOAT16", FLOAT16: "MILA_FLOAT16"}

#: Threads of a block of a kernel that has no reason for another number.
BLOCK = 256
#: Threads that run in step, `WARP` of the kernels.
WARP = 32
#: Blocks of a grid-stride loop per multiprocessor: full occupancy with blocks of 256 threads.
_BLOCKS_PER_MULTIPROCESSOR = 8

#: Bytes of the scratch that a device has for each thread.
SCRATCH_BYTES = 65536

#: What a launch takes: arrays of the device, NumPy scalars (structures too), ``None`` for a null pointer.
Argument = Array | np.generic | None
Size = int | tuple[int, ...]


class Launcher(Protocol):
    """What kernels need of a device; ``mila.devices.cuda`` has it, and nothing else knows CuPy.

    Work is queued on the device's own stream, in order; only ``read`` and ``write`` wait.
    """

    @property
    def multiprocessor_count(self) -> int:
        """How many multiprocessors the device has. No result may depend on it."""

    @property
    def most_shared_bytes(self) -> int | None:
        """Shared memory that a block may have; ``None`` where the device is not known. No result may depend on it."""

    @property
    def scratch(self) -> Array:
        """``SCRATCH_BYTES`` bytes (uint8) of the device for small lists and results; valid within one kernel call.

        Each thread of the host has its own: calls of other threads may come between the launches of one.
        """

    def launch(
        self,
        source: str,
        kernel: str,
        dtype: DType,
        grid: Size,
        block: Size,
        arguments: Sequence[Argument],
        shared_bytes: int = 0,
    ) -> None:
        """Queue a kernel; with no blocks (a zero in ``grid``) nothing happens.

        Args:
            source: the stem of the ``.cu`` file.
            kernel: the name of an ``extern "C"`` kernel in it.
            dtype: what ``stored_t`` is in the module.
            grid: blocks along x, y, z; missing ones are 1.
            block: threads along x, y, z; missing ones are 1.
            arguments: device arrays, ``None`` for a null pointer, NumPy scalars of exactly the parameter's type, and
                structures by value as scalars of an aligned structured dtype.
            shared_bytes: dynamic shared memory; the driver is asked for it.

        Raises:
            DeviceError: the launch cannot work; nothing was queued.
        """

    def multiply(
        self,
        output: Array,
        a: Array,
        b: Array,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        accumulate: bool = False,
    ) -> None:
        """``output (M, N) (+)= op(a) @ op(b)``, summed in float32 and rounded once.

        All row-major; rank 3, ``(batch, M, N)``, is a product for each member of the batch. ``a`` and ``b`` have one
        dtype, ``output`` the same or float32. An empty sum (K = 0) is zero.
        """

    def read(self, array: Array) -> Array:
        """A copy of a small device array in NumPy, after everything queued before."""

    def write(self, array: Array, values: Array) -> None:
        """Overwrite a small device array with NumPy ``values`` of its shape and dtype."""


class CudaFamily:
    """What the kernel families share. Stateless but for the device.

    Args:
        launcher: what launches, which may be shared.
        deterministic: whether the same call gives the same bits every time. If not, sums of floats are added up in any
            order where that is faster.
    """

    #: Stored dtypes of networks that CUDA kernels compute.
    dtypes: tuple[DType, ...] = tuple(DTYPE_MACROS)

    def __init__(self, launcher: Launcher, deterministic: bool = True) -> None:
        self.launcher = launcher
        self.is_deterministic = deterministic

    def launch(
        self,
        source: str,
        kernel: str,
        dtype: DType,
        grid: Size,
        block: Size,
        arguments: Sequence[Argument],
        shared_bytes: int = 0,
    ) -> None:
        """The launcher's."""
        self.launcher.launch(source, kernel, dtype, grid, block, arguments, shared_bytes)

    def blocks(self, count: int, per_block: int = BLOCK) -> int:
        """Blocks of a grid-stride loop over ``count`` items, ``per_block`` at a time: as many as run at once, or fewer.

        Only for loops whose items are independent: the number differs between devices.
        """
        return min(ceiling(count, per_block), self.launcher.multiprocessor_count * _BLOCKS_PER_MULTIPROCESSOR)


def ceiling(count: int, divisor: int) -> int:
    """``count / divisor``, rounded up."""
    return -(-count // divisor)


def rounded_block(columns: int, most: int = BLOCK) -> int:
    """Threads of a block that works on one row of ``columns`` elements: whole warps, at most ``most``."""
    return min(most, max(1, ceiling(columns, WARP)) * WARP)
