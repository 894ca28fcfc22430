"""A factor for each feature."""

from __future__ import annotations

import numpy as np

from mila.kernels.cpu.normalization import CpuNormTiles, backward_workspace
from mila.kernels.signatures import Array


class CpuLayerScale(CpuNormTiles):
    """The layer-scale kernels of ``ArithmeticKernels`` in NumPy."""

    def layer_scale_forward(self, output: Array, x: Array, gamma: Array) -> None:
        """``output = gamma * x`` along the last axis; ``gamma (C,)``; ``output`` may be ``x``."""
        target, source = output.reshape(-1, gamma.size), x.reshape(-1, gamma.size)

        def body(start: int, stop: int, scratch: Array) -> None:
            np.multiply(source[start:stop], gamma, out=target[start:stop])

        self.for_tiles(source.shape[0], gamma.size, body, passes=1)

    def layer_scale_backward(
        self,
        dx: Array,
        dgamma: Array | None,
        dy: Array,
        x: Array,
        gamma: Array,
        accumulate: bool,
        workspace: Array,
    ) -> None:
        """``dx = gamma * dy``; ``dgamma (C,) (+)= sum(dy * x)`` over rows, where it is given; ``dx`` may be ``dy``."""
        if dgamma is None:
            self.layer_scale_forward(dx, dy, gamma)
            return
        columns = gamma.size
        target, upstream, source = (array.reshape(-1, columns) for array in (dx, dy, x))

        def tile(start: int, stop: int, products: Array, sums: Array, values: Array) -> None:
            np.multiply(upstream[start:stop], source[start:stop], out=products)
            self.column_sums(sums[0], products, sums[2])
            np.multiply(upstream[start:stop], gamma, out=target[start:stop])

        worker_sums = self.sum_tiles(tile, source.shape[0], columns, 0, workspace)
        if not accumulate:
            dgamma.fill(0.0)
        for sums in worker_sums:
            dgamma += sums[0]

    def layer_scale_backward_workspace(self, rows: int, columns: int) -> int:
        """Elements of ``layer_scale_backward``'s workspace."""
        return backward_workspace(rows, columns, 0)
