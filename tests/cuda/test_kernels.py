"""The cases of the CPU kernels on CUDA kernels, emulated: the same formulas, in every order of threads, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.cuda.table import CudaKernels
from mila.kernels.signatures import Kernels
from tests.cuda.on_device import OnDevice
from tests.emulator.module import FORWARD, REVERSE, SHUFFLED, Mode, Run
from tests.emulator.stand_in.settings import use
from tests.kernels.bench import Bench, Case
from tests.kernels.cases import CASES
from tests.kernels.test_cpu_kernels import assert_close

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

FAST, CHECKED = Run(Mode.FAST, FORWARD), Run(Mode.CHECK, FORWARD)
OTHER_ORDERS = (Run(Mode.FAST, REVERSE), Run(Mode.FAST, SHUFFLED))
#: Empty, one element, primes, and columns that are whole vectors.
SHAPES = ((0, 5), (1, 1), (7, 13), (5, 16), (31, 17))
LARGE = (257, 301)
#: Kernels of the signature table that CUDA lacks.
MISSING: tuple[str, ...] = ()

Plan = tuple[str, tuple[int, int], Run]
PLANS: list[Plan] = [
    *(("float32", shape, FAST) for shape in (*SHAPES, LARGE)),
    *(("bfloat16", shape, FAST) for shape in ((1, 1), (7, 13), (5, 16))),
    *(("float16", shape, FAST) for shape in ((7, 13), (5, 16))),
    *(("float32", (31, 17), run) for run in OTHER_ORDERS),
    ("float32", (7, 13), CHECKED),
    ("bfloat16", (5, 16), CHECKED),
]


def belongs(case: Case, dtype: str) -> bool:
    """Whether a case is about a dtype: those of half precision say so in their names."""
    return dtype == "float32" or (not case.name.endswith(("bfloat16", "float16")) and "float16-" not in case.name)


RUNS = [(case, *plan) for case in CASES for plan in PLANS if belongs(case, plan[0])]


def name_of(run: tuple[Case, str, tuple[int, int], Run]) -> str:
    case, dtype, shape, way = run
    return f"{case.name}-{dtype}-{shape[0]}x{shape[1]}-{way}"


def prepared(case: Case, device: CudaDevice, dtype: str, shape: tuple[int, int], alias: str = "") -> Any:
    if shape[0] == 0 and case.name.startswith("softmax") and "axis=-1" not in case.name:
        shape = (3, 0)
    kernels = cast(CpuKernels, OnDevice(device))
    return case.build(Bench(kernels, np.dtype(dtype), *shape, alias))


@pytest.mark.parametrize(("case", "dtype", "shape", "way"), RUNS, ids=map(name_of, RUNS))
def test_computes_its_formula(case: Case, dtype: str, shape: tuple[int, int], way: Run, cuda: CudaDevice) -> None:
    with use(way):
        run = prepared(case, cuda, dtype, shape)
        run.call()
        cuda.synchronize()
    assert_close(run, "float32")


@pytest.mark.parametrize(
    ("case", "alias"),
    [pytest.param(case, alias, id=f"{case.name}-over-{alias}") for case in CASES for alias in case.aliases],
)
def test_gives_the_same_bits_in_place(case: Case, alias: str, cuda: CudaDevice) -> None:
    apart, in_place = (prepared(case, cuda, "float32", (7, 13), name) for name in ("", alias))
    apart.call()
    in_place.call()
    for name, output in apart.outputs.items():
        np.testing.assert_array_equal(in_place.outputs[name], output, err_msg=name)


def test_all_kernels_are_there_but_those_named_here() -> None:
    names = [name for name in dir(Kernels) if not name.startswith("_") and callable(getattr(Kernels, name))]
    assert sorted(name for name in names if not hasattr(CudaKernels, name)) == sorted(MISSING)
