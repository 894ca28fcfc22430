"""A training step that holds the ids of its batch: they are part of its plan, and no step allocates any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mila.core import BuildContext, Component, TrainingStep
from mila.core.planned_build import Optimizer
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, persistent
from mila.memory.storage import INT32, DType, Shape
from mila.training.data import TokenBatches
from mila.training.tokenization import TokenArray


class BatchStep(TrainingStep):
    """A :class:`mila.TrainingStep` with room on its device for its inputs: ids and targets, int32 (B, T) each.

    Beside a device that is not the CPU, the host has as much again, through which training batches go.

    Args:
        network: unbuilt; ids (B, T) to logits.
        loss: of logits and targets.
        optimizer: such as :class:`mila.training.AdamW`.
        batch_shape: (B, T), for which it is built.
        device: for a network without an execution context.
    """

    def __init__(
        self,
        network: Component[Any],
        loss: Component[Any],
        optimizer: Optimizer,
        batch_shape: Shape,
        *,
        device: str | None = None,
    ) -> None:
        self._batch_shape = batch_shape
        self._on_host: list[TokenArray] = []
        super().__init__(network, loss, optimizer, device=device)

    def root_buffers(self, output_dtypes: Sequence[DType]) -> Iterator[Declaration]:
        """Its inputs too."""
        yield from super().root_buffers(output_dtypes)
        for port in self.ports:
            yield persistent(port.name, self._batch_shape, INT32)

    def on_building(self, context: BuildContext) -> None:
        """Make room on the host for what is on its way to another device."""
        super().on_building(context)
        if not self.device.is_host:
            self._on_host = [np.empty(self._batch_shape, np.int32) for _ in self.ports]

    def take(self, batches: TokenBatches) -> list[Array]:
        """The next batch, where the step reads it: valid until the next is taken or held."""
        if self._on_host:
            batches.next_batch(*self._on_host)
            return self.hold(*self._on_host)
        places = self._places(self._batch_shape[0])
        batches.next_batch(*places)
        return places

    def hold(self, *batch: Array) -> list[Array]:
        """NumPy ids of B rows or fewer, copied to where the step reads them; see :meth:`take`."""
        places = self._places(len(batch[0]))
        for place, ids in zip(places, batch, strict=True):
            self.device.upload(place, ids)
        return places

    def _places(self, rows: int) -> list[Array]:
        return [self.view(port.name, (rows, *self._batch_shape[1:])) for port in self.ports]
