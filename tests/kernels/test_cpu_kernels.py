"""Every CPU kernel computes its formula, in place or not, on any number of threads, without allocating."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from mila.kernels.cpu import family, linear, normalization
from mila.kernels.cpu.table import CpuKernels
from tests.kernels.bench import Bench, Case, Run
from tests.kernels.cases import CASES

#: Largest error relative to the largest expected magnitude (at least one); what is stored in half precision is rounded
#: to 8 or 11 bits.
TOLERANCE = {"float32": 3e-6, "float64": 2e-14}
ROUNDED = {"bfloat16": 2.0**-8 + 3e-6, "float16": 2.0**-11 + 3e-6}
SHAPES = ((0, 5), (1, 1), (7, 13), (31, 17), (257, 301))
KERNELS = {threads: CpuKernels(threads) for threads in (1, 2, 3)}
#: What NumPy's iterators may take: 120 KB for each thread and 120 KB.
ALLOWED_BYTES = 3 * 120_000

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def prepare(case: Case, dtype: str, shape: tuple[int, int], threads: int = 2, alias: str = "") -> Run:
    return case.build(Bench(KERNELS[threads], np.dtype(dtype), *shape, alias))


def assert_close(run: Run, dtype: str) -> None:
    for name, output in run.outputs.items():
        expected = run.expected[name]
        assert output.shape == expected.shape, name
        error = np.max(np.abs(output - expected), initial=0.0) / max(1.0, np.max(np.abs(expected), initial=0.0))
        assert error <= ROUNDED.get(output.dtype.name, TOLERANCE[dtype]), f"{name}: {error}"


@every_case
@both_dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_computes_its_formula(case: Case, dtype: str, shape: tuple[int, int]) -> None:
    if shape[0] == 0 and case.name.startswith("softmax") and "axis=-1" not in case.name:
        shape = (3, 0)
    run = prepare(case, dtype, shape)
    run.call()
    assert_close(run, dtype)


@pytest.mark.parametrize(
    ("case", "alias"),
    [pytest.param(case, alias, id=f"{case.name}-over-{alias}") for case in CASES for alias in case.aliases],
)
@both_dtypes
@pytest.mark.parametrize("shape", [(7, 13), (257, 301)], ids=str)
def test_gives_the_same_bits_in_place(case: Case, alias: str, dtype: str, shape: tuple[int, int]) -> None:
    apart, in_place = prepare(case, dtype, shape), prepare(case, dtype, shape, alias=alias)
    apart.call()
    in_place.call()
    for name, output in apart.outputs.items():
        np.testing.assert_array_equal(in_place.outputs[name], output, err_msg=name)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call uses all workers, and each of them works through several tiles."""
    monkeypatch.setattr(family, "INLINE_ELEMENTS", 1)
    monkeypatch.setattr(family, "TILE_ELEMENTS", 2000)
    monkeypatch.setattr(family, "_FREE_TILE_ELEMENTS", 2000)
    monkeypatch.setattr(normalization, "TILE_ELEMENTS", 2000)
    monkeypatch.setattr(linear, "TILE_ELEMENTS", 2000)


@every_case
@both_dtypes
@pytest.mark.usefixtures("small_tiles")
def test_agrees_on_any_number_of_threads(case: Case, dtype: str) -> None:
    runs = [prepare(case, dtype, (101, 131), threads) for threads in (1, 2, 3)]
    for run in runs:
        run.call()
        assert_close(run, dtype)
        if case.elementwise:
            for name, output in run.outputs.items():
                np.testing.assert_array_equal(output, runs[0].outputs[name], err_msg=name)


@every_case
@pytest.mark.usefixtures("small_tiles")
def test_runs_smaller_than_its_workspace(case: Case) -> None:
    """A workspace that was sized for more rows and columns serves every smaller call."""
    for shape in ((0, 5), (1, 131), (57, 31), (101, 1)):
        if shape[0] == 0 and case.name.startswith("softmax"):
            continue
        bench = Bench(KERNELS[2], np.dtype("float32"), *shape, spare_workspace=40_000)
        run = case.build(bench)
        run.call()
        assert_close(run, "float32")


@every_case
def test_gives_the_same_bits_every_time(case: Case) -> None:
    first, second = prepare(case, "float32", (257, 301)), prepare(case, "float32", (257, 301))
    first.call()
    second.call()
    for name, output in first.outputs.items():
        np.testing.assert_array_equal(second.outputs[name], output, err_msg=name)


@every_case
@both_dtypes
def test_allocates_no_array(case: Case, dtype: str) -> None:
    shape = (521, 769)  # 1.6 MB of float32: any temporary of the size of an input shows
    prepare(case, dtype, (31, 17)).call()
    run = prepare(case, dtype, shape)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run.call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - before <= ALLOWED_BYTES
