"""From a schedule to a memory plan: who declares what, from when to when it lives, and where it is put."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mila.core.checking import located
from mila.core.context import BuildContext, Layout, Overwrite
from mila.core.draft import Draft
from mila.core.planned_build import Optimizer, PlannedBuild, Storage
from mila.core.schedule import Schedule, Step
from mila.core.wide_planning import WidePlanner
from mila.errors import ConfigurationError, DeviceError, UnaddressableError
from mila.memory.declarations import Category, Declaration, Lifetime, Over
from mila.memory.placement import (
    PlacementRequest,
    fullest_step,
    place_by_lifetime,
    place_one_after_another,
)
from mila.memory.plan import GRADIENTS, PARAMETERS, PERSISTENT, TRANSIENT, MemoryPlan, PlannedBuffer
from mila.memory.storage import INT32, DType, accumulation_dtype, align_up

if TYPE_CHECKING:
    from mila.core.component import Component

#: Offsets are 64-bit integers.
_ADDRESSABLE = (1 << 63) - 1


class Planner:
    """Lifetimes over one schedule: forward is steps 0 … n-1, backward n … 2n-1 in reverse, then the caller's turn."""

    def __init__(self, root: Component[Any], schedule: Schedule, context: BuildContext, alignment: int) -> None:
        self._root = root
        self._schedule = schedule
        self._context = context
        self._alignment = alignment
        self._count = len(schedule.steps)
        self._last = 2 * self._count if context.is_training else self._count
        self._may_share = context.layout is Layout.SHARED
        self._draft = Draft()
        self._paths = {component: component.path for component in root.walk()}
        self._producer = {v: i for i, step in enumerate(schedule.steps) for v in step.outputs}
        self._readers: dict[int, list[tuple[int, int]]] = {}
        for i, step in enumerate(schedule.steps):
            for port, value in enumerate(step.inputs):
                self._readers.setdefault(value, []).append((i, port))
        self._captured = self._resolve_captures()
        self._kept = set(schedule.outputs) | {v for values in self._captured.values() for v in values}
        self._values: list[Storage | None] = [None] * len(schedule.shapes)
        self._gradients: dict[int, Storage | None] = {}
        self._declared: list[list[Declaration]] = []
        self._zero_gradients: dict[int, Storage] = {}
        self._output_gradients: dict[int, Storage] = {}
        self._input_ids: dict[int, Storage] = {}
        is_narrow = schedule.options.compute_dtype != schedule.options.dtype
        self._wide = WidePlanner(self._draft, schedule, context.is_training) if is_narrow else None
        self._backward_is_free = not (root.is_composite or root.is_random or set(root.reads) & set(root.output_names))

    def run(self, optimizer: Optimizer | None = None) -> PlannedBuild:
        """Plan everything."""
        trainable = self._plan_parameters(optimizer)
        self._plan_forward()
        if self._context.is_training:
            self._plan_backward()
            self._plan_input_gradients()
        output_dtypes = [self._schedule.dtypes[v] for v in self._schedule.outputs]
        for declaration in self._root.root_buffers(output_dtypes):
            self._draft.add(self._root, declaration, PERSISTENT, [(0, self._last)])
        workspace = self._plan_update(optimizer, trainable)
        arena_bytes, bound, fullest = self._place()
        return PlannedBuild(
            self._memory_plan(arena_bytes, bound, fullest),
            self._schedule,
            self._context,
            self._draft.storages,
            weakref.WeakKeyDictionary(self._draft.names),
            self._zero_gradients,
            self._output_gradients,
            self._input_ids,
            self._captured,
            trainable,
            self._backward_is_free,
            workspace,
            {} if self._wide is None else self._wide.buffers,
        )

    # ------------------------------------------------------------------ lifetimes

    def _backward_of(self, step: int) -> int:
        return 2 * self._count - 1 - step

    def _reads_in_backward(self, step: Step, port: int) -> bool:
        return self._context.is_training and step.leaf.ports[port].name in step.leaf.reads

    def _uses(self, value: int, without: int = -1) -> Iterator[int]:
        """Every step at which a value is read, not counting those of one step's own reader."""
        for i, port in self._readers.get(value, ()):
            if i == without:
                continue
            yield i
            if self._reads_in_backward(self._schedule.steps[i], port):
                yield self._backward_of(i)
        producer = self._producer.get(value)
        if producer is not None and self._context.is_training:
            step = self._schedule.steps[producer]
            if step.leaf.output_names[step.outputs.index(value)] in step.leaf.reads:
                yield self._backward_of(producer)
        if value in self._kept:
            yield self._last

    def _overwritable(self, i: int, value: int) -> Overwrite:
        step = self._schedule.steps[i]
        if value not in self._producer or value in self._kept or step.inputs.count(value) > 1 or not self._may_share:
            return Overwrite.NEVER
        others = max(self._uses(value, without=i), default=-1)
        if others < i:
            return Overwrite.FORWARD
        if self._context.is_training and others < self._backward_of(i):
            return Overwrite.BACKWARD
        return Overwrite.NEVER

    def _gradient_overwritable(self, value: int) -> bool:
        """A gradient is the last consumer's own buffer, except that of a root's output, which is the caller's."""
        return self._context.is_training and self._may_share and value not in self._schedule.outputs

    # ------------------------------------------------------------------ declarations

    def _resolve_captures(self) -> dict[str, tuple[int, ...]]:
        captured = {}
        prefix = f"{self._root.state_path}." if self._root.state_path else ""
        paths = ((component.state_path, component) for component in self._schedule.component_outputs)
        by_path = {path[len(prefix) :]: c for path, c in paths if c is not self._root and path.startswith(prefix)}
        for path in self._context.capture:
            if path not in by_path:
                raise ConfigurationError(f"{self._root.path}: capture names {path!r}, and there is no such child")
            captured[path] = self._schedule.component_outputs[by_path[path]]
        return captured

    def _plan_parameters(self, optimizer: Optimizer | None) -> int:
        """Trainable parameters first, then frozen ones; gradients and moments go with them."""
        whole = [(0, self._last)]
        declared = [(c, d) for c in self._root.walk() for d in c.declared_parameters()]
        dtype = self._root.dtype
        for component, declaration in declared:
            if declaration.trainable and declaration.dtype != dtype and self._context.is_training:
                raise ConfigurationError(
                    f"{component.path}: {declaration.name} is stored as {declaration.dtype} and cannot be trained"
                )
        ordered = sorted(declared, key=lambda pair: not pair[1].trainable)  # stable
        offset = trainable_end = 0
        for component, declaration in ordered:
            storage = self._draft.add(component, declaration, PARAMETERS, whole[:])
            storage.offset = offset
            if declaration.trainable and self._context.is_training:
                self._plan_training_of(component, declaration, offset, optimizer)
                trainable_end = align_up(offset + storage.nbytes, self._alignment)
            offset = align_up(offset + storage.nbytes, self._alignment)
        return trainable_end // dtype.itemsize

    def _plan_training_of(
        self, component: Component[Any], declaration: Declaration, offset: int, optimizer: Optimizer | None
    ) -> None:
        whole = [(0, self._last)]
        gradient = Declaration(
            f"{declaration.name}.gradient", declaration.shape, declaration.dtype, Category.GRADIENT, Lifetime.NETWORK
        )
        self._draft.add(component, gradient, GRADIENTS, whole[:]).offset = offset
        if optimizer is None:
            return
        dtype = accumulation_dtype(declaration.dtype)
        for name in optimizer.moment_names:
            moment = Declaration(
                f"{declaration.name}.{name}", declaration.shape, dtype, Category.STATE, Lifetime.NETWORK
            )
            storage = self._draft.add(component, moment, name, whole[:])
            storage.offset = offset // declaration.dtype.itemsize * dtype.itemsize

    def _plan_forward(self) -> None:
        for i, step in enumerate(self._schedule.steps):
            allowed = (
                tuple(self._overwritable(i, v) for v in step.inputs),
                tuple(self._gradient_overwritable(v) for v in step.outputs),
            )
            if self._wide is not None:
                allowed = self._wide.allowed(step) if self._may_share else allowed
                self._wide.begin(i, step)
            step.context = step.context.allowing(*allowed)
            try:
                declared = list(step.leaf.declare(step.context))
            except DeviceError as error:  # a size that the device's kernels do not take
                raise located(step.leaf.path, error) from error
            self._declared.append(declared)
            for declaration in declared:
                self._plan_declaration(i, step, declaration)
            if any(self._values[v] is None for v in step.outputs):
                raise ConfigurationError(f"{step.leaf.path}: does not declare all of its outputs")
        for value, storage in enumerate(self._values):
            if storage is not None:
                storage.extend_to(max(self._uses(value), default=0))

    def _plan_declaration(self, i: int, step: Step, declaration: Declaration) -> None:
        leaf, lifetime = step.leaf, declaration.lifetime
        training = self._context.is_training
        back = self._backward_of(i)
        if lifetime is Lifetime.OUTPUT:
            self._plan_output(i, step, declaration)
        elif lifetime is Lifetime.NETWORK:
            self._plan_persistent(leaf, declaration)
        elif lifetime is Lifetime.SAVED:
            self._backward_is_free = False
            self._draft.add(leaf, declaration, TRANSIENT, [(i, back if training else i)])
        elif lifetime is Lifetime.FORWARD:
            self._draft.add(leaf, declaration, TRANSIENT, [(i, i)])
        elif lifetime is Lifetime.BACKWARD and training:
            self._draft.add(leaf, declaration, TRANSIENT, [(back, back)])
        elif lifetime is Lifetime.BOTH:
            self._draft.add(leaf, declaration, TRANSIENT, [(i, i), (back, back)] if training else [(i, i)])

    def _plan_output(self, i: int, step: Step, declaration: Declaration) -> None:
        value = step.outputs[declaration.port]
        if self._wide is not None:
            self._values[value] = self._wide.output(i, step, declaration)
            return
        if declaration.over is None:
            self._values[value] = self._draft.add(step.leaf, declaration, TRANSIENT, [(i, i)])
            return
        source = self._values[step.inputs[declaration.over_port]]
        if step.context.overwritable[declaration.over_port] is not Overwrite.FORWARD or source is None:
            raise ConfigurationError(f"{step.leaf.path}: writes over an input that others still read")
        source.extend_to(i)
        self._values[value] = source
        self._draft.bind(step.leaf, declaration.name, source)

    def _plan_persistent(self, leaf: Component[Any], declaration: Declaration) -> None:
        if declaration.key is not None and declaration.key in self._draft.keys:
            self._draft.bind(leaf, declaration.name, self._draft.keys[declaration.key])
            return
        storage = self._draft.add(leaf, declaration, PERSISTENT, [(0, self._last)])
        if declaration.key is not None:
            self._draft.keys[declaration.key] = storage

    # ------------------------------------------------------------------ gradients of values

    def _plan_backward(self) -> None:
        """In the order of the backward pass: the first to contribute owns the buffer that the others are added to."""
        for value in self._schedule.outputs:
            if self._readers.get(value):
                storage = self._synthetic(f"output_gradient_{value}", value, [(self._count, self._count)])
                self._gradients[value] = self._output_gradients[value] = storage
                storage.extend_to(self._backward_of(self._producer[value]))
            else:
                self._gradients[value] = None  # the caller's
        for i in reversed(range(self._count)):
            step, back = self._schedule.steps[i], self._backward_of(i)
            for value in step.outputs:
                if value not in self._gradients:
                    storage = self._synthetic(f"zero_gradient_{value}", value, [(back, back)])
                    self._gradients[value] = self._zero_gradients[value] = storage
            if self._wide is not None:
                self._wide.upstream(i, step)
            for declaration in self._declared[i]:
                if declaration.lifetime is Lifetime.INPUT_GRADIENT:
                    self._plan_gradient(i, step, declaration)

    def _plan_gradient(self, i: int, step: Step, declaration: Declaration) -> None:
        value, back = step.inputs[declaration.port], self._backward_of(i)
        first = value not in self._gradients
        end = back
        if first:
            end = self._backward_of(self._producer[value]) if value in self._producer else self._last
        if self._wide is not None:
            stored = self._wide.gradient(i, step, declaration, end if first else None)
            if stored is not None:
                self._gradients[value] = stored
            return
        if declaration.over is None:
            storage = self._draft.add(step.leaf, declaration, TRANSIENT, [(back, end)])
        else:
            storage = self._gradient_over(step, declaration)
            storage.extend_to(end)
            self._draft.bind(step.leaf, declaration.name, storage)
        if first:
            self._gradients[value] = storage

    def _gradient_over(self, step: Step, declaration: Declaration) -> Storage:
        if declaration.over is Over.GRADIENT:
            allowed = step.context.gradient_overwritable[declaration.over_port]
            storage = self._gradients[step.outputs[declaration.over_port]]
        else:
            allowed = step.context.overwritable[declaration.over_port] is not Overwrite.NEVER
            storage = self._values[step.inputs[declaration.over_port]]
        if not allowed or storage is None:
            raise ConfigurationError(
                f"{step.leaf.path}: {declaration.name} is written over bytes that others still need"
            )
        return storage

    def _plan_input_gradients(self) -> None:
        """Inputs of the root: ids have a zero gradient of their own, and so have activations that nothing reads."""
        for value in range(self._schedule.input_count):
            shape, name = self._schedule.shapes[value], self._root.ports[value].name
            if self._schedule.is_ids[value]:
                declaration = Declaration(f"{name}.gradient", shape, INT32, Category.GRADIENT, Lifetime.NETWORK)
                self._input_ids[value] = self._draft.add(self._root, declaration, PERSISTENT, [(0, self._last)])
            elif value not in self._gradients:
                self._zero_gradients[value] = self._synthetic(f"{name}.gradient", value, [(self._last, self._last)])

    def _synthetic(self, name: str, value: int, intervals: list[tuple[int, int]]) -> Storage:
        declaration = Declaration(
            name,
            self._schedule.shapes[value],
            self._schedule.dtypes[value],
            Category.GRADIENT,
            Lifetime.INPUT_GRADIENT,
        )
        return self._draft.add(self._root, declaration, TRANSIENT, intervals)

    def _plan_update(self, optimizer: Optimizer | None, elements: int) -> Storage | None:
        if optimizer is None or not self._context.is_training:
            return None
        dtype: DType = accumulation_dtype(self._root.dtype)
        size = optimizer.workspace_elements(self._schedule.options.kernels, elements, self._root.dtype)
        declaration = Declaration("update_workspace", (size,), dtype, Category.STATE, Lifetime.BACKWARD)
        return self._draft.add(self._root, declaration, TRANSIENT, [(self._last, self._last)])

    # ------------------------------------------------------------------ placement

    def _place(self) -> tuple[dict[str, int], int, int]:
        sizes = {PARAMETERS: 0, GRADIENTS: 0}
        transient = []
        for storage in self._draft.storages:
            if storage.arena == TRANSIENT:
                transient.append(storage)
                continue
            if storage.offset < 0:
                storage.offset = sizes.get(storage.arena, 0)
            end = align_up(storage.offset + storage.nbytes, self._alignment)
            sizes[storage.arena] = max(sizes.get(storage.arena, 0), end)
        requests = [
            PlacementRequest(
                align_up(s.nbytes, self._alignment), tuple(s.intervals), (self._paths[s.owner], s.declaration.name)
            )
            for s in transient
        ]
        total = sum(sizes.values()) + sum(request.size for request in requests)
        if total > _ADDRESSABLE:
            got = f"{total:,} bytes, more than any memory addresses"
            raise UnaddressableError(f"{self._root.path}: the buffers take {got}")
        place = place_by_lifetime if self._may_share else place_one_after_another
        offsets, sizes[TRANSIENT] = place(requests)
        for storage, offset in zip(transient, offsets, strict=True):
            storage.offset = offset
        fullest, bound = fullest_step(requests)
        return sizes, bound, fullest

    def _memory_plan(self, arena_bytes: dict[str, int], bound: int, fullest: int) -> MemoryPlan:
        steps = [self._paths[step.leaf] for step in self._schedule.steps]
        names = [f"{path} forward" for path in steps]
        if self._context.is_training:
            names += [f"{path} backward" for path in reversed(steps)]
        buffers = tuple(
            PlannedBuffer(
                self._paths[s.owner],
                s.owner.shown_name(s.declaration.name),
                s.declaration.shape,
                s.declaration.dtype,
                s.declaration.category,
                s.declaration.lifetime,
                s.arena,
                s.offset,
                s.nbytes,
                tuple(s.intervals),
                s.declaration.key is not None,
            )
            for s in self._draft.storages
        )
        return MemoryPlan(
            self._root.path, buffers, arena_bytes, self._alignment, (*names, f"{self._root.path} done"), bound, fullest
        )
