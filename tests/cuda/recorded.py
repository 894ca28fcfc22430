"""A launcher that computes nothing: it checks launches as a device does, however large they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from mila.devices.kernel_files import kernels_of
from mila.kernels.cuda.family import SCRATCH_BYTES, DType
from mila.kernels.signatures import Array
from tests.emulator.module import MOST_BLOCKS_ALONG, MOST_SHARED_MEMORY, MOST_THREADS


class RecordedLaunches:
    """What kernel families ask of a device; arrays are NumPy's, of which nothing is read or written.

    Attributes:
        grids: of all launches, in order, with the name of the kernel.
    """

    multiprocessor_count = 132
    most_shared_bytes = MOST_SHARED_MEMORY

    def __init__(self) -> None:
        self.scratch: Array = np.zeros(SCRATCH_BYTES, np.uint8)
        self.grids: list[tuple[str, tuple[int, ...]]] = []

    def launch(self, source: str, kernel: str, dtype: DType, *launch: Any) -> None:
        """Check number and dtypes of arguments against the kernel's text, and all sizes against the limits."""
        grid, block, arguments, shared_bytes = (*launch, 0)[:4]
        parameters = kernels_of(source, dtype)[kernel]
        assert len(arguments) == len(parameters)
        for parameter, argument in zip(parameters, arguments, strict=True):
            if argument is not None and parameter.dtype is not None:
                assert argument.dtype == parameter.dtype, f"{kernel}: {parameter.type}"
        blocks, threads = ((size,) if isinstance(size, int) else size for size in (grid, block))
        for size, limit in zip(blocks, MOST_BLOCKS_ALONG, strict=False):
            assert 0 <= size <= limit, f"{kernel}: a grid of {blocks}"
        assert 1 <= np.prod(threads) <= MOST_THREADS, f"{kernel}: blocks of {threads}"
        assert shared_bytes <= MOST_SHARED_MEMORY, f"{kernel}: {shared_bytes} bytes of shared memory"
        self.grids.append((kernel, blocks))

    def multiply(self, output: Array, a: Array, b: Array, **options: Any) -> None:
        """Nothing: matrix products are cuBLAS's."""

    def read(self, array: Array) -> Array:
        """As many zeros."""
        return np.zeros(array.shape, array.dtype)

    def write(self, array: Array, values: Array) -> None:
        """Check the size."""
        assert array.shape == values.shape
