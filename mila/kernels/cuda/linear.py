"""Matrix products of ``Linear``: cuBLAS, and kernels for what it does not do."""

from __future__ import annotations

import numpy as np

from mila.kernels.cuda.column_sums import CudaColumnSums
from mila.kernels.cuda.embedding import narrow_name
from mila.kernels.cuda.family import BLOCK, FLOAT32, WARP, Argument, ceiling, rounded_block
from mila.kernels.signatures import Array

#: Elements of a tile of a narrower weight: large enough for products at full speed.
_TILE_ELEMENTS = 1 << 22
#: Rows of products with such a tile that are held at a time.
_PRODUCT_ROWS = 512
#: Warps of a block, each of which multiplies a single row with one row of a weight.
_WARPS = BLOCK // WARP
#: Side of the tiles of ``multiply_tile``.
_SIDE = 16


class CudaLinear(CudaColumnSums):
    """``LinearKernels`` in CUDA C++ and cuBLAS."""

    def linear_forward(self, output: Array, x: Array, weight: Array, bias: Array | None) -> None:
        """``output (N, O) = x (N, I) @ weight.T + bias`` for ``weight (O, I)``, ``bias (O,)``; rounded once."""
        out_features, in_features = weight.shape
        rows = output.size // out_features
        if rows == 1:
            self._multiply_row("stored", output, x, weight, None, bias)
            return
        target = output.reshape(rows, out_features)
        if bias is not None:
            arguments: list[Argument] = [target, bias, np.int64(rows), np.int64(out_features)]
            block = rounded_block(out_features)
            self.launch("linear", "spread_bias", output.dtype, self.row_blocks(rows, block), block, arguments)
        source = x.reshape(rows, in_features)
        self.launcher.multiply(target, source, weight, transpose_b=True, accumulate=bias is not None)

    def linear_forward_narrow(
        self, output: Array, x: Array, weight: Array, scales: Array | None, bias: Array | None, workspace: Array
    ) -> None:
        """As ``linear_forward`` for a narrower ``weight (O, I)`` and its ``scales``. Bytes are float8_e4m3fn.

        A single row reads the weight as it is. For more, tiles of the weight are widened, which is exact, and products
        with them are scaled in float32.
        """
        out_features, in_features = weight.shape
        rows = output.size // out_features
        name = narrow_name(weight)
        if rows == 1:
            self._multiply_row(name, output, x, weight, scales, bias)
            return
        step = _tile_rows(out_features, in_features)
        products, widened = workspace[: step * _PRODUCT_ROWS], workspace[step * _PRODUCT_ROWS :].view(x.dtype)
        source, target = x.reshape(rows, in_features), output.reshape(rows, out_features)
        for low in range(0, out_features, step):
            width = min(step, out_features - low)
            tile = widened[: width * in_features]
            arguments: list[Argument] = [tile, weight[low : low + width], np.int64(tile.size)]
            self.launch("linear", f"widen_{name}", x.dtype, self.blocks(tile.size, 4 * BLOCK), BLOCK, arguments)
            for first in range(0, rows, _PRODUCT_ROWS):
                part = source[first : first + _PRODUCT_ROWS]
                product = products[: part.shape[0] * width].reshape(part.shape[0], width)
                self.launcher.multiply(product, part, tile.reshape(width, in_features), transpose_b=True)
                part_of_output = target[first : first + _PRODUCT_ROWS]
                self._finish_tile(part_of_output, product, scales, bias, low)

    def linear_forward_narrow_workspace(self, out_features: int, in_features: int) -> int:
        """Elements of ``linear_forward_narrow``'s workspace: a tile of the weight, and products with it."""
        return _tile_rows(out_features, in_features) * (in_features + _PRODUCT_ROWS)

    def linear_backward_input(self, dx: Array, dy: Array, weight: Array) -> None:
        """``dx (N, I) = dy (N, O) @ weight``."""
        out_features, in_features = weight.shape
        rows = dy.size // out_features
        self.launcher.multiply(dx.reshape(rows, in_features), dy.reshape(rows, out_features), weight)

    def linear_backward_input_narrow(self, dx: Array, dy: Array, weight: Array, workspace: Array) -> None:
        """As ``linear_backward_input`` for a bfloat16 or float16 ``weight`` of a network of another dtype."""
        out_features, in_features = weight.shape
        rows = dy.size // out_features
        kernel = f"product_of_{weight.dtype.name}"
        self._multiply_tiles(kernel, [dx, dy, weight], dy.dtype, (rows, in_features, out_features), [])

    def linear_backward_input_narrow_workspace(self, rows: int, out_features: int, in_features: int) -> int:
        """Elements of ``linear_backward_input_narrow``'s workspace: none."""
        return 0

    def linear_backward_weight(self, dweight: Array, dy: Array, x: Array, accumulate: bool, workspace: Array) -> None:
        """``dweight (O, I) (+)= dy.T @ x``, rounded once; a ``dweight`` of a narrower dtype too."""
        out_features, in_features = dweight.shape
        rows = dy.size // out_features
        upstream, source = dy.reshape(rows, out_features), x.reshape(rows, in_features)
        if dweight.dtype in (dy.dtype, FLOAT32):
            self.launcher.multiply(dweight, upstream, source, transpose_a=True, accumulate=accumulate)
            return
        kernel, sizes = f"transposed_product_to_{dweight.dtype.name}", (out_features, in_features, rows)
        self._multiply_tiles(kernel, [dweight, dy, x], dy.dtype, sizes, [np.int32(accumulate)])

    def linear_backward_weight_workspace(self, rows: int, out_features: int, in_features: int) -> int:
        """Elements of ``linear_backward_weight``'s workspace: none."""
        return 0

    def linear_backward_bias(self, dbias: Array, dy: Array, accumulate: bool, workspace: Array) -> None:
        """``dbias (O,) (+)= dy.sum(axis=0)``."""
        self.sum_columns(dbias, dy, dy.size // dbias.size, accumulate, workspace)

    def linear_backward_bias_workspace(self, rows: int, out_features: int) -> int:
        """Elements of ``linear_backward_bias``'s workspace: the sums of chunks of rows."""
        return self.sum_columns_workspace(rows, out_features)

    def _multiply_row(
        self, name: str, output: Array, x: Array, weight: Array, scales: Array | None, bias: Array | None
    ) -> None:
        """The product of a single row, which reads the weight once."""
        arguments: list[Argument] = [output, x, weight, scales, bias, *(np.int64(size) for size in weight.shape)]
        blocks = self.blocks(weight.shape[0], _WARPS)
        self.launch("linear", f"row_{name}", x.dtype, blocks, BLOCK, arguments)

    def _finish_tile(self, output: Array, product: Array, scales: Array | None, bias: Array | None, first: int) -> None:
        """Scale and shift a product and put it into its columns, from ``first`` on."""
        rows, width = product.shape
        sizes = np.int64(rows), np.int64(output.shape[1]), np.int64(first), np.int64(width)
        arguments: list[Argument] = [output, product, scales, bias, *sizes]
        block = rounded_block(width)
        self.launch("linear", "finish_tile", output.dtype, self.row_blocks(rows, block), block, arguments)

    def _multiply_tiles(
        self,
        kernel: str,
        arrays: list[Array],
        dtype: np.dtype[np.generic],
        sizes: tuple[int, int, int],
        options: list[np.int32],
    ) -> None:
        grid = ceiling(sizes[0], _SIDE), ceiling(sizes[1], _SIDE)
        integers = [np.int64(size) for size in sizes]
        self.launch("linear", kernel, dtype, grid, BLOCK, [*arrays, *integers, *options])


def _tile_rows(out_features: int, in_features: int) -> int:
    """Rows of a tile of a weight, at least one."""
    return max(1, min(out_features, _TILE_ELEMENTS // in_features))
