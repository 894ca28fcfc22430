"""Matrix products of ``Linear``: BLAS with its own threads, transposed views, nothing copied."""

from __future__ import annotations

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.cpu.widening import NARROW, add_narrow, narrow, widen
from mila.kernels.cpu.workers import TILE_ELEMENTS, tile_elements
from mila.kernels.signatures import Array


class CpuLinear(CpuFamily):
    """``LinearKernels`` in NumPy."""

    def linear_forward(self, output: Array, x: Array, weight: Array, bias: Array | None) -> None:
        """``output (N, O) = x (N, I) @ weight.T + bias`` for ``weight (O, I)``, ``bias (O,)``."""
        target, source = _rows(output, weight.shape[0]), _rows(x, weight.shape[1])
        with self.products():
            _multiply_transposed(target, source, weight)
        if bias is not None:
            self._add_row(target, bias)

    def linear_forward_narrow(
        self, output: Array, x: Array, weight: Array, scales: Array | None, bias: Array | None, workspace: Array
    ) -> None:
        """As ``linear_forward`` for a narrower ``weight (O, I)``, widened tile by tile, and its ``scales``."""
        out_features, in_features = weight.shape
        target, source = _rows(output, out_features), _rows(x, in_features)
        step = workspace.size // in_features
        for low in range(0, out_features, step):
            high = min(out_features, low + step)
            tile = workspace[: (high - low) * in_features].reshape(-1, in_features)
            self._widen(tile, weight[low:high])
            with self.products():
                _multiply_transposed(target[:, low:high], source, tile)
        if scales is not None:
            self._multiply_row(target, scales)
        if bias is not None:
            self._add_row(target, bias)

    def linear_forward_narrow_workspace(self, out_features: int, in_features: int) -> int:
        """Elements of ``linear_forward_narrow``'s workspace."""
        return _whole_rows(out_features, in_features)

    def linear_backward_input(self, dx: Array, dy: Array, weight: Array) -> None:
        """``dx (N, I) = dy (N, O) @ weight``."""
        with self.products():
            np.matmul(_rows(dy, weight.shape[0]), weight, out=_rows(dx, weight.shape[1]))

    def linear_backward_input_narrow(self, dx: Array, dy: Array, weight: Array, workspace: Array) -> None:
        """As ``linear_backward_input`` for a half-precision weight: the products with its tiles are added up."""
        out_features, in_features = weight.shape
        target, upstream = _rows(dx, in_features), _rows(dy, out_features)
        step = _rows_at_once(out_features, in_features)
        widened, products = workspace[: step * in_features], workspace[step * in_features :]
        block = max(1, products.size // in_features)
        for low in range(0, out_features, step):
            high = min(out_features, low + step)
            tile = widened[: (high - low) * in_features].reshape(-1, in_features)
            self._widen(tile, weight[low:high])
            if low == 0:
                with self.products():
                    np.matmul(upstream[:, :high], tile, out=target)
                continue
            for first in range(0, len(upstream), block):
                part = upstream[first : first + block, low:high]
                product = products[: len(part) * in_features].reshape(-1, in_features)
                with self.products():
                    np.matmul(part, tile, out=product)
                self._add(target[first : first + block], product)

    def linear_backward_input_narrow_workspace(self, rows: int, out_features: int, in_features: int) -> int:
        """Elements of ``linear_backward_input_narrow``'s workspace: a tile of the weight, and a block of products."""
        step = _rows_at_once(out_features, in_features)
        return step * in_features + (0 if step == out_features else _rows_at_once(rows, in_features) * in_features)

    def linear_backward_weight(self, dweight: Array, dy: Array, x: Array, accumulate: bool, workspace: Array) -> None:
        """``dweight (O, I) (+)= dy.T @ x``; adding goes by tiles of rows, because a product can only overwrite.

        So does what is rounded: a half-precision ``dweight``.
        """
        out_features, in_features = dweight.shape
        upstream, source = _rows(dy, out_features).T, _rows(x, in_features)
        if not accumulate and dweight.dtype not in NARROW:
            with self.products():
                np.matmul(upstream, source, out=dweight)
            return
        step = workspace.size // in_features
        for low in range(0, out_features, step):
            high = min(out_features, low + step)
            tile = workspace[: (high - low) * in_features].reshape(-1, in_features)
            with self.products():
                np.matmul(upstream[low:high], source, out=tile)
            (self._add if accumulate else self._narrow)(dweight[low:high], tile)

    def linear_backward_weight_workspace(self, rows: int, out_features: int, in_features: int) -> int:
        """Elements of ``linear_backward_weight``'s workspace: enough rows for products at full speed."""
        return _rows_at_once(out_features, in_features) * in_features

    def linear_backward_bias(self, dbias: Array, dy: Array, accumulate: bool, workspace: Array) -> None:
        """``dbias (O,) (+)= dy.sum(axis=0)``."""
        if not accumulate:
            dbias.fill(0.0)
        with self.products():
            self.column_sums(dbias, _rows(dy, dbias.size), workspace[: dbias.size])

    def linear_backward_bias_workspace(self, rows: int, out_features: int) -> int:
        """Elements of ``linear_backward_bias``'s workspace."""
        return out_features

    def _widen(self, tile: Array, weight: Array) -> None:
        def body(start: int, stop: int, scratch: Array) -> None:
            widen(tile[start:stop], weight[start:stop])

        self.for_tiles(weight.shape[0], weight.shape[1], body, passes=5)

    def _narrow(self, output: Array, x: Array) -> None:
        def body(start: int, stop: int, scratch: Array) -> None:
            narrow(output[start:stop], x[start:stop])

        self.for_tiles(x.shape[0], x.shape[1], body, passes=2)

    def _add(self, output: Array, x: Array) -> None:
        def body(start: int, stop: int, scratch: Array) -> None:
            if output.dtype in NARROW:
                add_narrow(output[start:stop], x[start:stop])
            else:
                np.add(output[start:stop], x[start:stop], out=output[start:stop])

        self.for_tiles(x.shape[0], x.shape[1], body, passes=1)

    def _add_row(self, output: Array, row: Array) -> None:
        def body(start: int, stop: int, scratch: Array) -> None:
            np.add(output[start:stop], row, out=output[start:stop])

        self.for_tiles(output.shape[0], output.shape[1], body, passes=1)

    def _multiply_row(self, output: Array, row: Array) -> None:
        def body(start: int, stop: int, scratch: Array) -> None:
            np.multiply(output[start:stop], row, out=output[start:stop])

        self.for_tiles(output.shape[0], output.shape[1], body, passes=1)


def _rows(x: Array, columns: int) -> Array:
    """``x`` with its leading axes flattened."""
    return x.reshape(x.size // columns, columns)


def _whole_rows(rows: int, columns: int) -> int:
    """As many whole rows as fit the common tile, at least one."""
    return tile_elements(rows, columns) // columns * columns


def _rows_at_once(rows: int, columns: int) -> int:
    """Rows of a tile that is large enough for products at full speed, at least one."""
    return max(1, min(rows, 2 * TILE_ELEMENTS // columns))


def _multiply_transposed(output: Array, x: Array, weight: Array) -> None:
    """``output (N, O) = x (N, I) @ weight.T``; a single row as a matrix-vector product, which decodes faster."""
    if x.shape[0] == 1:
        np.matmul(weight, x[0], out=output[0])
    else:
        np.matmul(x, weight.T, out=output)
