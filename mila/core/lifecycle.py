"""Planning, building and switching: the parts of a component's life that concern its whole tree."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from mila.core.checking import has_sequence_axis, located
from mila.core.context import ANY_INPUT, BuildContext
from mila.core.execution import Execution
from mila.core.initializers import generator_for, initialize
from mila.core.modes import TrainingMode
from mila.core.parameters import ParameterGradient
from mila.core.planned_build import PlannedBuild
from mila.core.planner import Planner
from mila.core.schedule import ScheduleOptions, trace
from mila.core.widening import WideGradient, wide_name
from mila.devices import ExecutionContext, address_of, kernels_to_plan_with
from mila.errors import (
    ConfigurationError,
    DeviceError,
    LifecycleError,
    OutOfMemoryError,
    ShapeError,
)
from mila.kernels.signatures import Array
from mila.memory.declarations import Category, Declaration
from mila.memory.format import format_bytes
from mila.memory.plan import MemoryPlan
from mila.memory.stats import MemoryStats
from mila.memory.storage import INT32, Shape

if TYPE_CHECKING:
    from mila.core.component import Component


# ---------------------------------------------------------------------- planning


def planned(component: Component[Any], context: BuildContext) -> PlannedBuild:
    """Validate ``context`` as a build would, and plan."""
    if not isinstance(context, BuildContext):
        raise ConfigurationError(f"{component.path}: expected a BuildContext, got {context!r}")
    component.check_dtypes()
    component.check_context(context)
    own = component.root._execution_context
    kernels = own.kernels if own is not None else kernels_to_plan_with()
    resolved, max_seq_len = _resolve(component, context)
    component.check_input_shapes(resolved.input_shapes)
    options = ScheduleOptions(resolved.runtime_mode, component.dtype, kernels, max_seq_len, resolved.all_logits)
    schedule = trace(component, resolved.input_shapes, options)
    alignment = own.alignment if own is not None else ExecutionContext.alignment
    return Planner(component, schedule, resolved, alignment).run(component.optimizer_to_plan())


def _resolve(component: Component[Any], context: BuildContext) -> tuple[BuildContext, int]:
    """Shapes by port name, with the sequence axis that inference allocates for, and the full sequence length."""
    shapes = _shapes_by_port(component, context)
    lengths = {
        shape[1] for port, shape in zip(component.ports, shapes, strict=True) if has_sequence_axis(port.is_ids, shape)
    }
    length = max(lengths, default=1)
    max_seq_len = length if context.max_seq_len is None else context.max_seq_len
    if max_seq_len < length:
        raise ShapeError(f"{component.path}: max_seq_len {max_seq_len} is less than the sequence length {length}")
    if context.is_inference and lengths:
        allocated = _prefill_size(component, context, length)
        shapes = [
            (shape[0], min(shape[1], allocated), *shape[2:]) if has_sequence_axis(port.is_ids, shape) else shape
            for port, shape in zip(component.ports, shapes, strict=True)
        ]
    elif context.prefill_size is not None:
        raise ShapeError(f"{component.path}: prefill_size needs an input with a sequence axis, got {shapes}")
    names = [port.name for port in component.ports]
    dtypes = [INT32 if port.is_ids else component.dtype for port in component.ports]
    resolved = context.with_shapes(
        dict(zip(names, shapes, strict=True)), dict(zip(names, dtypes, strict=True)), max_seq_len
    )
    return resolved, max_seq_len


def _shapes_by_port(component: Component[Any], context: BuildContext) -> list[Shape]:
    given = context.input_shapes
    names = [port.name for port in component.ports]
    if ANY_INPUT in given:
        return list(component.input_shapes_of(given[ANY_INPUT]))
    if set(given) != set(names):
        raise ShapeError(f"{component.path}: expected shapes for {', '.join(names)}, got {', '.join(given)}")
    return [given[name] for name in names]


def _prefill_size(component: Component[Any], context: BuildContext, length: int) -> int:
    if context.prefill_size is None:
        return component.default_prefill_size(length)
    if context.prefill_size > length:
        raise ShapeError(
            f"{component.path}: prefill_size {context.prefill_size} is more than the sequence length {length}"
        )
    if not component.accepts_prefill_size:
        raise ConfigurationError(f"{component.path}: does not work on chunks of a sequence, got prefill_size")
    return context.prefill_size


# ---------------------------------------------------------------------- building


def build(component: Component[Any], context: BuildContext) -> None:
    """Build a root: everything or nothing."""
    if component.parent is not None:
        raise LifecycleError(f"{component.path}: only a root is built; build {component.root.path!r}")
    if component.is_built:
        raise LifecycleError(f"{component.path}: is built already; a build is final")
    if not component.has_execution_context:
        raise LifecycleError(f"{component.path}: has no execution context; construct it with device='cpu' or set one")
    plan = planned(component, context)
    _require_available(component, plan.plan)
    try:
        execution = Execution(component, plan)
    except MemoryError:
        raise _out_of_memory(component, plan.plan, None) from None
    bound = _Binding(component, execution)
    _initialize(component, execution, bound)
    contexts = _contexts_of(component, plan)
    for part in component.walk():
        part.on_building(contexts[part])
    bound.commit(contexts)
    component._execution = execution


def _require_available(component: Component[Any], plan: MemoryPlan) -> None:
    available = component.get_execution_context().available_bytes()
    if available is not None and plan.reserved_bytes > available:
        raise _out_of_memory(component, plan, available)


def _out_of_memory(component: Component[Any], plan: MemoryPlan, available: int | None) -> OutOfMemoryError:
    largest = ", ".join(f"{b.path}.{b.name} {format_bytes(b.nbytes)}" for b in plan.largest())
    there = "the allocator refused" if available is None else f"{available:,} ({format_bytes(available)}) are available"
    total = component.device.total_bytes()
    if total is not None:
        there += f" of {total:,} ({format_bytes(total)}) of {component.device_id}"
    return OutOfMemoryError(
        f"{component.path}: the build needs {plan.reserved_bytes:,} bytes ({format_bytes(plan.reserved_bytes)}) and "
        f"{there}; the largest buffers are {largest}"
    )


class _Binding:
    """Arrays by component, held aside until the build is sure to succeed."""

    def __init__(self, root: Component[Any], execution: Execution) -> None:
        self._root = root
        self.arrays: dict[Component[Any], dict[str, Array]] = {}
        self._gradients: dict[Component[Any], dict[str, ParameterGradient]] = {}
        self._stored: dict[Component[Any], dict[str, Array]] = {}
        self._owned: dict[Component[Any], list[tuple[Array, Category]]] = {}
        for component, storages in execution.planned.names.items():
            self.arrays[component] = {name: execution.array_of(storage) for name, storage in storages.items()}
        for storage, array in zip(execution.planned.storages, execution.arrays, strict=True):
            self._owned.setdefault(storage.owner, []).append((array, storage.declaration.category))
        for component in root.walk():
            for declaration in component.declared_parameters():
                self._bind_parameter(component, declaration)

    def _bind_parameter(self, component: Component[Any], declaration: Declaration) -> None:
        """A parameter and its gradient, and the scratch in which steps see them."""
        arrays, name, shape = self.arrays[component], declaration.name, declaration.shape
        stored = self._stored.setdefault(component, {})[name] = arrays[name].reshape(shape)
        wide = arrays.pop(wide_name(name), None)
        arrays[name] = stored if wide is None else wide.reshape(shape)
        gradient = arrays.pop(f"{name}.gradient", None)
        if gradient is None:
            return
        wide, gradient = arrays.pop(wide_name(f"{name}.gradient"), None), gradient.reshape(shape)
        set_bytes = self._root.device.set_bytes
        self._gradients.setdefault(component, {})[name] = (
            ParameterGradient(gradient, set_bytes)
            if wide is None
            else WideGradient(gradient, set_bytes, wide.reshape(shape), self._root.kernels.cast)
        )

    def commit(self, contexts: dict[Component[Any], BuildContext]) -> None:
        lock = threading.RLock()
        missing: dict[str, None] = {}
        for component in self._root.walk():
            component._arrays = self.arrays.get(component, {})
            component._stored = self._stored.get(component, {})
            component._gradients = self._gradients.get(component, {})
            component._owned = self._owned.get(component, [])
            component._training_mode = TrainingMode.NORMAL
            component._mode_lock = lock
            component._build_context = contexts[component]
            component._missing = missing
            if not contexts[component].initialize_parameters:
                missing.update((component.state_name(d.name), None) for d in component.declared_parameters())


def _initialize(root: Component[Any], execution: Execution, bound: _Binding) -> None:
    draw, device = execution.context.initialize_parameters, root.device
    for storage, array in zip(execution.planned.storages, execution.arrays, strict=True):
        declaration = storage.declaration
        if declaration.initializer is None or (declaration.category is Category.PARAMETER and not draw):
            continue
        generator = generator_for(root.seed, storage.owner.state_name(declaration.name))
        try:
            initialize(device, declaration, array.reshape(declaration.shape), generator)
        except ConfigurationError as error:
            raise ConfigurationError(f"{storage.owner.path}: {declaration.name}: {error}") from None
        except DeviceError as error:
            raise located(storage.owner.path, error) from error


def _contexts_of(root: Component[Any], plan: PlannedBuild) -> dict[Component[Any], BuildContext]:
    """The context of every component: the root's, with the shapes of its own inputs."""
    schedule, contexts = plan.schedule, {}
    for component in root.walk():
        values = schedule.component_inputs[component]
        names = [port.name for port in component.ports]
        shapes = {name: schedule.shapes[v] for name, v in zip(names, values, strict=True)}
        dtypes = {name: schedule.dtypes[v] for name, v in zip(names, values, strict=True)}
        contexts[component] = plan.context.with_shapes(shapes, dtypes, plan.context.max_seq_len)
    return contexts


