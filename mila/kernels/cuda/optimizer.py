"""Flat passes over whole arenas: AdamW, the global norm, the search for non-finite elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mila.kernels.cuda.family import BLOCK, Argument, CudaFamily, ceiling
from mila.kernels.signatures import Array

#: Elements of a thread's vector, at least.
_VECTOR = 4
#: Blocks that leave a result each; their number depends on the size alone, and so does the order of additions.
_MOST_BLOCKS = 2048
#: Elements of a block before another is worth starting.
_ELEMENTS_PER_BLOCK = 8 * _VECTOR * BLOCK


class CudaOptimizer(CudaFamily):
    """``OptimizerKernels`` in CUDA C++."""

    def adamw(
        self,
        parameters: Array,
        first_moment: Array,
        second_moment: Array,
        gradients: Array,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
        step: int,
        gradient_scale: float,
        workspace: Array,
    ) -> None:
        """One decoupled AdamW step (Loshchilov & Hutter 2019) over flat arrays of equal length; ``step`` from 1.

        Moments are float32 and stored as ``M = m / (1 - beta1)``, ``V = v / (1 - beta2)``, so that the bias-corrected
        ones are ``a M`` and ``c² V`` with ``a = (1 - beta1) / (1 - beta1^step)`` and
        ``c² = (1 - beta2) / (1 - beta2^step)``, and
        ``learning_rate m̂ / (sqrt(v̂) + epsilon) = (learning_rate a / c) M / (sqrt(V) + epsilon / c)``.
        """
        first_correction = (1.0 - beta1) / (1.0 - beta1**step)
        second_correction = math.sqrt((1.0 - beta2) / (1.0 - beta2**step))
        factors = (
            learning_rate * first_correction / second_correction,
            beta1,
            beta2,
            epsilon / second_correction,
            1.0 - learning_rate * weight_decay,
            gradient_scale,
        )
        arguments: list[Argument] = [parameters, first_moment, second_moment, gradients, np.int64(parameters.size)]
        blocks = self.blocks(parameters.size, _VECTOR * BLOCK)
        arguments.extend(np.float32(factor) for factor in factors)
        self.launch("optimizer", "adamw", parameters.dtype, blocks, BLOCK, arguments)

    def adamw_workspace(self, elements: int, dtype: np.dtype[Any]) -> int:
        """Elements of ``adamw``'s workspace for parameters of ``dtype``: none."""
        return 0

    def global_norm(self, gradients: Array) -> float:
        """Euclidean norm of a flat array, summed in float64; infinite or NaN exactly when an element is."""
        return math.sqrt(sum(self._results_of_blocks("squares", gradients, np.float64)))

    def first_non_finite(self, x: Array) -> int:
        """Flat index of the first element that is not finite, or -1."""
        first = int(min(self._results_of_blocks("first_non_finite", x, np.int64), default=x.size))
        return -1 if first == x.size else first

    def _results_of_blocks(self, kernel: str, x: Array, dtype: type[np.float64] | type[np.int64]) -> list[float]:
        """What each block leaves of its share of ``x``."""
        blocks = min(ceiling(x.size, _ELEMENTS_PER_BLOCK), _MOST_BLOCKS)
        if blocks == 0:
            return []
        results = self.launcher.scratch[: 8 * blocks].view(dtype)
        self.launch("optimizer", kernel, x.dtype, blocks, BLOCK, [results, x, np.int64(x.size)])
        values: list[float] = self.launcher.read(results).tolist()
        return values
