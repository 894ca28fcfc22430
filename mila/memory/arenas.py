"""Arenas: one allocation each, aligned, with every page touched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

#: What poisoned bytes hold: a NaN in every float dtype, -1 in every integer one.
POISON = 0xFF


class Arena:
    """One block from the allocator, seen from its first aligned byte.

    Every page is written at once, so that what fits at build still fits later.

    Args:
        allocate: gives a block of so many bytes.
        address_of: says where a block begins.
        fill: writes a value to every byte of a block.
        size: bytes that the arena has.
        alignment: of its first byte.
        value: what every byte holds at first.
    """

    def __init__(
        self,
        allocate: Callable[[int], NDArray[np.uint8]],
        address_of: Callable[[NDArray[np.uint8]], int],
        fill: Callable[[NDArray[np.uint8], int], None],
        size: int,
        alignment: int,
        value: int = 0,
    ) -> None:
        self._block = allocate(size + alignment)
        skip = -address_of(self._block) % alignment
        self.bytes: NDArray[np.uint8] = self._block[skip : skip + size]
        fill(self._block, value)

    @property
    def nbytes(self) -> int:
        """Bytes taken from the allocator."""
        return self._block.nbytes
