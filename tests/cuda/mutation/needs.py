"""Which kernels a test launches: noted for a few, and taken to be the same for those that are like them.

Tests are alike that run the same case of a kernel, or are instances of one function. It does no harm to take too many
kernels for a test's own: it then runs for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.cuda.mutation.observed import Launch
from tests.cuda.mutation.texts import Target
from tests.emulator.module import FORWARD, Mode, Run

#: How many of the tests that are alike are noted.
NOTED = 2
#: Where cases launch kernels that they launch nowhere else.
_OTHER_KERNELS = ("test_orders.py",)


@dataclass(slots=True)
class Needs:
    """What a test launches.

    Attributes:
        kernels: of each source: the mode, the options and the name of every kernel.
        size: a number that grows with the test's expense, to compare it with others like it.
    """

    kernels: dict[str, set[tuple[Mode, str, str]]] = field(default_factory=dict)
    size: int = 0

    def modules(self, source: str) -> frozenset[tuple[Mode, str]]:
        """What is compiled of a source."""
        return frozenset((mode, options) for mode, options, _ in self.kernels[source])

    def reaches(self, target: Target) -> bool:
        """Whether one of the target's kernels is launched."""
        return any(kernel in target.kernels for _, _, kernel in self.kernels.get(target.source, ()))


def needs_of(noted: Sequence[tuple[Launch, int]], source_of: Mapping[str, str]) -> Needs:
    """What was noted of one test; ``source_of`` names the texts of the sources."""
    needs = Needs()
    for launch, threads in noted:
        build = launch.build
        kernels = needs.kernels.setdefault(source_of.get(build.text, ""), set())
        kernels.add((build.mode, " ".join(build.options), launch.kernel))
        needs.size += threads
    return needs


def alike(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """Tests that launch the same kernels, together; those to note come first."""
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        case = getattr(_parameters_of(item).get("case"), "name", "")
        where = f"{item.path}::{getattr(item, 'originalname', item.name)}"
        groups[case if case and item.path.name not in _OTHER_KERNELS else where + case].append(item)
    return [_telling_first(group) for group in groups.values()]


def like(item: pytest.Item, known: Sequence[Needs]) -> Needs:
    """What a test launches, by what others like it do, and by its own parameters ``way``, ``dtype`` and ``shape``."""
    parameters = _parameters_of(item)
    way, dtype = parameters.get("way"), parameters.get("dtype")
    needs = Needs(size=_elements(item) or max(other.size for other in known))
    for other in known:
        for source, kernels in other.kernels.items():
            needs.kernels.setdefault(source, set()).update(
                (
                    way.mode if isinstance(way, Run) else mode,
                    options.replace("FLOAT32", dtype.upper()) if isinstance(dtype, str) else options,
                    kernel,
                )
                for mode, options, kernel in kernels
            )
    return needs


def _telling_first(group: list[pytest.Item]) -> list[pytest.Item]:
    """Put first one element and large arrays, in float32; of tests without such parameters take some far apart."""
    if any("way" in _parameters_of(item) for item in group):
        return sorted(group, key=_plainness)
    step = max(1, len(group) // NOTED)
    first = group[::step]
    return first + [item for index, item in enumerate(group) if index % step]


def _plainness(item: pytest.Item) -> tuple[bool, bool, bool, int]:
    parameters, elements = _parameters_of(item), _elements(item)
    is_plain = parameters.get("way") == Run(Mode.FAST, FORWARD)
    return not is_plain, parameters.get("dtype") != "float32", elements != 1, -elements


def _elements(item: pytest.Item) -> int:
    shape = _parameters_of(item).get("shape")
    return shape[0] * shape[1] if isinstance(shape, tuple) else 0


def _parameters_of(item: pytest.Item) -> dict[str, Any]:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return parameters
