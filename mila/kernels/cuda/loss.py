"""Softmax cross-entropy, fused: the probabilities are never stored."""

from __future__ import annotations

import numpy as np

from mila.kernels.cuda.family import Argument
from mila.kernels.cuda.row_blocks import CudaRowBlocks, row_block
from mila.kernels.signatures import Array

#: Threads of a block that works on a row of logits, and of the block that adds up the rows.
_MOST_THREADS = 512
_ADDING_THREADS = 1024


class CudaLoss(CudaRowBlocks):
    """``LossKernels`` in CUDA C++."""

    def cross_entropy_forward(
        self,
        loss: Array,
        log_sum_exp: Array,
        logits: Array,
        targets: Array,
        ignore_index: int | None,
        workspace: Array,
    ) -> None:
        """``loss (1,)`` = mean over valid targets of ``log_sum_exp - logits[target]``; 0 when no target is valid.

        ``loss``, ``log_sum_exp (N,)`` float32; the mean is taken in float64.
        """
        rows, vocabulary = targets.size, logits.shape[-1]
        losses = workspace[:rows]
        sizes = np.int64(rows), np.int64(vocabulary)
        block = row_block(logits, _MOST_THREADS)
        self.launch(
            "loss",
            f"rows_forward_{targets.dtype.name}",
            logits.dtype,
            self.row_blocks(rows, block),
            block,
            [log_sum_exp, losses, logits, targets, *sizes, *_ignored(ignore_index)],
        )
        count = self._count_valid(targets, ignore_index, logits)
        self.launch("loss", "mean", logits.dtype, 1, _ADDING_THREADS, [loss, losses, count, np.int64(rows)])

    def cross_entropy_backward(
        self,
        dlogits: Array,
        log_sum_exp: Array,
        dloss: Array,
        logits: Array,
        targets: Array,
        ignore_index: int | None,
    ) -> None:
        """``dlogits (N, V) = dloss (softmax - onehot) / valid``, 0 where ignored; ``dlogits`` may be ``logits``.

        ``dloss (1,)`` float32.
        """
        count = self._count_valid(targets, ignore_index, logits)
        sizes = np.int64(targets.size), np.int64(logits.shape[-1])
        block = row_block(logits, _MOST_THREADS)
        self.launch(
            "loss",
            f"rows_backward_{targets.dtype.name}",
            logits.dtype,
            self.row_blocks(targets.size, block),
            block,
            [dlogits, log_sum_exp, dloss, logits, targets, count, *sizes, *_ignored(ignore_index)],
        )

    def cross_entropy_forward_workspace(self, rows: int, vocabulary: int) -> int:
        """Elements of ``cross_entropy_forward``'s workspace: the loss of each row."""
        return rows

    def _count_valid(self, targets: Array, ignore_index: int | None, logits: Array) -> Array | None:
        """The number of valid targets, in the scratch; ``None`` where all are."""
        if ignore_index is None:
            return None
        count = self.launcher.scratch[:8].view(np.int64)
        arguments: list[Argument] = [count, targets, np.int64(targets.size), np.int64(ignore_index)]
        self.launch("loss", f"count_valid_{targets.dtype.name}", logits.dtype, 1, _ADDING_THREADS, arguments)
        return count


def _ignored(ignore_index: int | None) -> tuple[np.int64, np.int32]:
    return np.int64(ignore_index or 0), np.int32(ignore_index is not None)
