"""Softmax cross-entropy, fused: the probabilities are never stored beside the logits."""

from __future__ import annotations

import numpy as np

from mila.kernels.cpu.family import CpuFamily
from mila.kernels.cpu.workers import tile_elements
from mila.kernels.signatures import Array

#: Most columns whose exponentials are held at a time, so that large vocabularies still share a tile between workers.
_COLUMNS = 65536
#: Most rows of a tile: their targets are widened in temporaries.
_ROWS = 1024


class CpuLoss(CpuFamily):
    """``LossKernels`` in NumPy."""

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

        ``log_sum_exp (N,)``; the mean is taken in float64.
        """
        vocabulary = logits.shape[-1]
        z, wanted = logits.reshape(-1, vocabulary), targets.reshape(-1)
        width = min(vocabulary, _COLUMNS)
        losses: dict[int, float] = {}

        def body(start: int, stop: int, scratch: Array) -> None:
            for low in range(start, stop, _ROWS):
                part = slice(low, min(stop, low + _ROWS))
                self._log_sum_exp(log_sum_exp[part], z[part], scratch, width)
                losses[low] = _sum_of_losses(log_sum_exp[part], z[part], wanted[part], ignore_index)

        self.for_tiles(z.shape[0], vocabulary, body, workspace, width + 1, passes=14)
        valid = _count_valid(wanted, ignore_index)
        loss[0] = sum(losses[low] for low in sorted(losses)) / valid if valid else 0.0

    def cross_entropy_backward(
        self,
        dlogits: Array,
        log_sum_exp: Array,
        dloss: Array,
        logits: Array,
        targets: Array,
        ignore_index: int | None,
    ) -> None:
        """``dlogits (N, V) = dloss (softmax - onehot) / valid``, 0 where ignored; ``dlogits`` may be ``logits``."""
        vocabulary = logits.shape[-1]
        target, z, wanted = dlogits.reshape(-1, vocabulary), logits.reshape(-1, vocabulary), targets.reshape(-1)
        scale = float(dloss.reshape(-1)[0]) / max(1, _count_valid(wanted, ignore_index))

        def body(start: int, stop: int, scratch: Array) -> None:
            for low in range(start, stop, _ROWS):
                part = slice(low, min(stop, low + _ROWS))
                d = target[part]
                np.subtract(z[part], log_sum_exp[part, None], out=d)
                np.exp(d, out=d)
                d *= scale
                ignored = None if ignore_index is None else wanted[part] == ignore_index
                if ignored is not None:
                    d[ignored] = 0.0
                positions = _flat_positions(wanted[part], vocabulary)
                d.reshape(-1)[positions if ignored is None else positions[~ignored]] -= scale

        self.for_tiles(z.shape[0], vocabulary, body, passes=14)

    def cross_entropy_forward_workspace(self, rows: int, vocabulary: int) -> int:
        """Elements of ``cross_entropy_forward``'s workspace: a tile, and one value per row of it."""
        width = min(vocabulary, _COLUMNS)
        return tile_elements(rows, width) // width * (width + 1)

    def _log_sum_exp(self, output: Array, z: Array, scratch: Array, width: int) -> None:
        """``output (n,) = log(exp(z).sum(axis=1))``, shifted by the maxima, ``width`` columns at a time."""
        rows, vocabulary = z.shape
        sums, exponentials = scratch[:rows], scratch[rows:]
        np.maximum.reduce(z, axis=1, out=output)
        for low in range(0, vocabulary, width):
            part = z[:, low : low + width]
            tile = exponentials[: part.size].reshape(part.shape)
            np.subtract(part, output[:, None], out=tile)
            np.exp(tile, out=tile)
            if low == 0:
                self.row_sums(sums, tile)
            else:
                sums += tile.sum(axis=1)
        np.log(sums, out=sums)
        output += sums


def _flat_positions(targets: Array, vocabulary: int) -> Array:
    """Positions of the target logits in a flattened tile, in 64 bits."""
    positions = np.arange(targets.size, dtype=np.int64)
    positions *= vocabulary
    positions += targets
    return positions


def _sum_of_losses(log_sum_exp: Array, z: Array, targets: Array, ignore_index: int | None) -> float:
    """The sum over valid targets, in float64. Ignored ones may be out of range: what is read for them is not used."""
    picked = np.take(z.reshape(-1), _flat_positions(targets, z.shape[1]), mode="clip")
    differences = np.subtract(log_sum_exp, picked, dtype=np.float64)
    if ignore_index is None:
        return float(differences.sum())
    return float(np.add.reduce(differences, where=targets != ignore_index))


def _count_valid(targets: Array, ignore_index: int | None) -> int:
    if ignore_index is None:
        return int(targets.size)
    return sum(
        int(np.count_nonzero(targets[low : low + _COLUMNS] != ignore_index)) for low in range(0, targets.size, _COLUMNS)
    )
