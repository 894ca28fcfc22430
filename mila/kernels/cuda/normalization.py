"""Layer norm and RMS norm over the last axis."""

from __future__ import annotations

import numpy as np

from mila.kernels.cuda.column_sums import CudaColumnSums, chunk_bound, rows_per_chunk
from mila.kernels.cuda.family import WARP, Argument, ceiling
from mila.kernels.cuda.row_blocks import row_block
from mila.kernels.signatures import Array

#: Threads of the largest block.
_MOST_THREADS = 512
#: Chunks of rows of a backward pass, each a block; and rows of a chunk at least.
_MOST_CHUNKS = 256
_LEAST_ROWS = 16
#: Elements of a row that a thread holds in a backward pass, and warps of a block, which may share a row.
_HELD = 8
_WARPS = 16
#: Most shared memory for the sums of a block; wider rows are summed where the sums end up.
_MOST_SHARED_BYTES = 98304


class CudaNormalization(CudaColumnSums):
    """The norms of ``NormalizationKernels`` in CUDA C++."""

    def layer_norm_forward(
        self,
        output: Array,
        mean: Array | None,
        rstd: Array | None,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        epsilon: float,
    ) -> None:
        """``y = (x - mean) * rstd * weight + bias`` with biased variance; no weight is a weight of ones.

        ``mean``, ``rstd``: (N,) float32, not written where ``None``; ``output`` may be ``x``.
        """
        rows, columns = _sizes(x)
        numbers = np.int64(rows), np.int64(columns), np.float32(epsilon)
        arguments: list[Argument] = [output, mean, rstd, x, weight, bias, *numbers]
        block = row_block(x, _MOST_THREADS)
        self.launch("normalization", "layer_norm_forward", x.dtype, self.row_blocks(rows, block), block, arguments)

    def layer_norm_backward(
        self,
        dx: Array,
        dweight: Array | None,
        dbias: Array | None,
        mean: Array,
        rstd: Array,
        dy: Array,
        x: Array,
        weight: Array | None,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """``dx = rstd (g - mean(g) - xhat mean(g xhat))``, ``g = dy weight``.

        ``dweight`` and ``dbias`` are each ``None`` where that parameter is frozen or does not exist; ``accumulate``
        speaks of them.
        """
        self._norm_backward(
            "layer_norm_backward", dx, dweight, dbias, [mean, rstd, dy, x, weight], [], accumulate, workspace
        )

    def layer_norm_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``layer_norm_backward``'s workspace: for each chunk of rows the sums of both parameters."""
        return 2 * chunk_bound(rows, _LEAST_ROWS, _MOST_CHUNKS) * columns

    def rms_norm_forward(
        self,
        output: Array,
        rstd: Array | None,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        epsilon: float,
        unit_offset: float,
        workspace: Array,
    ) -> None:
        """``y = x * rstd * (weight + unit_offset) + bias``, ``rstd = 1 / sqrt(mean(x²) + epsilon)``.

        Without a weight there is no factor. ``rstd``: (N,) float32, not written where ``None``; ``output`` may be
        ``x``.
        """
        rows, columns = _sizes(x)
        numbers = np.int64(rows), np.int64(columns), np.float32(epsilon), np.float32(unit_offset)
        arguments: list[Argument] = [output, rstd, x, weight, bias, *numbers]
        block = row_block(x, _MOST_THREADS)
        self.launch("normalization", "rms_norm_forward", x.dtype, self.row_blocks(rows, block), block, arguments)

    def rms_norm_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``rms_norm_forward``'s workspace: none."""
        return 0

    def rms_norm_backward(
        self,
        dx: Array,
        dweight: Array | None,
        dbias: Array | None,
        rstd: Array,
        dy: Array,
        x: Array,
        weight: Array | None,
        unit_offset: float,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """``dx = rstd g - x rstd³ mean(g x)``, ``g = dy (weight + unit_offset)``.

        ``dweight`` and ``dbias`` are each ``None`` where that parameter is frozen or does not exist.
        """
        offset = [np.float32(unit_offset)]
        self._norm_backward(
            "rms_norm_backward", dx, dweight, dbias, [rstd, dy, x, weight], offset, accumulate, workspace
        )

    def rms_norm_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``rms_norm_backward``'s workspace: for each chunk of rows the sums of both parameters."""
        return self.layer_norm_backward_workspace(rows, columns)

    def _norm_backward(
        self,
        kernel: str,
        dx: Array,
        dweight: Array | None,
        dbias: Array | None,
        inputs: list[Array | None],
        offset: list[np.float32],
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """Compute ``dx`` and each chunk's sums in one pass, then add the sums up.

        Rows are read once if the threads of a block hold them in registers, and twice if they are wider.
        """
        rows, columns = _sizes(dx)
        per_chunk = rows_per_chunk(rows, _LEAST_ROWS, _MOST_CHUNKS)
        chunks = ceiling(rows, per_chunk)
        sums = workspace[: 2 * chunks * columns].reshape(2, chunks * columns)
        gradients = dweight, dbias
        partials = [None if gradient is None else sums[i] for i, gradient in enumerate(gradients)]
        team = ceiling(columns, WARP * _HELD)
        if team <= _WARPS:
            teams = _WARPS // team
            block, shared_bytes, division = WARP * team * teams, 4 * teams * columns, team
        else:
            kernel, block = f"wide_{kernel}", row_block(dx, _MOST_THREADS)
            shared_bytes = 4 * columns * sum(gradient is not None for gradient in gradients)
            in_shared = 0 < shared_bytes <= _MOST_SHARED_BYTES
            shared_bytes, division = shared_bytes if in_shared else 0, int(in_shared)
        sizes = np.int64(rows), np.int64(columns)
        arguments: list[Argument] = [dx, *partials, *inputs, *sizes, *offset, np.int64(per_chunk), np.int32(division)]
        self.launch("normalization", kernel, dx.dtype, chunks, block, arguments, shared_bytes)
        for gradient, partial in zip(gradients, partials, strict=True):
            if gradient is not None and partial is not None:
                self.add_chunks(gradient, partial, chunks, columns, accumulate)


def _sizes(x: Array) -> tuple[int, int]:
    """Rows and columns."""
    return x.size // x.shape[-1], x.shape[-1]
