"""Losses."""

from __future__ import annotations

from typing import Protocol

from mila.kernels.signatures.arrays import Array


class LossKernels(Protocol):
    """Fused softmax cross-entropy."""

    def cross_entropy_forward(
        self,
        loss: Array,
        log_sum_exp: Array,
        logits: Array,
        targets: Array,
        ignore_index: int | None,
        workspace: Array,
    ) -> None:
        """``loss (1,)`` = mean of ``log_sum_exp (N,) - logits[target]`` over valid targets; 0 when there is none."""

    def cross_entropy_backward(
        self,
        dlogits: Array,
        log_sum_exp: Array,
        dloss: Array,
        logits: Array,
        targets: Array,
        ignore_index: int | None,
    ) -> None:
        """``dlogits (N, V) = dloss (softmax - onehot) / valid``, rows of ignored targets zero; it may be ``logits``."""

    def cross_entropy_forward_workspace(self, rows: int, vocabulary: int) -> int:
        """Elements of ``cross_entropy_forward``'s workspace."""
