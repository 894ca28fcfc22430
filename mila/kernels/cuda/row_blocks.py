"""Grids of kernels whose blocks work on one row at a time."""

from __future__ import annotations

from mila.kernels.cuda.family import BLOCK, CudaFamily, ceiling, rounded_block
from mila.kernels.signatures import Array

#: Threads and blocks that a multiprocessor runs at once.
_THREADS_AT_ONCE = 2048
_BLOCKS_AT_ONCE = 32
#: Bytes of a vector, the widest access of a thread.
VECTOR_BYTES = 16


class CudaRowBlocks(CudaFamily):
    """What the families of such kernels share."""

    def row_blocks(self, rows: int, block: int) -> int:
        """Blocks of ``block`` threads for independent rows: as many as run at once, or fewer.

        Blocks may be much smaller than those of flat loops; then more of them are needed to keep memory busy.
        """
        at_once = max(1, min(_BLOCKS_AT_ONCE, _THREADS_AT_ONCE // block))
        return min(rows, self.launcher.multiprocessor_count * at_once)


def row_block(x: Array, most: int = BLOCK) -> int:
    """Threads for a row of ``x``: one for each vector, whether rows are aligned or not; at most ``most``."""
    return rounded_block(ceiling(x.shape[-1] * x.dtype.itemsize, VECTOR_BYTES), most)
