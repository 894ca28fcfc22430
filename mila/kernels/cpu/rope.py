"""Rotary position embeddings (Su et al. 2021), half-split: element i turns together with i + rotary_dim / 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.cpu.workers import INLINE_ELEMENTS, split, tile_elements, worker_workspace
from mila.kernels.signatures import Array

#: Positions whose angles are computed at a time.
TABLE_ROWS: Final = 64
#: Copies of the rotated heads in scratch memory: the pairs, and at most as much for the angles.
ROW_COPIES: Final = 2


class CpuRope(CpuFamily):
    """Tables of angles and the rotation."""

    def rope_tables(self, cosine: Array | None, sine: Array | None, frequencies: Sequence[float]) -> None:
        """Fill those given (positions, R / 2) from the angles ``position * frequencies[i]``.

        Computed in float64 and rounded once to the stored dtype.
        """
        per_position = np.asarray(frequencies, np.float64)
        for table, function in ((cosine, np.cos), (sine, np.sin)):
            if table is not None:
                for start in range(0, len(table), TABLE_ROWS):
                    stop = min(len(table), start + TABLE_ROWS)
                    table[start:stop] = function(np.arange(start, stop, dtype=np.float64)[:, None] * per_position)

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
        row = ROW_COPIES * heads * head_dim
        parts = 1 if batch * length * heads * head_dim < INLINE_ELEMENTS else min(self.workers.threads, length)
        parts = min(parts, needed // row)
        step = max(1, needed // max(2, parts) // row)

        def work(index: int) -> None:
            start, stop = split(length, index, parts)
            scratch = worker_workspace(workspace[:needed], index, parts)
            for low in range(start, stop, step):
                high = min(stop, low + step)
                turn = _Turn(scratch, high - low, heads, cosine.shape[1])
                spread = None
                for b in range(batch):
                    if starts[b] != spread:
                        spread = starts[b]
                        angles = slice(spread + low, spread + high)
                        turn.set_angles(cosine[angles], sine[angles], inverse)
                    turn.apply(output[b, low:high], x[b, low:high], head_dim)

        self.run(work, parts)

    def rope_workspace(self, length: int, heads: int, head_dim: int) -> int:
        """Elements of ``rope``'s workspace: tiles of the rotated heads and their angles."""
        return tile_elements(length, ROW_COPIES * heads * head_dim)


class _Turn:
    """A block of positions in scratch memory: pairs as complex numbers, which one multiplication turns."""

    __slots__ = ("_angles", "_pairs")

    def __init__(self, scratch: Array, rows: int, heads: int, half: int) -> None:
        complex_dtype = np.result_type(scratch.dtype, np.complex64)
        pairs, angles = rows * heads * half, rows * half
        numbers = scratch[: 2 * (pairs + angles)].view(complex_dtype)
        self._pairs = numbers[:pairs].reshape(rows, heads, half)
        self._angles = numbers[pairs:].reshape(rows, half)

    def set_angles(self, cosine: Array, sine: Array, inverse: bool) -> None:
        """Take ``cosine``, ``sine`` (rows, half)."""
        np.copyto(self._angles.real, cosine)
        if inverse:
            np.negative(sine, out=self._angles.imag)
        else:
            np.copyto(self._angles.imag, sine)

    def apply(self, output: Array, x: Array, head_dim: int) -> None:
        """Turn the first heads of ``x (rows, W)``; what remains is copied."""
        rows, heads, half = self._pairs.shape
        width = heads * head_dim
        source, turned = (array[:, :width].reshape(rows, heads, head_dim) for array in (x, output))
        if not np.may_share_memory(output, x):
            np.copyto(output[:, width:], x[:, width:])
            np.copyto(turned[..., 2 * half :], source[..., 2 * half :])
        np.copyto(self._pairs.real, source[..., :half])
        np.copyto(self._pairs.imag, source[..., half : 2 * half])
        np.multiply(self._pairs, self._angles[:, None], out=self._pairs)
        np.copyto(turned[..., :half], self._pairs.real)
        np.copyto(turned[..., half : 2 * half], self._pairs.imag)