# ---------------------------------------------------------------------- after the build


def live_stats(component: Component[Any]) -> MemoryStats:
    """The union of the bytes of all live arrays below ``component``, read from their addresses."""
    ranges = []
    for part in component.walk():
        for array, category in part._owned:
            start = address_of(array)
            ranges.append((start, start + array.nbytes, category))
    return MemoryStats.of_device_ranges(ranges)


def set_training_mode(component: Component[Any], mode: TrainingMode) -> None:
    """Hooks first, then the state, for the component and everything below it."""
    component.require_built("set_training_mode")
    if not component.is_training_mode:
        raise LifecycleError(f"{component.path}: an inference build is always in EVAL")
    if not isinstance(mode, TrainingMode):
        raise ConfigurationError(f"{component.path}: expected a TrainingMode, got {mode!r}")
    with component._mode_lock or contextlib.nullcontext():
        changing = [part for part in component.walk() if part._training_mode is not mode]
        for part in changing:
            part.on_training_mode_changing(mode)
        for part in changing:
            part._training_mode = mode
        execution = component.root._execution
        if changing and execution is not None:
            execution.forget_forward()


def execution_of(component: Component[Any], call: str) -> Execution:
    """The execution of a built root; :class:`LifecycleError` for anything else, or while parameters are missing."""
    component.require_built(call)
    if component.parent is not None or component._execution is None:
        raise LifecycleError(f"{component.path}: only a root runs; call {call} on {component.root.path!r}")
    if component._missing:
        missing = list(component._missing)
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise LifecycleError(
            f"{component.path}: {call} needs all parameters, and these were neither initialised nor loaded: {shown}; "
            "load them, or build with initialize_parameters=True"
        )
    return component._execution


