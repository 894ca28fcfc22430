"""Layer norm and RMS norm over the last axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.cpu.workers import TILE_ELEMENTS, split, tile_elements, worker_workspace
from mila.kernels.signatures import Array

#: Rows of C elements that each worker needs beside its tile in a backward pass: two sums and one product.
_SUM_ROWS = 3
#: Values that layer norm and RMS norm need for each row of a tile in a backward pass.
_ROW_VALUES = 2

#: ``tile(start, stop, scratch (n, C), sums (3, C), values (row_values * n,))`` adds to the first two rows of sums.
Tile = Callable[[int, int, Array, Array, Array], None]


class CpuNormTiles(CpuFamily):
    """The loop over row tiles of a norm's backward pass."""

    def sum_tiles(self, tile: Tile, rows: int, columns: int, row_values: int, workspace: Array) -> list[Array]:
        """Call ``tile`` for tiles that cover ``rows``; return each worker's sums (3, C), the third row being scratch.

        ``row_values``: elements that ``tile`` needs for each row beside the ``columns`` of its scratch.
        """
        fixed, per_row = _SUM_ROWS * columns, columns + row_values
        count = max(1, min(self.worker_count(rows, columns), workspace.size // (fixed + per_row)))
        room = (workspace.size // count - fixed) // per_row
        step = max(1, min(TILE_ELEMENTS // max(2, count) // columns, room))
        shares = [worker_workspace(workspace, index, count) for index in range(count)]
        worker_sums = [share[:fixed].reshape(_SUM_ROWS, columns) for share in shares]

        def task(index: int) -> None:
            sums, scratch = worker_sums[index], shares[index][fixed:]
            sums[:2].fill(0.0)
            start, stop = split(rows, index, count)
            for low in range(start, stop, step):
                size = min(stop - low, step)
                wide = scratch[: size * columns].reshape(size, columns)
                tile(low, low + size, wide, sums, scratch[size * columns : size * per_row])

        self.run(task, count)
        return worker_sums

    def project(self, output: Array, x: Array, weight: Array | None) -> None:
        """``output (N,) = x (N, C) @ weight``; no weight is a weight of ones."""
        if weight is None:
            self.row_sums(output, x)
        else:
            np.matmul(x, weight, out=output)


class CpuNormalization(CpuNormTiles):
    """The norms of ``NormalizationKernels`` in NumPy."""

    def layer_norm_forward(
        self,
        output: Array,
        mean: Array,
        rstd: Array,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        epsilon: float,
    ) -> None:
        """``y = (x - mean) * rstd * weight + bias`` with biased variance; no weight is a weight of ones.

        ``mean``, ``rstd``: (N,); ``output`` may be ``x``.
        """
        columns = x.shape[-1]
        target, source = output.reshape(-1, columns), x.reshape(-1, columns)

        def body(start: int, stop: int, scratch: Array) -> None:
            y, centre, spread = target[start:stop], mean[start:stop], rstd[start:stop]
            self.row_sums(centre, source[start:stop])
            centre /= columns
            np.subtract(source[start:stop], centre[:, None], out=y)
            np.vecdot(y, y, out=spread)
            invert_root(spread, columns, epsilon)
            y *= spread[:, None]
            if weight is not None:
                y *= weight
            if bias is not None:
                y += bias

        self.for_tiles(source.shape[0], columns, body)

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
        speaks of them. With c = x - mean and P = dy c, all sums are matrix-vector products:
        ``mean(g) = dy weight / C``, ``mean(g xhat) = rstd P weight / C``, ``dweight = rstd P``; so
        ``dx = rstd (dy weight - mean(g) - c rstd² (P weight) / C)`` takes few passes over a tile.
        """
        columns = x.shape[-1]
        target, upstream, source = (array.reshape(-1, columns) for array in (dx, dy, x))

        def tile(start: int, stop: int, centred: Array, sums: Array, values: Array) -> None:
            d, g, spread = target[start:stop], upstream[start:stop], rstd[start:stop]
            along, average = values.reshape(_ROW_VALUES, stop - start)
            np.subtract(source[start:stop], mean[start:stop, None], out=centred)
            np.multiply(g, centred, out=d)
            if dweight is not None:
                np.matmul(spread, d, out=sums[2])
                sums[0] += sums[2]
            if dbias is not None:
                self.column_sums(sums[1], g, sums[2])
            self.project(along, d, weight)
            _scale_projection(along, spread, columns)
            self.project(average, g, weight)
            average /= columns
            centred *= along[:, None]
            centred += average[:, None]
            _weigh_and_subtract(d, g, weight, centred)
            d *= spread[:, None]

        self._backward(tile, source.shape[0], columns, dweight, dbias, accumulate, workspace)

    def layer_norm_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``layer_norm_backward``'s workspace."""
        return backward_workspace(rows, columns, _ROW_VALUES)

    def rms_norm_forward(
        self,
        output: Array,
        rstd: Array,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        epsilon: float,
        unit_offset: float,
        workspace: Array,
    ) -> None:
        """``y = x * rstd * (weight + unit_offset) + bias``, ``rstd = 1 / sqrt(mean(x²) + epsilon)``.

        Without a weight there is no factor. ``rstd``: (N,); ``output`` may be ``x``.
        """
        columns = x.shape[-1]
        target, source = output.reshape(-1, columns), x.reshape(-1, columns)
        factor = _offset_weight(weight, unit_offset, workspace)

        def body(start: int, stop: int, scratch: Array) -> None:
            y, part, spread = target[start:stop], source[start:stop], rstd[start:stop]
            np.vecdot(part, part, out=spread)
            invert_root(spread, columns, epsilon)
            np.multiply(part, spread[:, None], out=y)
            if factor is not None:
                y *= factor
            if bias is not None:
                y += bias

        self.for_tiles(source.shape[0], columns, body)

    def rms_norm_forward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``rms_norm_forward``'s workspace: the offset weight."""
        return columns

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
        columns = x.shape[-1]
        target, upstream, source = (array.reshape(-1, columns) for array in (dx, dy, x))
        factor = _offset_weight(weight, unit_offset, workspace)

        def tile(start: int, stop: int, scaled: Array, sums: Array, values: Array) -> None:
            d, g, spread, along = target[start:stop], upstream[start:stop], rstd[start:stop], values[: stop - start]
            np.multiply(g, source[start:stop], out=d)
            if dweight is not None:
                np.matmul(spread, d, out=sums[2])
                sums[0] += sums[2]
            if dbias is not None:
                self.column_sums(sums[1], g, sums[2])
            self.project(along, d, factor)
            _scale_projection(along, spread, columns)
            np.multiply(source[start:stop], along[:, None], out=scaled)
            _weigh_and_subtract(d, g, factor, scaled)
            d *= spread[:, None]

        self._backward(tile, source.shape[0], columns, dweight, dbias, accumulate, workspace[columns:])

    def rms_norm_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``rms_norm_backward``'s workspace."""
        return columns + backward_workspace(rows, columns, _ROW_VALUES)

    def _backward(
        self,
        tile: Tile,
        rows: int,
        columns: int,
        dweight: Array | None,
        dbias: Array | None,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """Run ``tile`` for all rows, then add the sums of ``dweight`` and ``dbias``."""
        worker_sums = self.sum_tiles(tile, rows, columns, _ROW_VALUES, workspace)
        for position, gradient in enumerate((dweight, dbias)):
            if gradient is None:
                continue
            if not accumulate:
                gradient.fill(0.0)
            for sums in worker_sums:
                gradient += sums[position]


def backward_workspace(rows: int, columns: int, row_values: int) -> int:
    """Elements of ``sum_tiles``' workspace: a tile with ``row_values`` for each of its rows, and one worker's sums."""
    return tile_elements(rows, columns) // columns * (columns + row_values) + _SUM_ROWS * columns


def invert_root(spread: Array, columns: int, epsilon: float) -> None:
    """Turn sums of squares over ``columns`` elements into ``1 / sqrt(mean + epsilon)``, in place."""
    spread /= columns
    spread += epsilon
    np.sqrt(spread, out=spread)
    np.reciprocal(spread, out=spread)


def _scale_projection(along: Array, spread: Array, columns: int) -> None:
    """Multiply by ``rstd² / C``."""
    along *= spread
    along *= spread
    along /= columns


def _weigh_and_subtract(output: Array, x: Array, weight: Array | None, y: Array) -> None:
    """``output = x * weight - y``; no weight is a weight of ones."""
    if weight is None:
        np.subtract(x, y, out=output)
    else:
        np.multiply(x, weight, out=output)
        output -= y


def _offset_weight(weight: Array | None, unit_offset: float, workspace: Array) -> Array | None:
    """``weight + unit_offset`` at the start of ``workspace``, or ``weight`` itself."""
    if weight is None or unit_offset == 0.0:
        return weight
    return np.add(weight, unit_offset, out=workspace[: weight.size])
