"""Flat passes over whole arenas."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from mila.kernels.signatures.arrays import Array


class OptimizerKernels(Protocol):
    """Flat passes over whole arenas."""

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
        """One decoupled AdamW step (Loshchilov & Hutter 2019) over flat arrays of one length, ``step`` from 1.

        The stored moments are ``m / (1 - beta1)`` and ``v / (1 - beta2)``: two passes fewer per step, same result.
        Gradients are used times ``gradient_scale`` and left as they are. Parameters and gradients may be of a narrower
        dtype than the moments and the workspace: each parameter is then rounded once.
        """

    def adamw_workspace(self, elements: int, dtype: np.dtype[Any]) -> int:
        """Elements of ``adamw``'s workspace for parameters of ``dtype``."""

    def global_norm(self, gradients: Array) -> float:
        """Euclidean norm of a flat array, tiles summed in float64; infinite or NaN exactly when an element is."""

    def first_non_finite(self, x: Array) -> int:
        """Flat index of the first element that is not finite, or -1."""
