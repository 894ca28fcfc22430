"""The kernel families become one object: no two of them may mean different things by one name."""

from __future__ import annotations

from collections import defaultdict

from mila.kernels.cuda.table import CudaKernels

FAMILIES = [family for family in CudaKernels.__mro__ if family is not object]


def test_no_name_is_defined_twice() -> None:
    owners: dict[str, list[str]] = defaultdict(list)
    for family in FAMILIES:
        for name in vars(family):
            if not (name.startswith("__") and name.endswith("__")):
                owners[name].append(family.__name__)
    assert {name: families for name, families in owners.items() if len(families) > 1} == {}


def test_families_keep_nothing_but_their_launcher() -> None:
    constructors = [family.__name__ for family in FAMILIES if "__init__" in vars(family)]
    assert constructors == ["CudaFamily"]
    assert set(vars(CudaKernels(None, deterministic=False))) == {"launcher", "is_deterministic"}  # type: ignore[arg-type]
