"""No component, no option and no value of an option escapes the list of cases."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

import mila.components
import mila.core
import mila.models
from mila.components import ActivationConfig, LinearScaling, Llama3Scaling, SwigluConfig
from mila.components.activation import ActivationKind
from mila.core import BuildContext, Component
from mila.devices import ExecutionContext
from mila.errors import MilaError
from tests.promises.case import Case, Refused
from tests.promises.cases import CASES, REFUSED


def component_classes() -> Iterator[type[Component[Any]]]:
    """Yield every component class that any module of components and models, or core's training step, defines."""
    modules = [mila.core]
    for package in (mila.components, mila.models):
        names = [found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
        modules += [importlib.import_module(name) for name in names]
    seen = set()
    for module in modules:
        for _, found in inspect.getmembers(module, inspect.isclass):
            if issubclass(found, Component) and found not in seen and is_concrete(found):
                seen.add(found)
                yield found


def is_concrete(component_class: type[Component[Any]]) -> bool:
    """Say whether a class computes something: the bases of leaves, composites, networks and models do not."""
    if not hasattr(component_class, "config_class"):
        return False
    if component_class.is_composite:
        return not getattr(component_class.compose, "__isabstractmethod__", False)  # type: ignore[attr-defined]
    return component_class.forward_step is not Component.forward_step


def with_nested(configs: Iterable[BaseModel]) -> Iterator[BaseModel]:
    """Yield configs and the configs in their fields."""
    for config in configs:
        yield config
        yield from with_nested(value for _, value in config if isinstance(value, BaseModel))


def is_activation(annotation: Any) -> bool:
    return get_args(annotation) == get_args(ActivationKind)


CLASSES = sorted(component_classes(), key=lambda found: found.__name__)
COVERED = {type(case.make(None)) for case in CASES}
VALUES: dict[type[BaseModel], list[BaseModel]] = {}
for _case in CASES:
    for _config in with_nested(_case.configs):
        VALUES.setdefault(type(_config), []).append(_config)
#: The first case of each composite with an activation.
FIRST_COMPOSITES: dict[type[BaseModel], tuple[type[Component[Any]], BaseModel]] = {}
for _case in CASES:
    _component, _config = _case.make(None), _case.configs[0]
    _annotations = [field.annotation for field in type(_config).model_fields.values()]
    if _component.is_composite and any(map(is_activation, _annotations)):
        FIRST_COMPOSITES.setdefault(type(_config), (type(_component), _config))
CONFIG_CLASSES = sorted({*VALUES, *(found.config_class for found in CLASSES)}, key=lambda found: found.__name__)


def uncovered(annotation: Any, values: list[Any]) -> list[str]:
    """Return what a field of this annotation may be and never is, in ``values``."""
    if get_origin(annotation) is Annotated:
        return uncovered(get_args(annotation)[0], values)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [] if any(isinstance(value, annotation) for value in values) else [annotation.__name__]
    if get_origin(annotation) in (Union, types.UnionType):
        parts = get_args(annotation)
        missing = ["None"] if type(None) in parts and None not in values else []
        rest = [value for value in values if value is not None]
        return missing + [gap for part in parts if part is not type(None) for gap in uncovered_optional(part, rest)]
    if annotation is bool:
        return [str(value) for value in (True, False) if value not in values]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation) if value not in values]
    return [] if len({repr(value) for value in values}) > 1 else ["a second value"]


def uncovered_optional(annotation: Any, values: list[Any]) -> list[str]:
    """Return the gaps of an optional field's other half: of a number, one value is enough beside None."""
    if annotation in (int, float) or get_origin(annotation) is tuple:
        return [] if values else ["a value"]
    return uncovered(annotation, values)


@pytest.mark.parametrize("component_class", CLASSES, ids=lambda found: found.__name__)
def test_every_component_has_cases(component_class: type[Component[Any]]) -> None:
    assert component_class in COVERED


