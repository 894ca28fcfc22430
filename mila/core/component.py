"""The base of every component: identity, lifecycle and the little that a leaf has to say."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from mila.core import lifecycle, loading, state
from mila.core.config import ComponentConfig
from mila.core.context import BuildContext, LeafContext
from mila.core.graph import Port
from mila.core.identity import Identity
from mila.core.modes import ComponentType, RuntimeMode, TrainingMode
from mila.core.parameters import ParameterGradient
from mila.devices import DeviceId, ExecutionContext
from mila.errors import ConfigurationError, LifecycleError
from mila.kernels.signatures import Array
from mila.memory.declarations import Category, Declaration
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


class Component(Identity, Generic[ConfigT]):
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
        self._build_context: BuildContext | None = None
        self._training_mode = TrainingMode.NORMAL
        self._arrays: dict[str, Array] = {}
        self._owned: list[tuple[Array, Category]] = []
        self._gradients: dict[str, ParameterGradient] = {}
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

    def is_identity(self, context: LeafContext) -> bool:
        """Whether the component is absent in this build: its output is its input."""
        return False

    def check_build(self, context: LeafContext) -> None:
        """Of a leaf: raise where the config and the mode do not go together."""

    def check_context(self, context: BuildContext) -> None:
        """Of a root: raise where it cannot be built for ``context``."""

    def root_buffers(self) -> Iterator[Declaration]:
        """Of a root: what it holds besides its leaves, as long as it lives."""
        yield from ()

    def default_prefill_size(self, length: int) -> int:
        """Positions that an inference build allocates for where the context does not say."""
        return 1 if self.is_per_position else length

    @property
    def accepts_prefill_size(self) -> bool:
        """Whether it can be built for chunks of a sequence."""
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
        state.convert_into(self.parameter_array(declaration.name), values)
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
        return sum(d.elements for c in self.walk() for d in c.parameters() if d.companion_of is None)

    # ------------------------------------------------------------------ building

    def build(self, context: BuildContext) -> None:
        """Allocate everything, once. If anything fails, everything is as before and build can be tried again.

        Raises:
            LifecycleError: built already, no execution context, or not a root.
            ShapeError: the context does not fit.
            OutOfMemoryError: there is less memory than the plan needs.
        """
        lifecycle.build(self, context)

    @property
    def is_built(self) -> bool:
        """Whether its buffers exist."""
        return self._build_context is not None

    @property
    def build_context(self) -> BuildContext | None:
        """What it was built for, with its own input shapes; ``None`` before build."""
        return self._build_context

    @property
    def runtime_mode(self) -> RuntimeMode | None:
        """What it was built for; ``None`` before build."""
        return None if self._build_context is None else self._build_context.runtime_mode

    @property
    def training_mode(self) -> TrainingMode | None:
        """The switch; ``EVAL`` on an inference build, ``None`` before build."""
        if self._build_context is None:
            return None
        return self._training_mode if self._build_context.is_training else TrainingMode.EVAL

    @property
    def is_training_mode(self) -> bool:
        """Whether it was built for training."""
        return self.runtime_mode is RuntimeMode.TRAINING

    @property
    def is_inference_mode(self) -> bool:
        """Whether it was built for inference."""
        return self.runtime_mode is RuntimeMode.INFERENCE

    @property
    def is_eval_mode(self) -> bool:
        """Whether the switch is at ``EVAL``."""
        return self.training_mode is TrainingMode.EVAL

    def set_training_mode(self, mode: TrainingMode) -> None:
        """Turn the switch of the component and everything below it; only on a build for training.

        Raises:
            LifecycleError: not built, or built for inference.
        """
        lifecycle.set_training_mode(self, mode)

    def require_built(self, call: str) -> None:
        """Raise :class:`LifecycleError` unless built."""
        if self._build_context is None:
            raise LifecycleError(f"{self.path}: {call} needs a built component; call build first")

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

    def get_parameter_names(self) -> list[str]:
        """Names of the parameters relative to the component, in the order of ``get_parameters``."""
        prefix = self.state_path
        names = [c.state_name(d.name) for c in self.walk() for d in c.parameters() if d.companion_of is None]
        return [name[len(prefix) + 1 :] if prefix else name for name in names]

    def get_parameters(self) -> list[Array]:
        """The parameters: views of the arena."""
        self.require_built("get_parameters")
        return [c.parameter_array(d.name) for c in self.walk() for d in c.parameters() if d.companion_of is None]

    def get_gradients(self) -> list[Array | None]:
        """Gradients in the order of ``get_parameters``, ``None`` for frozen ones; empty on an inference build."""
        self.require_built("get_gradients")
        if self.is_inference_mode:
            return []
        pairs = [(c, d) for c in self.walk() for d in c.parameters() if d.companion_of is None]
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

    # ------------------------------------------------------------------ for leaves

    def view(self, name: str, shape: Shape) -> Array:
        """The first elements of an owned buffer, as an array of ``shape``."""
        flat = self._arrays[name]
        return flat[: math.prod(shape)].reshape(shape)

    def workspace(self, name: str = "workspace") -> Array:
        """A whole owned buffer, flat."""
        return self._arrays[name]

    def parameter_array(self, name: str) -> Array:
        """A parameter in its own shape."""
        return self._arrays[name]

    def parameter_gradient(self, name: str) -> ParameterGradient | None:
        """The gradient of a parameter; ``None`` where it is frozen or the build is for inference."""
        return self._gradients.get(name)

    def contribute(self, *names: str) -> tuple[list[Array | None], bool]:
        """Where to put contributions to gradients of parameters, ``None`` where there is none, and whether to add.

        One answer serves all: where only some are still zero, their zeros are written.
        """
        gradients = [self._gradients.get(name) for name in names]
        if len({gradient.is_zero for gradient in gradients if gradient is not None}) > 1:
            for gradient in gradients:
                if gradient is not None:
                    gradient.read()
        pairs = [(None, False) if gradient is None else gradient.contribute() for gradient in gradients]
        return [array for array, _ in pairs], any(accumulate for _, accumulate in pairs)

    def has_buffer(self, name: str) -> bool:
        """Whether the build declared a buffer of this name."""
        return name in self._arrays

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise LifecycleError(
            f"{self._name}: components are not copied or pickled; construct another and load its weights"
        )

    def __repr__(self) -> str:
        return lifecycle.describe(self)
