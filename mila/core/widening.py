"""Networks that are stored in a narrower dtype than they are computed in.

Values, parameters and gradients are stored in the narrow dtype and live as long as ever. Each step has scratch in the
compute dtype for what it reads and makes: it widens what it reads, lets the leaf compute, and narrows what was made, so
that each stored value is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mila.core.parameters import ParameterGradient
from mila.core.planned_build import Storage
from mila.core.schedule import Step
from mila.kernels.signatures import Array, Kernels
from mila.memory.storage import DType, Shape, element_count

if TYPE_CHECKING:
    from mila.core.component import Component
    from mila.core.run import Run


def wide_name(name: str) -> str:
    """The name of the scratch for what is called ``name``."""
    return f"{name}.wide"


def stored_name(name: str) -> str:
    """The name of what a step makes as it is stored, where the leaf's own ``name`` means its scratch."""
    return f"{name}.stored"


@dataclass(slots=True)
class WideBuffers:
    """Where one step finds what it computes with, and where it stores the results.

    Attributes:
        inputs: scratch by port, ``None`` for ids.
        outputs: scratch by output.
        made: the stored outputs.
        upstream: scratch for the gradients of the outputs.
        gradients: the stored gradients of those inputs to which this step is the first to contribute, by value.
    """

    inputs: list[Storage | None] = field(default_factory=list)
    outputs: dict[int, Storage] = field(default_factory=dict)
    made: dict[int, Storage] = field(default_factory=dict)
    upstream: list[Storage] = field(default_factory=list)
    gradients: dict[int, Storage] = field(default_factory=dict)


def widened_parameters(leaf: Component[Any], stored: DType) -> list[str]:
    """Names of the parameters of a leaf that its steps take widened as a whole."""
    return [d.name for d in leaf.declared_parameters() if d.dtype == stored and not leaf.takes_stored(d.name)]


def widened_gradients(leaf: Component[Any], stored: DType) -> list[str]:
    """Names of the parameters of a leaf to whose gradients its steps add in scratch."""
    return [
        d.name
        for d in leaf.declared_parameters()
        if d.trainable and d.dtype == stored and not leaf.adds_to_stored(d.name)
    ]


class WideGradient(ParameterGradient):
    """A gradient that is stored in a narrow dtype; what a step adds to it is rounded once, at the end of the step.

    Args:
        array: the gradient.
        set_bytes: the device's way of writing zeros.
        wide: scratch of a step.
        cast: the kernel.
    """

    __slots__ = ("_cast", "_is_open", "_wide")

    def __init__(
        self,
        array: Array,
        set_bytes: Callable[[Array, int], None],
        wide: Array,
        cast: Callable[[Array, Array], None],
    ) -> None:
        super().__init__(array, set_bytes)
        self._wide = wide
        self._cast = cast
        self._is_open = False

    @property
    def is_zero(self) -> bool:
        """Whether nothing was contributed yet."""
        return self._is_zero and not self._is_open

    def contribute(self) -> tuple[Array, bool]:
        """The scratch to put a contribution to, and whether to add it to what is there."""
        if self._is_open:
            return self._wide, True
        accumulate = not self._is_zero
        if accumulate:
            self._cast(self._wide, self._array)
        self._is_open = True
        return self._wide, accumulate

    def begin(self) -> None:
        """A step begins: whatever the scratch holds is of another."""
        self._is_open = False

    def end(self) -> None:
        """The step is over: store what it contributed, if it did."""
        if self._is_open:
            self._cast(self._array, self._wide)
            self._is_open = self._is_zero = False


class WideStep(Step):
    """A step with scratch to compute in.

    Args:
        step: what is computed.
        buffers: where.
        array_of: the flat array of a storage.
        stored: the dtype of the network.
        kernels: the network's.
    """

    __slots__ = ("_gradients", "_inputs", "_kernels", "_made", "_outputs", "_parameters", "_read", "_upstream")

    may_bind: ClassVar[bool] = False

    def __init__(
        self, step: Step, buffers: WideBuffers, array_of: Callable[[Storage], Array], stored: DType, kernels: Kernels
    ) -> None:
        leaf = step.leaf
        super().__init__(leaf, step.inputs, step.outputs, step.context)
        self._kernels = kernels
        self._inputs = [None if storage is None else array_of(storage) for storage in buffers.inputs]
        self._outputs = [array_of(buffers.outputs[port]) for port in range(len(step.outputs))]
        self._made = [array_of(buffers.made[port]) for port in range(len(step.outputs))]
        self._upstream = [array_of(storage) for storage in buffers.upstream]
        self._gradients = {value: array_of(storage) for value, storage in buffers.gradients.items()}
        self._parameters = widened_parameters(leaf, stored)
        self._read = set(leaf.reads)

    def forward(self, run: Run, values: list[Array | None]) -> None:
        """Widen inputs and parameters, compute, narrow the outputs."""
        leaf = self.leaf
        self._widen_parameters(leaf)
        made = leaf.forward_step(run, *[self._input(port, values, True) for port in range(len(self.inputs))])
        for value, stored, array in zip(
            self.outputs, self._made, made if isinstance(made, tuple) else (made,), strict=True
        ):
            values[value] = self._narrowed(stored, array)

    def backward(
        self, run: Run, values: Sequence[Array | None], gradients: Sequence[Array | None]
    ) -> tuple[Array | None, ...]:
        """Widen all that backward reads, compute, narrow the gradients of parameters; returns scratch."""
        leaf = self.leaf
        self._widen_parameters(leaf)
        ports = leaf.ports
        inputs = tuple(self._input(port, values, ports[port].name in self._read) for port in range(len(self.inputs)))
        for name, value, wide in zip(leaf.output_names, self.outputs, self._outputs, strict=True):
            if name in self._read:
                self._widened(wide, values[value])
        upstream = tuple(self._widened(w, gradients[v]) for w, v in zip(self._upstream, self.outputs, strict=True))
        collecting = [g for g in leaf._gradients.values() if isinstance(g, WideGradient)]
        for gradient in collecting:
            gradient.begin()
        contributions = leaf.backward_step(run, inputs, upstream)
        for gradient in collecting:
            gradient.end()
        return contributions

    def kept(self, value: int, contribution: Array) -> Array:
        """The contribution, narrowed."""
        return self._narrowed(self._gradients[value], contribution)

    def _widen_parameters(self, leaf: Component[Any]) -> None:
        for name in self._parameters:
            self._kernels.cast(leaf.parameter_array(name), leaf.stored_parameter(name))

    def _input(self, port: int, values: Sequence[Array | None], is_read: bool) -> Array:
        """An input for the leaf; where it is not read, an array of its shape."""
        wide, array = self._inputs[port], values[self.inputs[port]]
        if wide is None:
            return array  # type: ignore[return-value]
        return self._widened(wide, array) if is_read else prefix(wide, array.shape)  # type: ignore[union-attr]

    def _widened(self, wide: Array, array: Array | None) -> Array:
        view = prefix(wide, array.shape)  # type: ignore[union-attr]
        self._kernels.cast(view, array)  # type: ignore[arg-type]
        return view

    def _narrowed(self, stored: Array, array: Array) -> Array:
        view = prefix(stored, array.shape)
        self._kernels.cast(view, array)
        return view


def prefix(flat: Array, shape: Shape) -> Array:
    """The first elements of ``flat``, as an array of ``shape``."""
    return flat[: element_count(shape)].reshape(shape)
