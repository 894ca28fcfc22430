"""What a memory plan consists of: lines that sum to what it reserves, its fullest step, its components."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mila.core.component import Component
from mila.memory import Category, Lifetime, MemoryPlan, PlannedBuffer, format_bytes
from mila.memory.plan import GRADIENTS, PARAMETERS, PERSISTENT, TRANSIENT
from mila.memory.storage import align_up
from mila.planning.report import FullestStep, Line, TreeRow
from mila.planning.target import StandIn

#: What the lines of a plan are called, in their order.
LINE_LABELS = {
    "parameters": "Parameters",
    "gradients": "Gradients of parameters",
    "moments": "Optimizer moments",
    "cache": "Key/value cache",
    "tables": "Tables",
    "persistent": "Other persistent state",
    "transient": "Transient region",
    "alignment": "Alignment",
}
_STEP_LABELS = {
    "activations": "Activations",
    "activation_gradients": "Gradients of activations",
    "workspace": "Workspace",
}
#: Columns of the tree, and lines whose bytes each of them has; all others count as state.
_TREE_COLUMNS = ("parameter_bytes", "gradient_bytes", "state_bytes", "transient_bytes", "fullest_bytes")
_COLUMNS = {"parameters": "parameter_bytes", "gradients": "gradient_bytes", "transient": "transient_bytes"}
_VALUES = (Lifetime.OUTPUT, Lifetime.SAVED)


def lines_of(plan: MemoryPlan) -> list[Line]:
    """Lines that sum to ``plan.reserved_bytes``; lines of 0 bytes included, always in the same order."""
    buffers: dict[str, list[PlannedBuffer]] = {key: [] for key in LINE_LABELS}
    for buffer in plan.buffers:
        buffers[_key(buffer)].append(buffer)
    sizes = {key: sum(buffer.nbytes for buffer in found) for key, found in buffers.items()}
    sizes["transient"] = plan.transient_bytes
    sizes["alignment"] = plan.reserved_bytes - sum(sizes.values())
    details = {key: _named(found) for key, found in buffers.items()}
    for key in ("parameters", "gradients", "moments"):
        details[key] = _stored_as(buffers[key])
    details["transient"] = f"{format_bytes(plan.transient_sum)} of buffers that are not all alive at once"
    details["alignment"] = f"offsets and bases at multiples of {plan.alignment}"
    return [
        Line(key=key, label=label, bytes=sizes[key], detail=details[key] if sizes[key] else "")
        for key, label in LINE_LABELS.items()
    ]


def fullest_step_of(plan: MemoryPlan) -> FullestStep:
    """What is alive when most of the transient region is; sizes as they are placed, aligned.

    A gradient that is written over an activation counts as that activation.
    """
    step, alive = plan.fullest_step()
    sizes = dict.fromkeys(_STEP_LABELS, 0)
    largest: dict[str, PlannedBuffer] = {}
    for buffer in alive:  # the largest come first
        key = _step_key(buffer)
        sizes[key] += align_up(buffer.nbytes, plan.alignment)
        largest.setdefault(key, buffer)
    lines = [
        Line(key=key, label=label, bytes=sizes[key], detail=_largest(largest[key]) if key in largest else "")
        for key, label in _STEP_LABELS.items()
    ]
    return FullestStep(
        step=step,
        lines=lines,
        bytes=sum(sizes.values()),
        region_bytes=plan.transient_bytes,
        unshared_bytes=plan.transient_sum,
    )


def tree_of(root: Component[Any], plan: MemoryPlan) -> list[TreeRow]:
    """A row for every component that declares memory, and for those around it, in the order of the graph."""
    alive = set(map(id, plan.fullest_step()[1]))
    own: dict[str, Counter[str]] = {}
    for buffer in plan.buffers:
        sizes = own.setdefault(buffer.path, Counter())
        sizes[_COLUMNS.get(_key(buffer), "state_bytes")] += buffer.nbytes
        if id(buffer) in alive:
            sizes["fullest_bytes"] += align_up(buffer.nbytes, plan.alignment)
    return [TreeRow(**fields, **sizes) for fields, sizes in _visit(root, 0, own) if sizes.total()]


def fixed_bytes(plan: MemoryPlan) -> int:
    """What parameters, their gradients and moments take: the same for every batch, context and prefill."""
    sizes = plan.arena_bytes.items()
    return sum(size + plan.alignment for name, size in sizes if size and name not in (PERSISTENT, TRANSIENT))


def _visit(
    component: Component[Any], depth: int, own: dict[str, Counter[str]]
) -> Iterator[tuple[dict[str, Any], Counter[str]]]:
    """The component and all below it, parents first, each with the sizes of its whole branch."""
    below = [list(_visit(child, depth + 1, own)) for child in component.components]
    sizes = Counter(dict.fromkeys(_TREE_COLUMNS, 0))
    parts: list[Mapping[str, int]] = [own.get(component.path, {}), *(branch[0][1] for branch in below)]
    for part in parts:
        sizes.update(part)
    yield {"path": component.path, "depth": depth, "component": _class_name(component)}, sizes
    for branch in below:
        yield from branch


def _class_name(component: Component[Any]) -> str:
    built = component.stands_for if isinstance(component, StandIn) else type(component)
    return built.__name__


def _key(buffer: PlannedBuffer) -> str:
    """The line of a buffer, by where it is and what it was declared as."""
    if buffer.arena in (PARAMETERS, GRADIENTS, TRANSIENT):
        return buffer.arena
    if buffer.arena != PERSISTENT:
        return "moments"
    if buffer.is_table:
        return "tables"
    return "cache" if buffer.category is Category.STATE else "persistent"


def _step_key(buffer: PlannedBuffer) -> str:
    if buffer.lifetime in _VALUES:
        return "activations"
    return "activation_gradients" if buffer.lifetime is Lifetime.INPUT_GRADIENT else "workspace"


def _stored_as(buffers: Iterable[PlannedBuffer]) -> str:
    """``1,024 numbers in float32``, for each dtype."""
    elements: Counter[str] = Counter()
    for buffer in buffers:
        elements[buffer.dtype.name] += _elements(buffer)
    return ", ".join(f"{count:,} in {dtype}" for dtype, count in elements.most_common())


def _named(buffers: Iterable[PlannedBuffer]) -> str:
    """``keys, values (24 each, float32)``, by the names under which they were declared."""
    found = list(buffers)
    names = Counter(buffer.name for buffer in found)
    dtypes = ", ".join(dict.fromkeys(buffer.dtype.name for buffer in found))
    counts = set(names.values())
    each = f"{next(iter(counts))} each, " if len(counts) == 1 and counts != {1} else ""
    return f"{', '.join(names)} ({each}{dtypes})" if found else ""


def _largest(buffer: PlannedBuffer) -> str:
    return f"largest: {buffer.path}.{buffer.name}, {format_bytes(buffer.nbytes)}"


def _elements(buffer: PlannedBuffer) -> int:
    count = 1
    for extent in buffer.shape:
        count *= extent
    return count
