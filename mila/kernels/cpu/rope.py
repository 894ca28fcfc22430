"""Rotary position embeddings (Su et al. 2021), half-split: element i turns together with i + rotary_dim / 2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.cpu.workers import INLINE_ELEMENTS, split, tile_elements, worker_workspace
from mila.kernels.signatures import Array

#: Positions whose angles are computed at a time.
TABLE_ROWS = 64


class CpuRope(CpuFamily):
    """Tables of angles and the rotation."""

    def rope_tables(self, cosine: Array, sine: Array, theta: float, rotary_dim: int, head_dim: int) -> None:
        """Fill ``cosine``, ``sine`` (positions, rotary_dim / 2) with angles ``position * theta ** (-2 i / head_dim)``.

        Computed in float64 and rounded once to the stored dtype.
        """
        frequencies = np.float64(theta) ** (np.arange(rotary_dim // 2, dtype=np.float64) * (-2.0 / head_dim))
        for start in range(0, len(cosine), TABLE_ROWS):
            stop = min(len(cosine), start + TABLE_ROWS)
            angles = np.arange(start, stop, dtype=np.float64)[:, None] * frequencies
            cosine[start:stop] = np.cos(angles)
            sine[start:stop] = np.sin(angles)

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

        ``(x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)``, and with the sine negated for ``inverse``.
        """
        batch, length, _ = x.shape
        needed = self.rope_workspace(length, heads, head_dim)
        rows = batch * length
        parts = 1 if rows * heads * head_dim < INLINE_ELEMENTS else min(self.workers.threads, rows)
        parts = min(parts, max(1, needed // (heads * head_dim)))

        def work(index: int) -> None:
            scratch = worker_workspace(workspace[:needed], index, parts)
            start, stop = split(rows, index, parts)
            step = scratch.size // (heads * head_dim)
            while start < stop:
                b, position = divmod(start, length)
                count = min(step, stop - start, length - position)
                angles = slice(starts[b] + position, starts[b] + position + count)
                block = np.s_[b, position : position + count]
                _rotate(output[block], x[block], cosine[angles], sine[angles], heads, head_dim, inverse, scratch)
                start += count

        self.run(work, parts)

    def rope_workspace(self, length: int, heads: int, head_dim: int) -> int:
        """Elements of ``rope``'s workspace: one tile of rows of the rotated heads."""
        return tile_elements(length, heads * head_dim)


def _rotate(
    output: Array, x: Array, cosine: Array, sine: Array, heads: int, head_dim: int, inverse: bool, scratch: Array
) -> None:
    """Rotate ``x (rows, W)`` into ``output`` by the angles of ``cosine``, ``sine`` (rows, rotary_dim / 2)."""
    rows, half = cosine.shape
    width = heads * head_dim
    if not np.may_share_memory(output, x):
        np.copyto(output[:, width:], x[:, width:])
        split_shape = (rows, heads, head_dim)
        np.copyto(
            output[:, :width].reshape(split_shape)[:, :, 2 * half :],
            x[:, :width].reshape(split_shape)[:, :, 2 * half :],
        )
    pairs = x[:, :width].reshape(rows, heads, head_dim)[:, :, : 2 * half].reshape(rows, heads, 2, half)
    turned = output[:, :width].reshape(rows, heads, head_dim)[:, :, : 2 * half].reshape(rows, heads, 2, half)
    crossed = scratch[: rows * heads * 2 * half].reshape(rows, heads, 2, half)
    np.multiply(pairs, sine[:, None, None], out=crossed)
    np.multiply(pairs, cosine[:, None, None], out=turned)
    first, second = (np.add, np.subtract) if inverse else (np.subtract, np.add)
    first(turned[:, :, 0], crossed[:, :, 1], out=turned[:, :, 0])
    second(turned[:, :, 1], crossed[:, :, 0], out=turned[:, :, 1])
