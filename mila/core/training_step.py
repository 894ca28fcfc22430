"""One training step: network, loss and optimizer in one root, so that one plan holds all that training takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from mila.core import lifecycle, state
from mila.core.checking import located
from mila.core.component import Component
from mila.core.composite import CompositeComponent
from mila.core.config import ComponentConfig
from mila.core.context import BuildContext
from mila.core.execution import Execution
from mila.core.graph import Graph, Port, Reference
from mila.core.modes import ComponentType
from mila.core.planned_build import Optimizer, PlannedBuild
from mila.core.run import Position
from mila.devices import DeviceId, ExecutionContext
from mila.errors import ConfigurationError, DeviceError, LifecycleError, NonFiniteError
from mila.kernels.signatures import Array
from mila.memory.declarations import Category, Declaration, Lifetime
from mila.memory.plan import GRADIENTS, PARAMETERS
from mila.memory.storage import DType, Shape, accumulation_dtype

_LOSS_GRADIENT = "loss_gradient"


class TrainingStepConfig(ComponentConfig):
    """Nothing: network, loss and optimizer say it all."""


class TrainingStep(CompositeComponent[TrainingStepConfig]):
    """``loss(network(inputs), targets)`` with an optimizer.

    It adds no segment to paths: state names, seeds and checkpoints are those of the network alone.

    Args:
        network: unbuilt; its execution context, dtype and seed become the step's.
        loss: a component that reads the network's output and targets, and makes one number.
        optimizer: such as ``mila.training.AdamW``.
        device: for a network without an execution context.
    """

    config_class = TrainingStepConfig
    component_type = ComponentType.TRAINING_STEP
    has_path_segment: ClassVar[bool] = False

    def __init__(
        self,
        network: Component[Any],
        loss: Component[Any],
        optimizer: Optimizer,
        *,
        device: str | DeviceId | None = None,
        name: str = "training_step",
    ) -> None:
        for part in (network, loss):
            if part.parent is not None:
                raise ConfigurationError(f"{part.path}: is part of another network; a training step takes roots")
            if part.is_built:
                raise LifecycleError(f"{part.path}: is built; a training step takes an unbuilt network and loss")
        if len(network.output_names) != 1 or len(loss.ports) != 2:
            raise ConfigurationError(
                f"{network.path}: a training step takes one output, and a loss of (output, targets)"
            )
        context, seed = network._execution_context, network._seed
        if context is not None and device is not None:
            raise ConfigurationError(f"{network.path}: has a device already, got device={device!r}")
        self.network = network
        self.loss = loss
        self.optimizer = optimizer
        self.update_count = 0
        self.ports = (*network.ports, Port("targets", is_ids=loss.ports[1].is_ids))
        self._decay_segments: list[tuple[int, int, float]] = []
        network._execution_context = network._seed = None  # they move to the step
        try:
            super().__init__(name, dtype=network.dtype, seed=seed)
            self.check_dtypes()
            if context is not None or device is not None:
                self.set_execution_context(context if context is not None else ExecutionContext(device or "cpu"))
        except BaseException:
            network._execution_context, network._seed = context, seed
            network._parent = loss._parent = None
            raise

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        """The network, then the loss."""
        return graph.add(self.loss, graph.add(self.network, *inputs[:-1]), inputs[-1])

    def optimizer_to_plan(self) -> Optimizer:
        """The optimizer whose moments are part of the plan."""
        return self.optimizer

    def input_shapes_of(self, shape: Shape) -> tuple[Shape, ...]:
        """One target per position of the first input."""
        return (*self.network.input_shapes_of(shape), shape if self.ports[0].is_ids else shape[:-1])

    @property
    def takes_shorter_sequences(self) -> bool:
        """As the network."""
        return self.network.takes_shorter_sequences

    def check_input_shapes(self, shapes: Mapping[str, Shape]) -> None:
        """What the network says of its own inputs."""
        self.network.check_input_shapes({port.name: shapes[port.name] for port in self.network.ports})

    def root_buffers(self, output_dtypes: Sequence[DType]) -> Iterator[Declaration]:
        """The gradient of the loss with respect to itself."""
        yield Declaration(_LOSS_GRADIENT, (1,), output_dtypes[0], Category.GRADIENT, Lifetime.NETWORK)

    def check_context(self, context: BuildContext) -> None:
        """Only for training."""
        if context.is_inference:
            raise LifecycleError(
                f"{self.path}: a training step is built for training; build the network alone for inference"
            )

    def backward(self, *arguments: Array, loss_scale: float = 1.0) -> Any:
        """Gradients of ``loss_scale * loss``; ``arguments`` are the inputs and targets of the last ``forward``.

        Over ``k`` equal parts of a batch, ``loss_scale=1/k`` adds up to the gradients of the whole batch's mean loss.
        """
        execution = lifecycle.execution_of(self, "backward")
        loss_gradient = self.view(_LOSS_GRADIENT, (1,))
        self.kernels.fill(loss_gradient, loss_scale)
        return lifecycle.unpack(execution.backward((*arguments, loss_gradient)))

    def update(self, learning_rate: float) -> float:
        """Clip the gradients and move the parameters; returns the norm of the gradients before clipping.

        Raises:
            NonFiniteError: a gradient is not finite; names the first such parameter. Nothing was changed.
        """
        execution = lifecycle.execution_of(self, "update")
        if self.is_eval_mode:
            raise LifecycleError(f"{self.path}: update is refused in EVAL")
        with execution.running():
            return self._update(execution, learning_rate)

    def _update(self, execution: Execution, learning_rate: float) -> float:
        gradients = [gradient for component in self.walk() for gradient in component._gradients.values()]
        if gradients and all(gradient.is_zero for gradient in gradients):
            raise LifecycleError(f"{self.path}: update needs gradients; call backward first")
        for gradient in gradients:
            gradient.read()  # writes zeros that are still pending
        planned, dtype = execution.planned, self.dtype
        count = planned.trainable_elements
        moments = {
            name: execution.arenas[name].bytes.view(accumulation_dtype(dtype))[:count]
            for name in self.optimizer.moment_names
            if count
        }
        workspace = planned.update_workspace
        if not count or workspace is None:
            raise ConfigurationError(f"{self.path}: there is no trainable parameter to update")
        try:
            norm = self.optimizer.apply(
                self.kernels,
                self._segments(planned),
                execution.arenas[PARAMETERS].bytes.view(dtype)[:count],
                execution.arenas[GRADIENTS].bytes.view(dtype)[:count],
                moments,
                execution.array_of(workspace),
                learning_rate,
                self.update_count + 1,
            )
        except DeviceError as error:
            raise located(self.path, error) from error
        if not math.isfinite(norm):
            self._refuse_non_finite()
        self.update_count += 1
        return norm

    @property
    def training_run_count(self) -> int:
        """Forward passes in NORMAL mode since the build: part of the key of dropout masks."""
        return lifecycle.execution_of(self, "training_run_count").training_runs

    def restore_counts(self, update_count: int, training_run_count: int) -> None:
        """Go on from the counts of an earlier run, whose parameters and moments were loaded.

        Raises:
            ConfigurationError: a negative count.
        """
        if min(update_count, training_run_count) < 0:
            raise ConfigurationError(
                f"{self.path}: expected counts of 0 or more, got {update_count} updates and {training_run_count} runs"
            )
        lifecycle.execution_of(self, "restore_counts").training_runs = training_run_count
        self.update_count = update_count

    def optimizer_moments(self) -> dict[str, Array]:
        """The optimizer's moments by ``<moment>.<state name of the parameter>``: writable views of their arenas."""
        self.require_built("optimizer_moments")
        return {
            f"{moment}.{name}": part.view(f"{declaration.name}.{moment}", declaration.shape)
            for moment in self.optimizer.moment_names
            for name, part, declaration in state.declared_state(self)
            if part.has_buffer(f"{declaration.name}.{moment}")
        }

    def logits(self, *inputs: Array, position: Position | None = None) -> Array:
        """The network alone, in EVAL, at the last valid position only: (B, 1, V).

        Gradients stay as they are; the next ``backward`` needs a ``forward`` before it.
        """
        return lifecycle.execution_of(self, "logits").evaluate(self.network, inputs, position)[0]

    def _segments(self, planned: PlannedBuild) -> list[tuple[int, int, float]]:
        """(start, stop, weight decay) over the flat trainable parameters, neighbours of equal decay joined."""
        if self._decay_segments:
            return self._decay_segments
        for storage in planned.storages:
            declaration = storage.declaration
            if storage.arena != PARAMETERS or not declaration.trainable:
                continue
            start = storage.offset // declaration.dtype.itemsize
            stop = start + declaration.elements
            decay = self.optimizer.decay_of(storage.owner, declaration)
            if self._decay_segments and self._decay_segments[-1][2] == decay:
                start = self._decay_segments.pop()[0]
            self._decay_segments.append((start, stop, decay))
        return self._decay_segments

    def _refuse_non_finite(self) -> None:
        for component in self.walk():
            for declaration in component.declared_parameters():
                gradient = component.parameter_gradient(declaration.name)
                index = -1 if gradient is None else self.kernels.first_non_finite(gradient.read())
                if gradient is not None and index >= 0:
                    value = self.device.download(gradient.read().reshape(-1)[index : index + 1])[0]
                    where = tuple(map(int, np.unravel_index(index, declaration.shape)))
                    raise NonFiniteError(
                        f"{component.path}: the gradient of {declaration.name!r} is {value} at {where}; "
                        "nothing was updated"
                    )
        raise NonFiniteError(f"{self.path}: the norm of the gradients is not finite; nothing was updated")