def test_everything_exported_is_among_the_components_found() -> None:
    exported = {getattr(package, name) for package in (mila.components, mila.models) for name in package.__all__}
    classes = {
        found for found in exported if isinstance(found, type) and issubclass(found, Component) and is_concrete(found)
    }
    assert classes <= set(CLASSES)
    assert len(CLASSES) >= 21


@pytest.mark.parametrize("config_class", CONFIG_CLASSES, ids=lambda found: found.__name__)
def test_every_value_of_every_field_has_a_case(config_class: type[BaseModel]) -> None:
    """But for activations of composites: each hands on what it is told, to a leaf that has a case for every one."""
    gaps = {}
    for name, field in config_class.model_fields.items():
        is_handed_on = is_activation(field.annotation) and config_class in FIRST_COMPOSITES
        values = [getattr(config, name) for config in VALUES.get(config_class, [])]
        missing = uncovered(str if is_handed_on else field.annotation, values)
        if missing:
            gaps[name] = missing
    assert not gaps


@pytest.mark.parametrize("config_class", FIRST_COMPOSITES, ids=lambda found: found.__name__)
def test_a_composite_hands_on_its_activation(config_class: type[BaseModel]) -> None:
    component, config = FIRST_COMPOSITES[config_class]
    for name, field in config_class.model_fields.items():
        for kind in get_args(ActivationKind) if is_activation(field.annotation) else ():
            changed = component("changed", config_class(**{**dict(config), name: kind}))
            leaves = [leaf.config for leaf in changed.walk()]
            kinds = {leaf.kind for leaf in leaves if isinstance(leaf, ActivationConfig)}
            assert kinds | {leaf.gate_activation for leaf in leaves if isinstance(leaf, SwigluConfig)} == {kind}


@pytest.mark.parametrize(
    ("annotation", "values", "gaps"),
    [
        (bool, [True], ["False"]),
        (Literal["a", "b"], ["a"], ["b"]),
        (int | None, [3], ["None"]),
        (int | None, [None], ["a value"]),
        (float, [1.0, 1.0], ["a second value"]),
        (float, [1.0, 2.0], []),
        (int | None, [None, 3], []),
        (Annotated[LinearScaling | Llama3Scaling, ...] | None, [None, LinearScaling(factor=2.0)], ["Llama3Scaling"]),
    ],
)
def test_a_gap_is_found(annotation: Any, values: list[Any], gaps: list[str]) -> None:
    assert uncovered(annotation, values) == gaps


def test_every_case_has_a_name_of_its_own() -> None:
    names = [str(case) for case in [*CASES, *REFUSED]]
    assert len(set(names)) == len(names)


def test_shapes_are_odd_single_and_of_every_rank() -> None:
    shapes = [shape for case in CASES for shape in all_shapes(case)]
    assert {len(shape) for shape in shapes} >= {1, 2, 3, 4}
    assert {1, 2, 3, 5, 7, 11} <= {extent for shape in shapes for extent in shape}
    assert {shape[0] > 1 for shape in shapes} == {True, False}


def all_shapes(case: Case) -> list[tuple[int, ...]]:
    return [case.shapes] if isinstance(case.shapes, tuple) else list(case.shapes.values())


@pytest.mark.parametrize("refused", REFUSED, ids=str)
def test_what_is_refused_is_refused_by_constructor_plan_and_build_alike(
    refused: Refused, device: ExecutionContext
) -> None:
    if refused.shapes is None:
        with pytest.raises(refused.error, match=refused.message) as caught:
            refused.construct(dtype="float32", seed=0)
        assert type(caught.value) is refused.error
        return
    component = refused.construct(dtype="float32", seed=0)
    component.set_execution_context(device)
    context = BuildContext(refused.shapes, refused.mode, **refused.options)
    messages = set()
    for call in (component.plan, component.get_required_memory, component.build):
        with pytest.raises(refused.error, match=refused.message) as caught:
            call(context)
        assert type(caught.value) is refused.error
        assert isinstance(caught.value, MilaError)
        messages.add(str(caught.value))
    (message,) = messages
    assert "\n" not in message
    assert not component.is_built
