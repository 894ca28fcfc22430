"""Rotary position embeddings (Su et al. 2021) on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from mila.kernels.cuda.family import BLOCK, CudaFamily, rounded_block
from mila.kernels.cuda.row_positions import row_blocks, row_positions
from mila.kernels.signatures import Array

#: Frequencies of a launch; they are passed by value.
_MOST_FREQUENCIES: Final = 64

_FREQUENCIES: Final = np.dtype([("value", np.float64, _MOST_FREQUENCIES)], align=True)
_SIZES: Final = np.dtype(
    [
        ("length", np.int64),
        ("positions", np.int64),
        ("width", np.int32),
        ("heads", np.int32),
        ("size", np.int32),
        ("half", np.int32),
    ],
    align=True,
)


class CudaRope(CudaFamily):
    """Tables of angles and the rotation."""

    def rope_tables(self, cosine: Array | None, sine: Array | None, frequencies: Sequence[float]) -> None:
        """Fill those given (positions, R / 2) from the angles ``position * frequencies[i]``.

        Computed in float64 and rounded once to float32, beside any stored dtype.
        """
        for table, is_sine in ((cosine, False), (sine, True)):
            if table is None or not table.size:
                continue
            positions, half = table.shape
            for columns in row_blocks(half, _MOST_FREQUENCIES):
                values = np.zeros(1, _FREQUENCIES)
                count = columns.stop - columns.start
                values["value"][0, :count] = frequencies[columns]
                arguments = (
                    table,
                    np.int64(positions),
                    np.int32(half),
                    np.int32(columns.start),
                    np.int32(count),
                    values[0],
                    np.int32(is_sine),
                )
                self.launch("rope", "rope_table", table.dtype, self.blocks(positions * count), BLOCK, arguments)

    def rope(
        self,
        output: Array,
        x: Array,
        cosine: Array,
        sine: Array,
        starts: Sequence[int],
        heads: int,
        head_dim: int,
        inverse: bool,
        workspace: Array,
    ) -> None:
        """Rotate the first ``heads`` heads of ``x (B, T, W)``, copy the rest; ``output`` may be ``x``.

        ``(x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)``, and with the sine negated for ``inverse``. The workspace is
        not used.
        """
        batch, length, width = x.shape
        half = cosine.shape[1]
        threads = rounded_block(heads * half)
        positions_per_block = BLOCK // threads
        direction = np.float32(-1 if inverse else 1)
        for rows in row_blocks(batch if x.size else 0):
            count = (rows.stop - rows.start) * length
            sizes = np.array([(length, count, width, heads, head_dim, half)], _SIZES)[0]
            where = row_positions(starts[rows], ())
            self.launch(
                "rope",
                "rope",
                x.dtype,
                self.blocks(count, positions_per_block),
                (threads, positions_per_block),
                (output[rows], x[rows], cosine, sine, where, sizes, direction),
            )

    def rope_workspace(self, length: int, heads: int, head_dim: int) -> int:
        """Elements of ``rope``'s workspace: none."""
        return 0

    def bind_rope(
        self, output: Array, x: Array, cosine: Array, sine: Array, heads: int, head_dim: int, workspace: Array
    ) -> Callable[[int], None]:
        """``rope`` for one position, forward."""
        new, source = (array.reshape(1, 1, -1) for array in (output, x))

        def turn(position: int) -> None:
            self.rope(new, source, cosine, sine, (position,), heads, head_dim, False, workspace)

        return turn
