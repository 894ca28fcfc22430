"""Who a component is: its name, its place in the tree, its dtype, its device."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from mila.core.graph import check_name
from mila.core.parameters import ParameterOverride
from mila.devices import DeviceId, DeviceType, ExecutionContext, check_seed, host_to_plan_with
from mila.devices.device import Device
from mila.errors import ConfigurationError, DeviceError, DTypeError, LifecycleError
from mila.kernels.signatures import Kernels
from mila.memory.storage import FLOAT32, DType, network_dtype

if TYPE_CHECKING:
    from mila.core.component import Component


class Identity:
    """The part of a component that says who it is; parents own children, never the other way round."""

    #: Whether its name stands in the paths and state names of its children.
    has_path_segment: ClassVar[bool] = True
    #: Kernels without which the component cannot run.
    required_kernels: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, dtype: DType | type[Any] | str | None, seed: int | None) -> None:
        self._name = check_name(name)
        self._dtype = None if dtype is None else network_dtype(dtype)
        self._seed = None if seed is None else check_seed(name, seed)
        self._overrides: dict[str, ParameterOverride] = {}
        self._parent: weakref.ref[Component[Any]] | None = None
        self._execution_context: ExecutionContext | None = None

    def on_execution_context_set(self) -> None:
        """Called when the component has received its execution context."""

    @property
    def name(self) -> str:
        """The name among its siblings."""
        return self._name

    @property
    def parent(self) -> Component[Any] | None:
        """The composite that owns it; ``None`` for a root."""
        if self._parent is None:
            return None
        parent = self._parent()
        if parent is None:
            raise LifecycleError(
                f"{self._name}: the network it belonged to no longer exists; keep a reference to the root"
            )
        return parent

    @property
    def is_orphan(self) -> bool:
        """Whether it was a child of a network that no longer exists."""
        ancestor: Identity | None = self
        while ancestor is not None:
            if ancestor._parent is not None and ancestor._parent() is None:
                return True
            ancestor = None if ancestor._parent is None else ancestor._parent()
        return False

    @property
    def root(self) -> Component[Any]:
        """The outermost component of its tree."""
        component: Component[Any] = self  # type: ignore[assignment]
        while (parent := component.parent) is not None:
            component = parent
        return component

    @property
    def path(self) -> str:
        """Names from the root down, joined by dots."""
        parent = self.parent
        return self._name if parent is None or not parent.has_path_segment else f"{parent.path}.{self._name}"

    @property
    def state_path(self) -> str:
        """The path without the root's name: the prefix of state names and the key of random draws."""
        parent = self.parent
        if parent is None or not parent.has_path_segment:
            return ""
        return f"{parent.state_path}.{self._name}" if parent.state_path else self._name

    def state_name(self, name: str) -> str:
        """The name of one of its parameters in files."""
        override = self._overrides.get(name)
        if override is not None and override.state_name is not None:
            name = override.state_name
        return ".".join(part for part in (self.state_path, name) if part)

    def shown_name(self, name: str) -> str:
        """The name of one of its buffers in plans, where parameters and what belongs to them are called as in files."""
        own, _, rest = (name, "", "") if name in self._overrides else name.rpartition(".")
        override = self._overrides.get(own)
        if override is None or not override.state_name:
            return name
        return f"{override.state_name}.{rest}" if rest else override.state_name

    @property
    def components(self) -> tuple[Component[Any], ...]:
        """Children, in the order of the graph."""
        return ()

    def walk(self) -> Iterator[Component[Any]]:
        """The component and everything below it, parents first."""
        yield self  # type: ignore[misc]
        for child in self.components:
            yield from child.walk()

    @property
    def dtype(self) -> DType:
        """Stored dtype of parameters and activations."""
        if self._dtype is not None:
            return self._dtype
        parent = self.parent
        return FLOAT32 if parent is None else parent.dtype

    @property
    def seed(self) -> int:
        """Seed of initial values and dropout masks."""
        root = self.root
        if root._seed is not None:
            return root._seed
        return 0 if root._execution_context is None else root._execution_context.seed

    def adopt(self, parent: Component[Any]) -> None:
        """Become a child of ``parent``; refused for a component that has a parent, a device or a seed."""
        if self._parent is not None:
            raise ConfigurationError(f"{parent.path}.{self.name}: is already part of {self.path}")
        if self._execution_context is not None:
            raise ConfigurationError(
                f"{parent.path}.{self.name}: a child takes its device from its root; construct it without"
            )
        if self._seed is not None:
            raise ConfigurationError(
                f"{parent.path}.{self.name}: a child takes its seed from its root, got {self._seed}"
            )
        self._parent = weakref.ref(parent)

    def check_dtypes(self) -> None:
        """Raise :class:`DTypeError` where a component below a root was given another dtype than the root's."""
        for component in self.walk():
            if component._dtype is not None and component._dtype != self.dtype:
                raise DTypeError(f"{component.path}: expected the root's dtype {self.dtype}, got {component._dtype}")

    # ------------------------------------------------------------------ device

    def set_execution_context(self, context: ExecutionContext) -> None:
        """Give a root its device; once.

        Raises:
            LifecycleError: it has one, or is a child.
            DeviceError: a kernel is missing, or the kernels do not compute its dtype.
        """
        if self.parent is not None:
            raise LifecycleError(f"{self.path}: a child takes its execution context from its root")
        if self._execution_context is not None:
            raise LifecycleError(f"{self.path}: an execution context is set already; it cannot be changed")
        if not isinstance(context, ExecutionContext):
            raise DeviceError(f"{self.path}: expected an ExecutionContext, got {context!r}")
        self._check_kernels(context)
        self._execution_context = context
        try:
            for component in self.walk():
                component.on_execution_context_set()
        except BaseException:
            self._execution_context = None
            raise

    def get_execution_context(self) -> ExecutionContext:
        """The execution context of its root; :class:`LifecycleError` where there is none."""
        context = self.root._execution_context
        if context is None:
            raise LifecycleError(f"{self.path}: has no execution context; construct the root with device='cpu'")
        return context

    @property
    def device(self) -> Device:
        """Where its arrays live; while its root has no execution context, the CPU."""
        context = self.root._execution_context
        return host_to_plan_with() if context is None else context.device

    @property
    def has_execution_context(self) -> bool:
        """Whether its root has a device."""
        return self.root._execution_context is not None

    @property
    def device_id(self) -> DeviceId | None:
        """The device, ``None`` while there is none."""
        context = self.root._execution_context
        return None if context is None else context.device_id

    @property
    def device_type(self) -> DeviceType | None:
        """The type of the device, ``None`` while there is none."""
        device = self.device_id
        return None if device is None else device.type

    @property
    def kernels(self) -> Kernels:
        """The kernels of its device."""
        return self.get_execution_context().kernels

    def synchronize(self) -> None:
        """Wait for the device."""
        self.get_execution_context().synchronize()

    def _check_kernels(self, context: ExecutionContext) -> None:
        self.check_dtypes()
        if not context.supports(self.dtype):
            names = ", ".join(dtype.name for dtype in context.kernels.dtypes)
            raise DeviceError(f"{self.path}: device {context.device_id} computes {names}, not {self.dtype.name}")
        for component in self.walk():
            for kernel in component.required_kernels:
                if not hasattr(context.kernels, kernel):
                    raise DeviceError(f"{component.path}: device {context.device_id} has no kernel {kernel!r}")
