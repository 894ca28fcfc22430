"""Kernels serve any length around vectors, no columns, rows wider than shared memory, and very many rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.cuda import head_norm, normalization
from mila.kernels.cuda.family import BFLOAT16, FLOAT32
from mila.kernels.cuda.table import CudaKernels
from tests.cuda.attention_cases import ATTENTION_CASES
from tests.cuda.on_device import OnDevice
from tests.cuda.recorded import RecordedLaunches
from tests.cuda.shifted import Shifted
from tests.cuda.test_kernels import CHECKED, belongs
from tests.emulator.stand_in.settings import use
from tests.kernels.bench import Bench, Case, Run
from tests.kernels.cases import CASES
from tests.kernels.test_cpu_kernels import assert_close

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

DTYPES = {"float32": FLOAT32, "bfloat16": BFLOAT16}
#: Gradients of attention are made of an output that was rounded before.
ROUNDED_TWICE = ("attention_backward", "context_attention_backward", "head_norm_backward")


def first_of_each(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The first case of every kernel, by name."""
    firsts: dict[str, Case] = {}
    for case in cases:
        firsts.setdefault(case.name.partition("-")[0], case)
    return tuple(firsts.values())


PLAIN, ATTENTION = first_of_each(CASES), first_of_each(ATTENTION_CASES)
#: Their second factor has as many rows as columns: too many.
SQUARE = ("linear_forward", "linear_backward_input", "linear_backward_weight")
WIDE = tuple(case for case in PLAIN if not case.name.startswith(SQUARE))
#: Heads as wide as the shared memory of a block allows, far wider than attention takes.
WIDEST_HEAD = 29_001

#: Columns whose sums are as large as the shared memory that a block gets unasked: those of two gradients, and of one.
FULL = (6_144, 12_288)
SUMMED = tuple(case for case in PLAIN if case.name.startswith(("layer_norm_backward", "rms_norm_backward")))

HEADS = tuple(case for case in PLAIN if case.name.startswith("head_norm"))
#: Columns of rows that one warp holds, and two, three and all of a block; and of rows that are too wide to be held.
HELD_COLUMNS = (8, 255, 256, 257, 516, 1_001, 4_095, 4_096, 4_097, 4_100)
#: Elements of heads that one lane holds, and two and more; and of heads that are too wide to be held by a warp.
HELD_ELEMENTS = (1, 8, 9, 16, 24, 40, 64, 65, 96, 255, 256, 257, 264)
#: Backward passes whose blocks work on several rows or heads at a time, and go on with the next.
HELD = tuple(case for case in (*SUMMED, *HEADS) if "backward" in case.name)

#: A bound kernel keeps the arrays that it was bound to.
MOVABLE = tuple(case for case in (*PLAIN, *ATTENTION) if case.name != "head_norm_bound")
ALIASES = [(case, alias) for case in (*PLAIN, *ATTENTION) for alias in case.aliases if belongs(case, "bfloat16")]

every_case = pytest.mark.parametrize("case", (*PLAIN, *ATTENTION), ids=lambda case: case.name)


def run_of(case: Case, kernels: Any, dtype: str, shape: tuple[int, int]) -> Run:
    """The case, called."""
    run = case.build(Bench(cast(CpuKernels, kernels), DTYPES[dtype], *shape))
    run.call()
    return run


def assert_right(case: Case, run: Run, dtype: str) -> None:
    """As the cases' own tests, but for what is rounded twice."""
    if dtype == "float32" or not case.name.startswith(ROUNDED_TWICE):
        assert_close(run, "float32")
        return
    for name, output in run.outputs.items():
        expected = run.expected[name]
        largest = max(1.0, np.abs(expected).max(initial=0.0))
        assert np.abs(output.astype(np.float64) - expected).max(initial=0.0) < 2e-2 * largest, name


@every_case
def test_any_length_around_vectors_serves(case: Case, cuda: CudaDevice) -> None:
    lengths = range(1, 34) if case in PLAIN else (1, 2, 3, 4, 5, 8, 9, 31, 32, 33)
    for dtype in (dtype for dtype in DTYPES if belongs(case, dtype)):
        for length in lengths:
            assert_right(case, run_of(case, OnDevice(cuda), dtype, (2, length)), dtype)


