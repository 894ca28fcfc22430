"""Activations and gated activations, whose functions are written in ``activation_functions.cuh``."""

from __future__ import annotations

import numpy as np

from mila.errors import ConfigurationError
from mila.kernels.cuda.elementwise import CudaElementwise, single
from mila.kernels.cuda.family import Argument
from mila.kernels.signatures import ActivationFunction, Array

#: The names of functions, in the order of the file's ``Kind``.
_KINDS = (
    "none",
    "relu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "tanh",
    "sigmoid",
    "leaky_relu",
    "mish",
    "elu",
    "hardswish",
    "softplus",
)


class CudaActivations(CudaElementwise):
    """The activations of ``ElementwiseKernels`` in CUDA C++. Unknown kinds raise ``ConfigurationError``."""

    def activation_forward(
        self, output: Array, derivative: Array | None, x: Array, function: ActivationFunction, workspace: Array
    ) -> None:
        """``output = f(x)`` and, where given, ``derivative = f'(x)``.

        ``derivative`` may be ``x``; ``output`` may be ``x`` when no derivative is asked for.
        """
        arguments = [np.int64(x.size), *_scalars(function)]
        grid, block = self.rows_grid(1, x.size, x.dtype.itemsize)
        if derivative is None:
            self.launch("activations", "activation_forward", x.dtype, grid, block, [output, x, *arguments])
        else:
            arrays = [output, derivative, x]
            self.launch("activations", "activation_with_derivative", x.dtype, grid, block, [*arrays, *arguments])

    def activation_forward_workspace(self, rows: int, columns: int) -> int:
        """None: intermediate values are in registers."""
        return 0

    def activation_backward(self, dx: Array, dy: Array, derivative: Array) -> None:
        """``dx = dy * derivative``; ``dx`` may be ``dy`` or ``derivative``."""
        self.launch_flat("multiply", dx, dy, derivative)

    def gated_forward(self, output: Array, x: Array, function: ActivationFunction, workspace: Array) -> None:
        """``output (N, F) = f(x[:, :F]) * x[:, F:]`` for ``x (N, 2F)``: contiguous halves, gate first."""
        self._launch_gated("gated_forward", [output, x], output, function)

    def gated_forward_workspace(self, rows: int, columns: int) -> int:
        """None: intermediate values are in registers."""
        return 0

    def gated_backward(self, dx: Array, dy: Array, x: Array, function: ActivationFunction, workspace: Array) -> None:
        """``dx[:, :F] = dy f'(gate) up``, ``dx[:, F:] = dy f(gate)``; ``dx`` may be ``x``."""
        self._launch_gated("gated_backward", [dx, dy, x], dy, function)

    def gated_backward_workspace(self, rows: int, columns: int) -> int:
        """None: intermediate values are in registers."""
        return 0

    def _launch_gated(self, kernel: str, arrays: list[Array], half: Array, function: ActivationFunction) -> None:
        """Launch on ``arrays`` and the sizes of ``half (…, F)``."""
        scalars, columns = _scalars(function), half.shape[-1]
        rows = half.size // max(1, columns)
        grid, block = self.rows_grid(rows, columns, half.dtype.itemsize)
        arguments: list[Argument] = [*arrays, np.int64(rows), np.int64(columns), *scalars]
        self.launch("gated_activations", kernel, half.dtype, grid, block, arguments)


def _scalars(function: ActivationFunction) -> list[np.generic]:
    """The kind and its options, as the kernels take them."""
    if function.kind not in _KINDS:
        raise ConfigurationError(f"activation kind: expected one of {', '.join(_KINDS)}, got {function.kind!r}")
    options = {
        "leaky_relu": (function.leaky_relu_slope, 0.0),
        "elu": (function.elu_alpha, 0.0),
        "softplus": (function.softplus_beta, function.softplus_threshold),
    }
    first, second = options.get(function.kind, (0.0, 0.0))
    return [np.int32(_KINDS.index(function.kind)), single(first), single(second)]