def unpack(arrays: tuple[Array, ...]) -> Any:
    """One array by itself, several as a tuple."""
    return arrays[0] if len(arrays) == 1 else arrays


def _status(component: Component[Any]) -> str:
    if component._build_context is None:
        return "unbuilt"
    if component._execution is not None:
        held = f"{component._execution.planned.plan.reserved_bytes:,} bytes reserved"
    else:
        held = f"{live_stats(component).total_bytes:,} bytes occupied"
    return f"built for {component._build_context.runtime_mode.value}, {held}"


def describe(component: Component[Any], depth: int = 0) -> str:
    """The nested form of ``repr``: safe in every state."""
    if component.is_orphan:
        return f"{type(component).__name__}({component.name!r}, its network no longer exists)"
    count = component.parameter_count()
    size = sum(d.nbytes for c in component.walk() for d in c.declared_parameters())
    head = f"{type(component).__name__}({component.name!r}, {count:,} parameters"
    head += f" of {format_bytes(size)}, {_status(component)}" if depth == 0 else ""
    if not component.components:
        fields = ", ".join(f"{name}={value!r}" for name, value in component.config)
        return f"{head}, {fields})" if fields else f"{head})"
    indent = "  " * (depth + 1)
    children = "\n".join(f"{indent}({c.name}): {describe(c, depth + 1)}" for c in component.components)
    return f"{head}\n{children}\n{'  ' * depth})"