@pytest.mark.parametrize("case", [case for case in CASES if case.elementwise], ids=lambda case: case.name)
def test_rows_without_columns_serve(case: Case, cuda: CudaDevice) -> None:
    for shape in ((3, 0), (0, 0)):
        assert_close(run_of(case, OnDevice(cuda), "float32", shape), "float32")


@pytest.mark.parametrize("case", WIDE, ids=lambda case: case.name)
def test_rows_may_be_wider_than_a_block_and_than_shared_memory(case: Case, cuda: CudaDevice) -> None:
    width = WIDEST_HEAD if case.name.startswith("head_norm") else 70_001
    for shape in ((2, width), (1, width + 3)):
        assert_close(run_of(case, OnDevice(cuda), "float32", shape), "float32")


@pytest.mark.parametrize("case", SUMMED, ids=lambda case: case.name)
def test_sums_may_be_as_large_as_the_shared_memory_that_a_block_gets_unasked(case: Case, cuda: CudaDevice) -> None:
    """A part of which is the kernel's own."""
    for columns in FULL:
        assert_close(run_of(case, OnDevice(cuda), "float32", (2, columns)), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SUMMED, ids=lambda case: case.name)
def test_rows_are_shared_by_as_many_warps_as_hold_them(case: Case, dtype: str, cuda: CudaDevice) -> None:
    """Rows of several chunks, the last of which is not full."""
    for columns in HELD_COLUMNS:
        run = run_of(case, OnDevice(cuda), dtype, (37, columns))
        assert_right(case, run, dtype)


@pytest.mark.parametrize("case", SUMMED, ids=lambda case: case.name)
def test_turns_of_warps_that_share_rows_do_not_meet(case: Case, cuda: CudaDevice) -> None:
    """Three rows at a time, five warps for each, and one row at a time."""
    with use(CHECKED):
        for columns in (1_100, 2_301):
            assert_close(run_of(case, OnDevice(cuda), "float32", (29, columns)), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", HEADS, ids=lambda case: case.name)
def test_heads_are_shared_by_as_many_lanes_as_hold_them(case: Case, dtype: str, cuda: CudaDevice) -> None:
    for elements in HELD_ELEMENTS:
        assert_right(case, run_of(case, OnDevice(cuda), dtype, (23, elements)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", HELD, ids=lambda case: case.name)
def test_blocks_go_on_with_more_rows_than_they_hold(
    case: Case, dtype: str, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rows or heads at a time as there are teams of warps or lanes, and the last time fewer."""
    for family in (head_norm, normalization):
        monkeypatch.setattr(family, "_LEAST_ROWS", 250)  # all are one chunk
    for columns in (7, 8, 96, 255, 256):
        assert_right(case, run_of(case, OnDevice(cuda), dtype, (203, columns)), dtype)


@pytest.mark.parametrize("case", MOVABLE, ids=lambda case: case.name)
def test_arrays_need_not_be_aligned(case: Case, cuda: CudaDevice) -> None:
    """With each array alone, and with all of them, one element into their memory; of attention all of them alone."""
    shape = (3, 16) if case in PLAIN else (2, 8)
    with use(CHECKED):
        for dtype in (dtype for dtype in DTYPES if belongs(case, dtype)):
            shifted = Shifted(OnDevice(cuda))
            assert_right(case, run_of(case, shifted, dtype, shape), dtype)
            for number in range(shifted.most_arrays if dtype == "float32" and case in PLAIN else 0):
                assert_right(case, run_of(case, Shifted(OnDevice(cuda), number), dtype, shape), dtype)


@pytest.mark.parametrize(("case", "alias"), ALIASES, ids=[f"{case.name}-over-{alias}" for case, alias in ALIASES])
def test_half_precision_gives_the_same_bits_in_place(case: Case, alias: str, cuda: CudaDevice) -> None:
    kernels = cast(CpuKernels, OnDevice(cuda))
    apart, in_place = (case.build(Bench(kernels, BFLOAT16, 5, 24, name)) for name in ("", alias))
    apart.call()
    in_place.call()
    for name, output in apart.outputs.items():
        assert in_place.outputs[name].tobytes() == output.tobytes(), name


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_launches_fit_grids_however_many_rows_there_are(case: Case) -> None:
    launches = RecordedLaunches()
    kernels = CudaKernels(launches)
    rows = (1 << 20) + 1 if case.name.startswith("linear") else 70_001
    run_of(case, kernels, "float32", (rows, 1))
    assert launches.grids or case.name.startswith(("linear", "matrix"))
