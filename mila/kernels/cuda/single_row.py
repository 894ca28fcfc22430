"""Steps of decoding: the ordinary kernels with their arguments."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

from mila.kernels.cuda.activations import CudaActivations
from mila.kernels.cuda.head_norm import CudaHeadNorm
from mila.kernels.cuda.linear import CudaLinear
from mila.kernels.cuda.normalization import CudaNormalization
from mila.kernels.cuda.positions import CudaPositions
from mila.kernels.signatures import ActivationFunction, Array
from mila.kernels.signatures.single_row import Bound, BoundAt


class CudaSingleRow(CudaActivations, CudaLinear, CudaNormalization, CudaHeadNorm, CudaPositions):
    """``SingleRowKernels`` in CUDA C++, but for rotary positions and attention.

    Norms leave out the statistics that they are not given.
    """

    def region(self) -> AbstractContextManager[None]:
        """Nothing: kernels are queued as ever."""
        return nullcontext()

    def bind_linear_forward(self, output: Array, x: Array, weight: Array, bias: Array | None) -> Bound:
        """``output (1, O) = x (1, I) @ weight.T + bias``."""
        return partial(self.linear_forward, output.reshape(1, -1), x.reshape(1, -1), weight, bias)

    def bind_layer_norm_forward(
        self, output: Array, x: Array, weight: Array | None, bias: Array | None, epsilon: float
    ) -> Bound:
        """``(x - mean) * rstd * weight + bias``."""
        return partial(self.layer_norm_forward, output, None, None, x, weight, bias, epsilon)

    def bind_rms_norm_forward(
        self,
        output: Array,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        epsilon: float,
        unit_offset: float,
        workspace: Array,
    ) -> Bound:
        """``x * rstd * (weight + unit_offset) + bias``."""
        return partial(self.rms_norm_forward, output, None, x, weight, bias, epsilon, unit_offset, workspace)

    def bind_head_norm_forward(
        self,
        output: Array,
        x: Array,
        query_weight: Array,
        key_weight: Array,
        heads: int,
        kv_heads: int,
        epsilon: float,
        workspace: Array,
    ) -> Bound:
        """``x * rstd * weight`` for query and key heads."""
        arrays = output, None, None, x, query_weight, key_weight
        return partial(self.head_norm_forward, *arrays, heads, kv_heads, epsilon, workspace)

    def bind_activation_forward(self, output: Array, x: Array, function: ActivationFunction, workspace: Array) -> Bound:
        """``f(x)``, element by element."""
        return partial(self.activation_forward, output, None, x, function, workspace)

    def bind_gated_forward(self, output: Array, x: Array, function: ActivationFunction, workspace: Array) -> Bound:
        """``f(gate) * up``."""
        return partial(self.gated_forward, output, x, function, workspace)

    def bind_residual_forward(self, output: Array, a: Array, b: Array, scale: float) -> Bound:
        """``a + scale * b``."""
        return partial(self.residual_forward, output, a, b, scale)

    def bind_position_forward(self, output: Array, x: Array, table: Array) -> BoundAt:
        """``x + table[position]``."""
        target, row = output.reshape(1, 1, -1), x.reshape(1, 1, -1)
        return lambda position: self.position_forward(target, row, table, [position])

    def bind_copy(self, output: Array, x: Array) -> Bound:
        """``output = x``."""
        return partial(self.copy, output, x)
