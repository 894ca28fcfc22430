"""Decoding on the CPU: one position of one row, as few NumPy calls as the formula allows, nothing prepared twice."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from mila.kernels.cpu.activations import SCRATCH, activate
from mila.kernels.cpu.attention_bound import bind_attention
from mila.kernels.cpu.attention_tiles import Heads
from mila.kernels.cpu.elementwise import CpuElementwise
from mila.kernels.signatures import ActivationFunction, Array
from mila.kernels.signatures.single_row import Bound, BoundAt


class CpuSingleRow(CpuElementwise):
    """``SingleRowKernels`` in NumPy."""

    def region(self) -> AbstractContextManager[None]:
        """BLAS at as many threads as there are workers, and NumPy's floating-point warnings off."""
        return self.products()

    def bind_linear_forward(self, output: Array, x: Array, weight: Array, bias: Array | None) -> Bound:
        """``output (1, O) = x (1, I) @ weight.T + bias``: a matrix-vector product."""
        target, row = output.reshape(-1), x.reshape(-1)
        product = partial(np.dot, weight, row, target)
        return product if bias is None else _both(product, partial(np.add, target, bias, target))

    def bind_layer_norm_forward(
        self, output: Array, x: Array, weight: Array | None, bias: Array | None, epsilon: float
    ) -> Bound:
        """``(x - mean) * rstd * weight + bias``."""
        target, row, columns = output.reshape(-1), x.reshape(-1), x.size
        subtract, multiply, dot, total = np.subtract, np.multiply, np.dot, np.add.reduce

        def normalize() -> None:
            subtract(row, total(row) / columns, target)
            multiply(target, 1.0 / math.sqrt(dot(target, target) / columns + epsilon), target)
            if weight is not None:
                multiply(target, weight, target)

        return normalize if bias is None else _both(normalize, partial(np.add, target, bias, target))

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
        target, row, columns = output.reshape(-1), x.reshape(-1), x.size
        multiply, dot = np.multiply, np.dot
        is_offset = weight is not None and unit_offset != 0.0
        factor = workspace[:columns] if is_offset else weight

        def normalize() -> None:
            multiply(row, 1.0 / math.sqrt(dot(row, row) / columns + epsilon), target)
            if factor is not None:
                multiply(target, factor, target)

        bound = _both(partial(np.add, weight, unit_offset, factor), normalize) if is_offset else normalize
        return bound if bias is None else _both(bound, partial(np.add, target, bias, target))

    def bind_activation_forward(self, output: Array, x: Array, function: ActivationFunction, workspace: Array) -> Bound:
        """``f(x)``, element by element."""
        target, row = output.reshape(-1), x.reshape(-1)
        if workspace.size < SCRATCH * row.size:  # wider than a tile
            return partial(self.activation_forward, output, None, x, function, workspace)
        return partial(activate, function, target, row, workspace[: SCRATCH * row.size].reshape(SCRATCH, -1))

    def bind_gated_forward(self, output: Array, x: Array, function: ActivationFunction, workspace: Array) -> Bound:
        """``f(gate) * up``."""
        target, row = output.reshape(-1), x.reshape(-1)
        gate, up = row[: target.size], row[target.size :]
        activated = self.bind_activation_forward(target, gate, function, workspace)
        return _both(activated, partial(np.multiply, target, up, target))

    def bind_residual_forward(self, output: Array, a: Array, b: Array, scale: float) -> Bound:
        """``a + scale * b``."""
        target, left, right = output.reshape(-1), a.reshape(-1), b.reshape(-1)
        if scale == 1.0:
            return partial(np.add, left, right, target)
        return lambda: np.add(left, right * scale, target)

    def bind_position_forward(self, output: Array, x: Array, table: Array) -> BoundAt:
        """``x + table[position]``."""
        target, row, add = output.reshape(-1), x.reshape(-1), np.add

        def encode(position: int) -> None:
            add(row, table[position], target)

        return encode

    def bind_rope(
        self, output: Array, x: Array, cosine: Array, sine: Array, heads: int, head_dim: int, workspace: Array
    ) -> BoundAt:
        """``rope`` for one position: pairs as complex numbers, turned by one multiplication."""
        half = cosine.shape[1]
        complex_dtype = np.result_type(x.dtype, np.complex64)
        scratch = workspace[: 2 * (heads + 1) * half].view(complex_dtype).reshape(heads + 1, half)
        pairs, angle = scratch[:heads], scratch[heads]
        first, second, angle_cosine, angle_sine = pairs.real, pairs.imag, angle.real, angle.imag
        source, target = (array.reshape(-1)[: heads * head_dim].reshape(heads, head_dim) for array in (x, output))
        inputs, outputs = ((array[:, :half], array[:, half : 2 * half]) for array in (source, target))
        rest = [] if np.may_share_memory(output, x) else _rest(output, x, heads, head_dim, 2 * half)
        copy, multiply = np.copyto, np.multiply

        def turn(position: int) -> None:
            copy(first, inputs[0])
            copy(second, inputs[1])
            copy(angle_cosine, cosine[position])
            copy(angle_sine, sine[position])
            multiply(pairs, angle, pairs)
            copy(outputs[0], first)
            copy(outputs[1], second)
            for to, what in rest:
                copy(to, what)

        return turn

    def bind_attention_cached(
        self,
        output: Array,
        keys: Array,
        values: Array,
        qkv: Array,
        heads: int,
        window: int,
        scale: float,
        workspace: Array,
    ) -> BoundAt:
        """``attention_cached`` for one position of row 0."""
        sizes = Heads(heads, keys.shape[1], keys.shape[3])
        return bind_attention(self, output, keys, values, qkv, sizes, window, scale, workspace)

    def bind_copy(self, output: Array, x: Array) -> Bound:
        """``output = x``."""
        return partial(np.copyto, output.reshape(-1), x.reshape(-1))


def _rest(output: Array, x: Array, heads: int, head_dim: int, rotary_dim: int) -> list[tuple[Array, Array]]:
    """What rotation passes on: the ends of the turning heads, and all other heads."""
    width = heads * head_dim
    pairs = [tuple(a.reshape(-1)[:width].reshape(heads, head_dim)[:, rotary_dim:] for a in (output, x))]
    pairs.append(tuple(a.reshape(-1)[width:] for a in (output, x)))
    return [(to, what) for to, what in pairs if what.size]


def _both(first: Bound, second: Bound) -> Bound:
    def run() -> None:
        first()
        second()

    return run
