"""What a case is: a component to construct, the shapes to build it for, and what to run it on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from mila.core import BuildContext, Component, RuntimeMode
from mila.devices import ExecutionContext

Array = NDArray[Any]
Shapes = tuple[int, ...] | Mapping[str, tuple[int, ...]]

INFERENCE, TRAINING = RuntimeMode.INFERENCE, RuntimeMode.TRAINING
BOTH_MODES = (INFERENCE, TRAINING)
#: Seed of all components, unless a test says otherwise.
SEED = 7


def nothing(component: Component[Any]) -> None:
    """Prepare nothing."""


def everything_fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Take every smaller shape."""
    return True


@dataclass(frozen=True)
class Case:
    """One component with one config, built for one shape.

    Attributes:
        construct: makes the unbuilt root: ``construct(dtype=..., seed=...)``.
        configs: the configs that this case is about.
        shapes: what the build context is given.
        modes: runtime modes that it can be built in.
        limits: for each input of ids, how many ids there are.
        options: further arguments of the build context, by mode.
        prepare: what is needed between build and the first forward.
        takes: whether a run of smaller shapes, by input, is taken; all others are refused.
    """

    name: str
    construct: Callable[..., Component[Any]]
    configs: tuple[BaseModel, ...]
    shapes: Shapes
    modes: tuple[RuntimeMode, ...] = BOTH_MODES
    limits: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[RuntimeMode, Mapping[str, Any]] = field(default_factory=dict)
    prepare: Callable[[Component[Any]], None] = nothing
    takes: Callable[[Mapping[str, tuple[int, ...]]], bool] = everything_fits

    def make(self, device: ExecutionContext | None, dtype: str = "float32", seed: int = SEED) -> Component[Any]:
        """Return the unbuilt root, with ``device`` as its execution context."""
        component = self.construct(dtype=dtype, seed=seed)
        if device is not None:
            component.set_execution_context(device)
        return component

    def context(self, mode: RuntimeMode, **changes: Any) -> BuildContext:
        """Return the build context, parameters initialised in both modes."""
        shapes = changes.pop("shapes", self.shapes)
        return BuildContext(shapes, mode, **{"initialize_parameters": True, **self.options.get(mode, {}), **changes})

    def build(
        self,
        device: ExecutionContext,
        mode: RuntimeMode,
        dtype: str = "float32",
        seed: int = SEED,
        **changes: Any,
    ) -> Component[Any]:
        """Return the built root, ready to run."""
        component = self.make(device, dtype, seed)
        component.build(self.context(mode, **changes))
        self.prepare(component)
        return component

    def inputs(self, component: Component[Any], seed: int = 0) -> list[Array]:
        """Return inputs of the shapes that the component was built for."""
        assert component.build_context is not None
        return self.inputs_of(component, component.build_context.input_shapes, seed)

    def inputs_of(self, component: Component[Any], shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> list[Array]:
        """Return inputs of ``shapes``: activations keep away from 0, where functions have kinks."""
        generator = np.random.default_rng(seed)
        arrays: list[Array] = []
        for port in component.ports:
            shape = shapes[port.name]
            if port.is_ids:
                arrays.append(generator.integers(0, self.limits[port.name], shape, np.int32))
                continue
            values = generator.standard_normal(shape)
            arrays.append((values + np.copysign(0.05, values)).astype(component.dtype))
        return arrays

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Refused:
    """A combination that is refused: by the constructor (no ``shapes``), or by plan and build alike.

    Attributes:
        error: its exact class.
        message: a regular expression that its one line matches.
    """

    name: str
    construct: Callable[..., Component[Any]]
    error: type[Exception]
    message: str
    shapes: Shapes | None = None
    mode: RuntimeMode = TRAINING
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def described(value: object) -> str:
    """Return a value as it stands in the name of a case."""
    if isinstance(value, Mapping):
        return ",".join(described(part) for part in value.values())
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def constructor(
    component_class: type[Component[Any]], config: BaseModel, name: str = "case"
) -> Callable[..., Component[Any]]:
    """Return what constructs ``component_class`` with ``config``."""
    return lambda **arguments: component_class(name, config, **arguments)


def family(
    component_class: type[Component[Any]],
    fixed: Mapping[str, Any],
    variants: Sequence[Mapping[str, Any]],
    shapes: Sequence[Shapes],
    *,
    suffix: str = "",
    **arguments: Any,
) -> list[Case]:
    """Return cases of one component: the first variant with every shape, each further one with one in turn."""
    pairs: Iterable[tuple[Mapping[str, Any], Shapes]] = [(variants[0], shape) for shape in shapes]
    pairs = [*pairs, *zip(variants[1:], itertools.cycle(shapes), strict=False)]
    cases = []
    for variant, shape in pairs:
        config = component_class.config_class(**{**fixed, **variant})
        said = ",".join(f"{key}={value}" for key, value in variant.items())
        name = f"{component_class.__name__}({said})-{described(shape)}" + (f"-{suffix}" if suffix else "")
        cases.append(Case(name, constructor(component_class, config), (config,), shape, **arguments))
    return cases
