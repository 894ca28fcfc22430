"""What a launch must look like, as far as no device is needed to say so."""

from __future__ import annotations

from typing import Any

import numpy as np

from mila.devices.kernel_files import Parameter
from mila.errors import DeviceError
from mila.kernels.cuda.family import Argument, Size

_MOST_THREADS = 1024
_MOST_THREADS_ALONG = (1024, 1024, 64)
_MOST_BLOCKS_ALONG = (2**31 - 1, 65535, 65535)


def along_axes(size: Size) -> tuple[int, int, int]:
    """A size along x, y and z; what is missing is 1."""
    given = (size,) if isinstance(size, int) else size
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def check_sizes(
    kernel: str, blocks: tuple[int, int, int], threads: tuple[int, int, int], shared_bytes: int, most_shared_bytes: int
) -> None:
    """Raise :class:`DeviceError` where a grid, a block or its dynamic shared memory is none, or too large."""
    for what, sizes, least, limits in (
        ("blocks", blocks, 0, _MOST_BLOCKS_ALONG),
        ("threads", threads, 1, _MOST_THREADS_ALONG),
    ):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if not least <= size <= limit:
                raise DeviceError(f"{kernel}: expected {least} to {limit:,} {what} along {axis}, got {size:,}")
    count = threads[0] * threads[1] * threads[2]
    if count > _MOST_THREADS:
        raise DeviceError(f"{kernel}: expected at most {_MOST_THREADS} threads in a block, got {count}")
    if not 0 <= shared_bytes <= most_shared_bytes:
        raise DeviceError(f"{kernel}: expected 0 to {most_shared_bytes:,} bytes of shared memory, got {shared_bytes:,}")


def refuse_scalar(parameter: Parameter, argument: object) -> str | None:
    """Why an argument does not fit a parameter that is no pointer; None where it does."""
    if not isinstance(argument, np.generic):
        return f"expected a NumPy scalar, got {type(argument).__name__}"
    if parameter.dtype is None:
        return None if isinstance(argument, np.void) else f"expected a structure, got {argument.dtype.name}"
    if argument.dtype != parameter.dtype:
        return f"expected {parameter.dtype.name}, got {argument.dtype.name}"
    return None


def passed(argument: Argument) -> Any:
    """An argument as CuPy takes it: structures as arrays of one element."""
    return np.asarray(argument) if isinstance(argument, np.void) else argument
