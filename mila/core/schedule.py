"""The flattened schedule: a tree of components as one list of leaf steps, with the shape of every value."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mila.core.context import LeafContext
from mila.core.modes import RuntimeMode
from mila.errors import ConfigurationError, DeviceError, LifecycleError
from mila.kernels.signatures import Array, Kernels
from mila.memory.storage import INT32, DType, Shape, accumulation_dtype

if TYPE_CHECKING:
    from mila.core.component import Component
    from mila.core.run import Run

ValueT = TypeVar("ValueT")
#: Something for each component, which does not keep them alive.
ByComponent = weakref.WeakKeyDictionary["Component[Any]", ValueT]


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What all steps of a schedule have in common; ``dtype`` is the stored one."""

    runtime_mode: RuntimeMode
    dtype: DType
    kernels: Kernels
    max_seq_len: int
    all_logits: bool

    @property
    def compute_dtype(self) -> DType:
        """The dtype that leaves compute in."""
        return self.kernels.compute_dtype(self.dtype)


class Step:
    """One leaf, the values it reads and the values it makes.

    The leaf is not kept alive: a built root holds its schedule, and must not hold itself through it, or dropping the
    root would not give its memory back at once.
    """

    __slots__ = ("_leaf", "context", "inputs", "outputs")

    #: Whether the leaf may be bound to the arrays of the values themselves.
    may_bind: ClassVar[bool] = True

    def __init__(
        self, leaf: Component[Any], inputs: tuple[int, ...], outputs: tuple[int, ...], context: LeafContext
    ) -> None:
        self._leaf = weakref.ref(leaf)
        self.inputs = inputs
        self.outputs = outputs
        self.context = context

    @property
    def leaf(self) -> Component[Any]:
        """The component that computes the step."""
        return alive(self._leaf)

    def forward(self, run: Run, values: list[Array | None]) -> None:
        """Compute the step's outputs from its inputs, both in ``values``."""
        made = self.leaf.forward_step(run, *[values[v] for v in self.inputs])  # type: ignore[arg-type]
        for value, array in zip(self.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            values[value] = array

    def backward(
        self, run: Run, values: Sequence[Array | None], gradients: Sequence[Array | None]
    ) -> tuple[Array | None, ...]:
        """Contributions to the gradients of the step's inputs, from the ``gradients`` of its outputs."""
        return self.leaf.backward_step(
            run,
            tuple(values[v] for v in self.inputs),  # type: ignore[misc]
            tuple(gradients[v] for v in self.outputs),  # type: ignore[misc]
        )

    def kept(self, value: int, contribution: Array) -> Array:
        """The first contribution to the gradient of ``value``, where it stays until all others were added to it."""
        return contribution


@dataclass(slots=True)
class Schedule:
    """Leaf steps in the order of forward; values are numbered, the root's inputs first.

    Attributes:
        options: what all steps have in common.
        shapes: shape of every value.
        dtypes: stored dtype of every value; int32 for all ids.
        is_ids: whether a value holds integer ids.
        outputs: values that the root returns.
        component_inputs: values read by each component, composites included.
        component_outputs: values made by each component.
    """

    options: ScheduleOptions
    steps: list[Step] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    dtypes: list[DType] = field(default_factory=list)
    is_ids: list[bool] = field(default_factory=list)
    input_count: int = 0
    outputs: tuple[int, ...] = ()
    component_inputs: ByComponent[tuple[int, ...]] = field(default_factory=weakref.WeakKeyDictionary)
    component_outputs: ByComponent[tuple[int, ...]] = field(default_factory=weakref.WeakKeyDictionary)


def alive(reference: weakref.ref[Component[Any]]) -> Component[Any]:
    """The component that ``reference`` means."""
    component = reference()
    if component is None:
        raise LifecycleError("the network that this belonged to no longer exists; keep a reference to its root")
    return component


def trace(root: Component[Any], shapes: Mapping[str, Shape], options: ScheduleOptions) -> Schedule:
    """Flatten ``root`` for inputs of ``shapes`` (by port name, in port order).

    Raises:
        ShapeError: a leaf refuses its input shapes; the message names its path.
        DeviceError: an array has more axes than the device takes.
        ConfigurationError: the graph gives ids where activations are expected, or the other way round.
    """
    schedule = Schedule(
        options,
        shapes=list(shapes.values()),
        dtypes=[INT32 if port.is_ids else options.dtype for port in root.ports],
        is_ids=[port.is_ids for port in root.ports],
        input_count=len(root.ports),
    )
    schedule.outputs = _visit(root, tuple(range(len(root.ports))), schedule)
    if len(set(schedule.outputs)) != len(schedule.outputs) or any(v < schedule.input_count for v in schedule.outputs):
        raise ConfigurationError(f"{root.path}: outputs must be values of its own, each returned once")
    return schedule


def _visit(component: Component[Any], inputs: tuple[int, ...], schedule: Schedule) -> tuple[int, ...]:
    schedule.component_inputs[component] = inputs
    if component.graph is not None:
        values = list(inputs) + [-1] * (component.graph.value_count - len(inputs))
        for node in component.graph.nodes:
            made = _visit(node.child, tuple(values[i] for i in node.inputs), schedule)
            component.check_child(node.child, tuple(schedule.shapes[value] for value in made))
            for index, value in zip(node.outputs, made, strict=True):
                values[index] = value
        outputs = tuple(values[i] for i in component.graph_outputs)
    else:
        outputs = _visit_leaf(component, inputs, schedule)
    schedule.component_outputs[component] = outputs
    return outputs


def _visit_leaf(leaf: Component[Any], inputs: tuple[int, ...], schedule: Schedule) -> tuple[int, ...]:
    options = schedule.options
    for port, value in zip(leaf.ports, inputs, strict=True):
        if port.is_ids != schedule.is_ids[value]:
            expected, got = ("ids", "activations") if port.is_ids else ("activations", "ids")
            raise ConfigurationError(f"{leaf.path}: input {port.name!r} expected {expected}, got {got}")
    context = LeafContext(
        tuple(schedule.shapes[value] for value in inputs),
        options.runtime_mode,
        options.compute_dtype,
        options.max_seq_len,
        options.all_logits,
        options.kernels,
    )
    leaf.check_build(context)
    shapes = leaf.output_shapes(context)
    for shape in (*context.input_shapes, *shapes):
        if len(shape) > options.kernels.most_axes:
            most = options.kernels.most_axes
            raise DeviceError(f"{leaf.path}: the device takes arrays of at most {most} axes, got {shape}")
    if leaf.is_identity(context) and inputs[0] >= schedule.input_count:  # a root never returns its caller's own array
        return inputs[:1]
    outputs = tuple(range(len(schedule.shapes), len(schedule.shapes) + len(shapes)))
    schedule.shapes.extend(shapes)
    wide = accumulation_dtype(options.dtype)
    schedule.dtypes.extend(wide if name in leaf.wide_outputs else options.dtype for name in leaf.output_names)
    schedule.is_ids.extend([False] * len(shapes))
    schedule.steps.append(Step(leaf, inputs, outputs, context))
    return outputs
