"""One block does what many do, pass after pass and to the same bits; and a single row, what many rows are."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import ml_dtypes
import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.cuda import elementwise, embedding, family, optimizer, positions, reductions, row_blocks, tokens
from tests.cuda.on_device import OnDevice
from tests.cuda.test_kernels import CHECKED, belongs
from tests.emulator.stand_in.settings import use
from tests.kernels.bench import Bench, Case, Run
from tests.kernels.cases import CASES
from tests.kernels.test_cpu_kernels import assert_close

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
#: More rows than a block has warps and more columns than it has threads; the columns are whole vectors, or not.
WHOLE, ODD = (40, 272), (37, 301)
SMALL = (37, 20)
#: Products of a single row have kernels of their own.
SINGLE = ((1, 160), (1, 43))
STORED = [(case, dtype) for case in CASES for dtype in DTYPES if belongs(case, dtype)]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture
def one_multiprocessor(cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has a single multiprocessor, which runs a single block at once."""
    monkeypatch.setattr(cuda, "multiprocessor_count", 1)
    monkeypatch.setattr(family, "_BLOCKS_PER_MULTIPROCESSOR", 1)
    monkeypatch.setattr(row_blocks, "_BLOCKS_AT_ONCE", 1)


@pytest.fixture
def one_block(one_multiprocessor: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids that have a limit of their own are a single block too."""
    for module in (elementwise, embedding, optimizer, positions, reductions, tokens):
        monkeypatch.setattr(module, "_MOST_BLOCKS", 1)


def run_of(case: Case, device: CudaDevice, shape: tuple[int, int], dtype: str = "float32") -> Run:
    """The case, called."""
    run = case.build(Bench(cast(CpuKernels, OnDevice(device)), DTYPES[dtype], *shape))
    run.call()
    return run


@every_case
def test_results_do_not_depend_on_the_number_of_multiprocessors(
    case: Case, cuda: CudaDevice, request: pytest.FixtureRequest
) -> None:
    many = run_of(case, cuda, WHOLE)
    request.getfixturevalue("one_multiprocessor")
    one = run_of(case, cuda, WHOLE)
    for name, output in many.outputs.items():
        assert one.outputs[name].tobytes() == output.tobytes(), name


@every_case
@pytest.mark.usefixtures("one_block")
def test_a_single_block_does_all(case: Case, cuda: CudaDevice) -> None:
    assert_close(run_of(case, cuda, ODD), "float32")


@every_case
@pytest.mark.usefixtures("one_block")
def test_passes_of_a_block_do_not_meet(case: Case, cuda: CudaDevice) -> None:
    with use(CHECKED):
        assert_close(run_of(case, cuda, SMALL), "float32")


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case, dtype, id=f"{case.name}-{dtype}")
        for case in CASES
        for dtype in DTYPES
        if belongs(case, dtype)
    ],
)
def test_a_single_row_serves(case: Case, dtype: str, cuda: CudaDevice) -> None:
    for shape in SINGLE:
        assert_close(run_of(case, cuda, shape, dtype), "float32")
