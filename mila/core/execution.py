"""A built root: its arenas, and the walk over its schedule, forward and in reverse."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mila.core.bound import BoundSteps
from mila.core.checking import check_gradients, check_inputs, has_sequence_axis, located, refuse_own_bytes
from mila.core.context import Layout
from mila.core.planned_build import PlannedBuild, Storage
from mila.core.run import Position, Run, rows_of
from mila.core.schedule import Schedule, Step, alive, trace
from mila.core.widening import WideStep, prefix
from mila.errors import ConfigurationError, DeviceError, LifecycleError, ShapeError
from mila.kernels.signatures import Array
from mila.memory.arenas import POISON, Arena
from mila.memory.plan import TRANSIENT
from mila.memory.storage import Shape

if TYPE_CHECKING:
    from mila.core.component import Component

#: How many runtime shapes a root remembers as checked.
_REMEMBERED_SHAPES = 64


@dataclass(slots=True)
class _ForwardRecord:
    """What a ``backward`` must match."""

    fingerprints: tuple[Any, ...]
    schedule: Schedule
    run: Run
    consumed: bool = False


class Execution:
    """Arenas and values of one built root."""

    def __init__(self, root: Component[Any], planned: PlannedBuild) -> None:
        self._root_reference = weakref.ref(root)
        self.planned = planned
        self.context = planned.context
        self.schedule = planned.schedule
        self.training_runs = 0
        self.forward_runs = 0
        self.parameter_loads = 0  # a cache made with other parameters is worthless
        context = root.get_execution_context()
        self._device = context.device
        poisoned = self.context.layout is Layout.POISONED
        self.arenas = {
            name: Arena(
                context.allocate,
                self._device.address_of,
                self._device.set_bytes,
                size,
                context.alignment,
                POISON if poisoned and name == TRANSIENT else 0,
            )
            for name, size in planned.plan.arena_bytes.items()
            if size
        }
        self.arrays = [self._array(storage) for storage in planned.storages]
        self._array_of = {id(storage): array for storage, array in zip(planned.storages, self.arrays, strict=True)}
        self._steps: list[Step] = [
            WideStep(step, planned.wide[i], self.array_of, root.dtype, context.kernels) if i in planned.wide else step
            for i, step in enumerate(self.schedule.steps)
        ]
        self._values: list[Array | None] = [None] * len(self.schedule.shapes)
        self._gradients: list[Array | None] = [None] * len(self.schedule.shapes)
        self._record: _ForwardRecord | None = None
        self._is_running = threading.Lock()
        self._checked: dict[tuple[Shape, ...], Schedule] = {}
        self._deaths = self._list_deaths() if poisoned else {}
        self._bound: BoundSteps | None = None
        self._checking = [step for step in self._steps if step.leaf.has_run_check()]

    @property
    def _root(self) -> Component[Any]:
        return alive(self._root_reference)

    # ------------------------------------------------------------------ arrays

    def _array(self, storage: Storage) -> Array:
        declaration = storage.declaration
        if not storage.nbytes:
            return self._device.no_bytes.view(declaration.dtype)
        block = self.arenas[storage.arena].bytes
        return block[storage.offset : storage.offset + storage.nbytes].view(declaration.dtype)

    def array_of(self, storage: Storage) -> Array:
        """The flat array of a storage."""
        return self._array_of[id(storage)]

    def _built_shapes(self) -> list[Shape]:
        return self.schedule.shapes[: self.schedule.input_count]

    def _list_deaths(self) -> dict[int, list[Array]]:
        """For the poisoned layout: whose life ends after each step."""
        deaths: dict[int, list[Array]] = {}
        last = 2 * len(self.schedule.steps) if self.context.is_training else len(self.schedule.steps)
        for storage, array in zip(self.planned.storages, self.arrays, strict=True):
            if storage.arena == TRANSIENT and array.size:
                for _, end in storage.intervals:
                    if end < last:
                        deaths.setdefault(end, []).append(array.view(np.uint8))
        return deaths

    def _end_step(self, step: int) -> None:
        for array in self._deaths.get(step, ()):
            self._device.set_bytes(array, POISON)

    # ------------------------------------------------------------------ forward

    def forward(self, inputs: tuple[Array, ...], position: Position | None = None) -> tuple[Array, ...]:
        """Run the whole schedule; returns the root's outputs."""
        with self.running():
            return self._forward(inputs, position)

    def _forward(self, inputs: tuple[Array, ...], position: Position | None) -> tuple[Array, ...]:
        root = self._root
        arrays = check_inputs(root, root.ports, inputs, self._built_shapes())
        self._refuse_own(arrays, [port.name for port in root.ports])
        schedule = self._schedule_for(tuple(array.shape for array in arrays))
        training = self.context.is_training and not root.is_eval_mode
        run = self._run(arrays, position, training, last_only=False)
        self._walk_forward(run, arrays, len(self.schedule.steps))
        if training:
            self.training_runs += 1
            self._record = _ForwardRecord(tuple(map(self._fingerprint, arrays)), schedule, run)
        return self._made(self.schedule.outputs)

    def evaluate(
        self, component: Component[Any], inputs: tuple[Array, ...], position: Position | None
    ) -> tuple[Array, ...]:
        """Run the schedule up to the outputs of ``component``, whose inputs come first among the root's, as in EVAL."""
        with self.running():
            return self._evaluate(component, inputs, position)

    def _evaluate(
        self, component: Component[Any], inputs: tuple[Array, ...], position: Position | None
    ) -> tuple[Array, ...]:
        root = self._root
        arrays = check_inputs(root, component.ports, inputs, self._built_shapes())
        self._refuse_own(arrays, [port.name for port in component.ports])
        rest = root.input_shapes_of(arrays[0].shape)[len(arrays) :]
        self._schedule_for((*(array.shape for array in arrays), *rest))
        outputs = self.schedule.component_outputs[component]
        stop = 1 + max(i for i, step in enumerate(self.schedule.steps) if set(step.outputs) & set(outputs))
        self._walk_forward(self._run(arrays, position, training=False, last_only=True), arrays, stop)
        return self._made(outputs)

    def _walk_forward(self, run: Run, arrays: Sequence[Array], stop: int) -> None:
        values = self._values
        for step in self._checking:
            step.leaf.check_run(run)
        self._record = None
        self.forward_runs += 1
        is_single = stop == len(self.schedule.steps) and self._is_single_position(arrays)
        if not is_single or self._bound is None:
            self._walk_steps(run, arrays, stop)
        if is_single:  # also where it has just been walked: the same call gives the same bits, the first time or later
            if self._bound is None:
                self._bound = BoundSteps(self._steps, values, len(arrays), self._root.kernels)
            values[:] = self._bound.forward(run, arrays, self._end_step if self._deaths else None)

    def _walk_steps(self, run: Run, arrays: Sequence[Array], stop: int) -> None:
        values = self._values
        values[: len(arrays)] = arrays
        for index, step in enumerate(self._steps[:stop]):
            try:
                step.forward(run, values)
            except DeviceError as error:
                raise located(step.leaf.path, error) from error
            self._end_step(index)

    def _is_single_position(self, arrays: Sequence[Array]) -> bool:
        """Whether this is a step of decoding one row, which is worth binding."""
        is_ids, shape = self._root.ports[0].is_ids, arrays[0].shape
        return (
            self.context.is_inference
            and len(arrays) == 1
            and has_sequence_axis(is_ids, shape)
            and shape[:2] == (1, 1)
            and self._root.is_composite
        )

    def _made(self, values: tuple[int, ...]) -> tuple[Array, ...]:
        return tuple(self._values[v] for v in values)  # type: ignore[misc]

    def _refuse_own(self, arrays: Sequence[Array], names: Sequence[str]) -> None:
        """Transient bytes change during the call that would read them."""
        if TRANSIENT in self.arenas:
            for name, array in zip(names, arrays, strict=True):
                refuse_own_bytes(self._device, f"{self._root.path}: {name!r}", array, self.arenas[TRANSIENT].bytes)

    def _schedule_for(self, shapes: tuple[Shape, ...]) -> Schedule:
        """The schedule traced for runtime shapes: refuses inputs that do not fit each other."""
        if shapes == tuple(self._built_shapes()):
            return self.schedule
        schedule = self._checked.pop(shapes, None)
        if schedule is None:
            names = [port.name for port in self._root.ports]
            by_name = dict(zip(names, shapes, strict=True))
            self._root.check_input_shapes(by_name)
            schedule = trace(self._root, by_name, self.schedule.options)
        self._checked[shapes] = schedule  # the last one asked for is the last to go
        if len(self._checked) > _REMEMBERED_SHAPES:
            del self._checked[next(iter(self._checked))]
        return schedule

    def _run(self, arrays: Sequence[Array], position: Position | None, training: bool, last_only: bool) -> Run:
        root = self._root
        shape = arrays[0].shape
        if not has_sequence_axis(root.ports[0].is_ids, shape):
            if position is not None:
                raise ShapeError(f"{root.path}: position needs an input with a sequence axis, got shape {shape}")
            return Run((), (), training, self.training_runs, root.seed, last_only)
        rows, length = shape[:2]
        if position is not None and not isinstance(position, Position):
            raise ShapeError(f"{root.path}: expected a Position(start, length), got {position!r}")
        if position is None:
            return Run((0,) * rows, (length,) * rows, training, self.training_runs, root.seed, last_only)
        limit = self.schedule.options.max_seq_len
        starts, lengths = rows_of(root, position, rows, length, limit)
        return Run(starts, lengths, training, self.training_runs, root.seed, last_only)

    def captured(self, path: str) -> tuple[Array, ...]:
        """The last outputs of a captured child."""
        values = self.planned.captured.get(path)
        if values is None:
            raise ConfigurationError(f"{self._root.path}: {path!r} was not named in BuildContext.capture")
        if any(self._values[v] is None for v in values):
            raise LifecycleError(f"{self._root.path}: captured values exist after forward")
        return self._made(values)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """One call at a time: two threads would write into the same buffers."""
        if not self._is_running.acquire(blocking=False):
            raise LifecycleError(
                f"{self._root.path}: is running already, in another thread; a root runs one call at a time"
            )
        try:
            yield
            self._device.hand_over()
        finally:
            self._is_running.release()

    def forget_forward(self) -> None:
        """Refuse ``backward`` until the next ``forward``."""
        self._record = None

    # ------------------------------------------------------------------ backward

    def backward(self, arguments: tuple[Array, ...]) -> tuple[Array, ...]:
        """Walk the schedule in reverse; ``arguments`` are the inputs and one gradient per output."""
        with self.running():
            return self._backward(arguments)

    def _backward(self, arguments: tuple[Array, ...]) -> tuple[Array, ...]:
        root = self._root
        count = len(root.ports)
        expected = count + len(self.schedule.outputs)
        if len(arguments) != expected:
            raise ShapeError(
                f"{root.path}: backward expected {count} inputs and {expected - count} gradients, "
                f"got {len(arguments)} arrays"
            )
        inputs = check_inputs(root, root.ports, arguments[:count], self._built_shapes())
        record = self._matching_record(inputs)
        output_shapes = [record.schedule.shapes[v] for v in record.schedule.outputs]
        output_dtypes = [self.schedule.dtypes[v] for v in self.schedule.outputs]
        gradients = check_gradients(root, arguments[count:], output_shapes, output_dtypes)
        made = self._made(self.schedule.outputs)
        outputs = [self._fingerprint(a) for a in made if a is not None]  # alive until the end
        named = zip(root.output_names, gradients, strict=True)
        others = {name: gradient for name, gradient in named if self._fingerprint(gradient) not in outputs}
        self._refuse_own(list(others.values()), list(others))
        self._record = record
        record.consumed = True
        self._seed_gradients(record.schedule, gradients)
        self._walk_backward(record.run)
        self._write_pending_zeros()
        return tuple(self._input_gradient(v, array) for v, array in enumerate(inputs))

    def _matching_record(self, inputs: Sequence[Array]) -> _ForwardRecord:
        path = self._root.path
        if self.context.is_inference:
            raise LifecycleError(f"{path}: backward needs a build for training, this one is for inference")
        if self._root.is_eval_mode:
            raise LifecycleError(f"{path}: backward is refused in EVAL; set_training_mode(TrainingMode.NORMAL) first")
        fingerprints = tuple(map(self._fingerprint, inputs))
        record = self._record
        if self.planned.backward_is_free and (record is None or record.fingerprints != fingerprints):
            self._values[: len(inputs)] = inputs
            schedule = self._schedule_for(tuple(array.shape for array in inputs))
            return _ForwardRecord(fingerprints, schedule, self._run(inputs, None, True, False))
        if record is None:
            raise LifecycleError(f"{path}: backward needs a forward in NORMAL mode before it")
        if record.fingerprints != fingerprints:
            raise LifecycleError(f"{path}: backward was given other inputs than the forward before it")
        if record.consumed and self._root.is_composite:
            raise LifecycleError(f"{path}: backward has consumed the activations; call forward again")
        return record

    def _seed_gradients(self, schedule: Schedule, gradients: Sequence[Array]) -> None:
        self._gradients[:] = [None] * len(self._gradients)
        for value, runtime_value, array in zip(self.schedule.outputs, schedule.outputs, gradients, strict=True):
            storage = self.planned.output_gradients.get(value)
            if storage is None:
                self._gradients[value] = array
                continue
            own = prefix(self.array_of(storage), schedule.shapes[runtime_value])
            self._root.kernels.copy(own, array)
            self._gradients[value] = own

    def _walk_backward(self, run: Run) -> None:
        values, gradients = self._values, self._gradients
        count = len(self.schedule.steps)
        for index in reversed(range(count)):
            step = self._steps[index]
            for value in step.outputs:
                array = values[value]
                if gradients[value] is None and array is not None:
                    gradients[value] = self._zeros(value, array.shape)
            try:
                contributions = step.backward(run, values, gradients)
            except DeviceError as error:
                raise located(step.leaf.path, error) from error
            for value, contribution in zip(step.inputs, contributions, strict=True):
                collected = gradients[value]
                if contribution is None:
                    continue
                if collected is None:
                    gradients[value] = step.kept(value, contribution)
                else:
                    self._root.kernels.add_in_place(collected, contribution)
            self._end_step(2 * count - 1 - index)

    def _input_gradient(self, value: int, array: Array) -> Array:
        storage = self.planned.input_ids.get(value)
        if storage is not None:
            return prefix(self.array_of(storage), array.shape)
        collected = self._gradients[value]
        return self._zeros(value, array.shape) if collected is None else collected

    def _zeros(self, value: int, shape: Shape) -> Array:
        """The gradient of a value that nobody uses."""
        zeros = prefix(self.array_of(self.planned.zero_gradients[value]), shape)
        self._device.set_bytes(zeros, 0)
        return zeros

    def _write_pending_zeros(self) -> None:
        for component in self._root.walk():
            for gradient in component._gradients.values():
                gradient.read()

    def _fingerprint(self, array: Array) -> tuple[Any, ...]:
        return (self._device.address_of(array), array.shape, array.dtype)
