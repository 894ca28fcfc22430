"""The base of every component: identity, lifecycle and the little that a leaf has to say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from mila.core import lifecycle, loading, state
from mila.core.built_state import BuiltState
from mila.core.config import ComponentConfig
from mila.core.context import BuildContext, LeafContext
from mila.core.graph import Port
from mila.core.modes import ComponentType, TrainingMode
from mila.core.parameters import ParameterOverride, check_state_names
from mila.devices import DeviceId, ExecutionContext
from mila.errors import ConfigurationError, LifecycleError
from mila.kernels.signatures import Array
from mila.memory.declarations import Category, Declaration, Initializer
from mila.memory.plan import MemoryPlan
from mila.memory.stats import MemoryStats
from mila.memory.storage import DType, Shape
from mila.serialization import ArchiveMode, ArchiveReader, ArchiveWriter, TensorWriter

if TYPE_CHECKING:
    from mila.core.bound import Cursor
    from mila.core.execution import Execution
    from mila.core.graph import Graph
    from mila.core.planned_build import Optimizer
    from mila.core.run import Position, Run

ConfigT = TypeVar("ConfigT", bound=ComponentConfig)


class Component(BuiltState, Generic[ConfigT]):
    """A named part of a network; this class itself is the base of leaves.

    A leaf says what it is in class attributes, yields its ``parameters`` and the rest of its memory in ``declare``,
    gives its ``output_shapes``, and computes in ``forward_step`` and ``backward_step``. Everything else follows.

    Args:
        name: see :func:`mila.core.graph.check_name`.
        config: what it is; may be left out where every field has a default.
        device: makes it a root with an execution context of its own, such as ``"cpu"``.
        dtype: stored dtype; ``None`` is the root's, and float32 for a root.
        seed: of initial values and dropout; ``None`` is the execution context's.
    """

    config_class: ClassVar[type[ComponentConfig]]
    component_type: ClassVar[ComponentType] = ComponentType.CUSTOM
    #: Inputs, in order.
    ports: tuple[Port, ...] = (Port("input"),)
    output_names: tuple[str, ...] = ("output",)
    #: Names of the inputs and outputs that ``backward_step`` reads.
    reads: ClassVar[tuple[str, ...]] = ()
    #: Names of outputs that are stored in float32 also where the network is stored in less, such as a loss.
    wide_outputs: ClassVar[tuple[str, ...]] = ()
    #: Whether each position is computed by itself: such a leaf alone is built for one position in inference.
    is_per_position: ClassVar[bool] = False
    is_composite: ClassVar[bool] = False
    #: Whether forward draws random numbers, so that backward must follow the same run.
    is_random: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        config: ConfigT | None = None,
        *,
        device: str | DeviceId | None = None,
        dtype: DType | type[Any] | str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(name, dtype, seed)
        if config is None:
            config = self.config_class()  # type: ignore[assignment]
        if not isinstance(config, self.config_class):
            raise ConfigurationError(f"{name}: expected a {self.config_class.__name__}, got {type(config).__name__}")
        self.config: ConfigT = config
        self._execution: Execution | None = None
        self._owned: list[tuple[Array, Category]] = []
        self._missing: dict[str, None] = {}  # state names without values, in order; one for the whole tree
        self._mode_lock: threading.RLock | None = None  # the root's, once built
        self.graph: Graph | None = None
        self.graph_outputs: tuple[int, ...] = ()
        if device is not None and not self.is_composite:  # a composite first composes its children
            self.set_execution_context(ExecutionContext(device))

    # ------------------------------------------------------------------ what a leaf says

    def parameters(self) -> Iterator[Declaration]:
        """Parameters, from the config alone."""
        yield from ()

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Outputs, gradients of inputs, saved values, tables and workspaces for ``context``."""
        raise NotImplementedError(f"{type(self).__name__} does not declare its memory")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """Shapes of the outputs; raises :class:`ShapeError` for inputs that do not fit."""
        raise NotImplementedError(f"{type(self).__name__} has no shape rule")

    def takes_stored(self, parameter: str) -> bool:
        """Whether steps take this parameter as it is stored.

        Where a network is stored in less than it is computed in, all others are widened as a whole for the step.
        """
        return False

    def adds_to_stored(self, parameter: str) -> bool:
        """Whether steps add to this parameter's gradient as it is stored; else as in :meth:`takes_stored`."""
        return False

    def is_identity(self, context: LeafContext) -> bool:
        """Whether the component is absent in this build: its output is its input."""
        return False

    def check_build(self, context: LeafContext) -> None:
        """Of a leaf: raise where the config and the mode do not go together."""

    def check_context(self, context: BuildContext) -> None:
        """Of a root: raise where it cannot be built for ``context``."""

    def check_child(self, child: Component[Any], output_shapes: tuple[Shape, ...]) -> None:
        """Of a composite: raise where a child's outputs have other shapes than the composite counts on."""

    def check_input_shapes(self, shapes: Mapping[str, Shape]) -> None:
        """Of a root: raise where inputs of ``shapes`` do not belong together; asked of builds and of runs."""

    def root_buffers(self, output_dtypes: Sequence[DType]) -> Iterator[Declaration]:
        """Of a root, whose outputs have these dtypes: what it holds besides its leaves, as long as it lives."""
        yield from ()

    def default_prefill_size(self, length: int) -> int:
        """Positions that an inference build allocates for where the context does not say."""
        return 1 if self.is_per_position else length

    @property
    def accepts_prefill_size(self) -> bool:
        """Whether it can be built for chunks of a sequence."""
        return True

    @property
    def takes_shorter_sequences(self) -> bool:
        """Of a root: whether a run may have fewer positions than the build."""
        return True

    def optimizer_to_plan(self) -> Optimizer | None:
        """The optimizer whose moments are part of the plan."""
        return None

    def input_shapes_of(self, shape: Shape) -> tuple[Shape, ...]:
        """The shapes of all inputs where a context gives only one."""
        return (shape,) * len(self.ports)

    def check_run(self, run: Run) -> None:
        """Of a leaf: raise where it cannot run at these positions; asked before the first step, changes nothing."""

    @classmethod
    def has_run_check(cls) -> bool:
        """Whether there is anything to check."""
        return cls.check_run is not Component.check_run

    def forward_step(self, run: Run, *inputs: Array) -> Array | tuple[Array, ...]:
        """Compute the outputs."""
        raise NotImplementedError(f"{type(self).__name__} does not compute")

    def bind_step(self, inputs: tuple[Array, ...], cursor: Cursor) -> Callable[[], object] | None:
        """What repeats the ``forward_step`` just made, on the same ``inputs`` of a single position of a single row.

        Decoding calls it once per token. It may hold arrays and small records, never the component: a root would then
        hold itself. ``None``: ``forward_step`` is called each time.
        """
        return None

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Gradients of the inputs from those of the outputs; adds to those of the parameters. ``None`` for ids."""
        raise NotImplementedError(f"{type(self).__name__} has no gradient")

    def store_parameter(self, declaration: Declaration, values: state.Rows) -> None:
        """Write a loaded tensor of the right shape into the parameter; converts between float dtypes."""
        state.convert_into(self.device, self.stored_parameter(declaration.name), values)
        self.parameter_stored(declaration)

    def parameter_stored(self, declaration: Declaration) -> None:
        """Called when a parameter holds loaded values."""
        self._missing.pop(self.state_name(declaration.name), None)

    def refuse_load(
        self, declaration: Declaration, dtype: DType, together: Mapping[str, DType | None] | None
    ) -> str | None:
        """Why a tensor of ``dtype`` cannot be loaded; ``None`` when it can.

        ``together`` are the dtypes of all parameters of this component that are loaded at once, ``None`` where they
        are loaded one at a time.
        """
        return state.refuse_conversion(dtype, declaration.dtype)

    def refuse_values(self, declaration: Declaration, values: state.Rows) -> str | None:
        """Why ``values`` cannot be stored; ``None`` when they can."""
        if state.overflowing(values, declaration.dtype):
            return f"has finite values beyond the range of {declaration.dtype.name}"
        return None

    # ------------------------------------------------------------------ hooks

    def on_building(self, context: BuildContext) -> None:
        """Called when everything is allocated and nothing is committed; raising undoes the build."""

    def on_training_mode_changing(self, mode: TrainingMode) -> None:
        """Called before the training mode changes; raising keeps it."""

    # ------------------------------------------------------------------ asking

    def plan(self, context: BuildContext) -> MemoryPlan:
        """What a build would take, and where everything would be; allocates nothing."""
        return lifecycle.planned(self, context).plan

    def get_required_memory(self, context: BuildContext) -> MemoryStats:
        """What the buffers would occupy after ``build(context)``; allocates nothing."""
        return self.plan(context).stats

    def get_memory_stats(self) -> MemoryStats:
        """What the live buffers of the component and its children occupy now."""
        return lifecycle.live_stats(self)

    def parameter_count(self) -> int:
        """Number of parameter elements, a shared parameter once."""
        return sum(d.elements for c in self.walk() for d in c.declared_parameters() if d.companion_of is None)

    # ------------------------------------------------------------------ building

    def build(self, context: BuildContext) -> None:
        """Allocate everything, once. If anything fails, everything is as before and build can be tried again.

        Raises:
            LifecycleError: built already, no execution context, or not a root.
            ShapeError: the context does not fit.
            OutOfMemoryError: there is less memory than the plan needs.
        """
        lifecycle.build(self, context)

    def set_training_mode(self, mode: TrainingMode) -> None:
        """Turn the switch of the component and everything below it; only on a build for training.

        Raises:
            LifecycleError: not built, or built for inference.
        """
        lifecycle.set_training_mode(self, mode)

    # ------------------------------------------------------------------ running

    def forward(self, *inputs: Array, position: Position | None = None) -> Any:
        """Run the component on ``inputs``, of the built shapes or smaller.

        Returns the output, or a tuple of them: views of owned buffers, valid until the next ``forward``.
        """
        return lifecycle.unpack(lifecycle.execution_of(self, "forward").forward(inputs, position))

    def backward(self, *arguments: Array) -> Any:
        """Gradients of the inputs, given the inputs and then the gradients of the outputs; adds to those of parameters.

        Returns one gradient, or a tuple of them: views of owned buffers, overwritten by the next ``backward``.
        """
        return lifecycle.unpack(lifecycle.execution_of(self, "backward").backward(arguments))

    def captured(self, path: str) -> Any:
        """The last output, or a tuple of them, of a child that was named in ``BuildContext.capture``."""
        return lifecycle.unpack(lifecycle.execution_of(self, "captured").captured(path))

    def zero_gradients(self) -> None:
        """Zero the gradients of all parameters, and nothing else."""
        for component in self.walk():
            for gradient in component._gradients.values():
                gradient.mark_zero()

    # ------------------------------------------------------------------ parameters

    def declared_parameters(self) -> Iterator[Declaration]:
        """Its ``parameters``, as the owner of the component wants them."""
        for declaration in self.parameters():
            override = self._overrides.get(declaration.name)
            yield declaration if override is None else override.applied(declaration)

    def override_parameter(
        self,
        name: str,
        *,
        state_name: str | None = None,
        initializer: Initializer | None = None,
        trainable: bool | None = None,
    ) -> None:
        """Say something about one parameter; see :meth:`override_parameters` and :class:`ParameterOverride`."""
        self.override_parameters({name: ParameterOverride(state_name, initializer, trainable)})

    def override_parameters(self, overrides: Mapping[str, ParameterOverride]) -> None:
        """Say something about parameters of an unbuilt component, by the component's own names for them.

        Raises:
            ConfigurationError: no such parameter, or a name in files that is none, or that another parameter has.
            LifecycleError: the component is built.
        """
        if self.is_built:
            raise LifecycleError(f"{self.path}: is built; say it before build")
        known = {declaration.name for declaration in self.parameters()}
        for name in overrides:
            if name not in known:
                raise ConfigurationError(f"{self.path}: has no parameter {name!r}")
        changed = {**self._overrides}
        for name, override in overrides.items():
            changed[name] = override.over(changed.get(name, ParameterOverride()))
        check_state_names(self.path, known, changed)
        self._overrides = changed

    def get_parameter_names(self) -> list[str]:
        """Names of the parameters relative to the component, in the order of ``get_parameters``."""
        prefix = self.state_path
        names = [c.state_name(d.name) for c in self.walk() for d in c.declared_parameters() if d.companion_of is None]
        return [name[len(prefix) + 1 :] if prefix else name for name in names]

    def get_parameters(self) -> list[Array]:
        """The parameters: views of the arena."""
        self.require_built("get_parameters")
        pairs = ((c, d) for c in self.walk() for d in c.declared_parameters() if d.companion_of is None)
        return [component.stored_parameter(declaration.name) for component, declaration in pairs]

    def get_gradients(self) -> list[Array | None]:
        """Gradients in the order of ``get_parameters``, ``None`` for frozen ones; empty on an inference build."""
        self.require_built("get_gradients")
        if self.is_inference_mode:
            return []
        pairs = [(c, d) for c in self.walk() for d in c.declared_parameters() if d.companion_of is None]
        gradients = [c._gradients.get(d.name) for c, d in pairs]
        return [None if gradient is None else gradient.read() for gradient in gradients]

    def load_parameter(self, name: str, array: Array) -> None:
        """Write ``array`` into one parameter, by its name relative to the component; converts between float dtypes.

        Raises:
            CheckpointError: no parameter of this name.
            ShapeError: another shape.
            DTypeError: integers, booleans, or quantized bytes.
        """
        state.load_parameter(self, name, array)

    # ------------------------------------------------------------------ files

    def require_serializable_parameters(self) -> None:
        """Raise :class:`ConfigurationError` where parameters could not be told apart by name."""
        state.require_serializable(self)

    def save_flat_tensors(self, writer: TensorWriter, prefix: str, save_pass: state.TensorSavePass) -> None:
        """Declare or write every parameter under ``<prefix>.<name>``; two passes, so that nothing is held twice."""
        state.save_flat_tensors(self, writer, prefix, save_pass)

    def save_(self, archive: ArchiveWriter, mode: ArchiveMode) -> None:
        """Write config and, unless ``mode`` is ``ARCHITECTURE``, parameters into the current scope of ``archive``."""
        state.save(self, archive, mode)

    def load_(self, archive: ArchiveReader, mode: ArchiveMode) -> loading.LoadReport:
        """Read the parameters that :meth:`save_` wrote; strict. With ``WEIGHTS_ONLY``, another dtype is converted."""
        return loading.load(self, archive, mode)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise LifecycleError(
            f"{self._name}: components are not copied or pickled; construct another and load its weights"
        )

    def __repr__(self) -> str:
        return lifecycle.describe(self)
