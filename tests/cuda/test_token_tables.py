"""Gradients of tables: rows of one id, or at one position, in their order to the bit, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.cuda import embedding, family
from mila.kernels.cuda.family import BFLOAT16, BLOCK, FLOAT16, FLOAT32
from tests.cuda.on_device import OnDevice
from tests.cuda.test_kernels import CHECKED, FAST
from tests.emulator.module import Run
from tests.emulator.stand_in.settings import use

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

Array = np.ndarray[Any, Any]
DTYPES = (FLOAT32, BFLOAT16, FLOAT16)
#: Rows of dy: none and one; around a tile that a block sorts, around a pass of merging, and in a third pass.
COUNTS = (0, 1, 2, 31, BLOCK - 1, BLOCK, BLOCK + 1, 8 * BLOCK, 8 * BLOCK + 1, 64 * BLOCK + 3)
#: Rows of a table: fewer than a block takes, as many, and some more.
VOCABULARIES = (1, 2, 63, 64, 65, 200)
#: Equal ids: around as many as one warp adds up, and as a block loads at once.
RUNS = (0, 1, 4, 5, 31, 32, 33, 34, 63, 64, 65, 130, 0, 0, 1)
ORDERS: dict[str, Callable[[Array], Array]] = {
    "rising": lambda ids: ids,
    "falling": lambda ids: ids[::-1],
    "mixed": lambda ids: np.random.default_rng(0).permutation(ids),
}


def summed(dtable: Array, dy: Array, ids: Array, scale: float, accumulate: bool) -> Array:
    """What the gradient must be to the bit: sums in float32, row by row, rounded once."""
    sums = dtable.astype(np.float32) if accumulate else np.zeros(dtable.shape, np.float32)
    for index, row in zip(ids.tolist(), np.float32(scale) * dy.astype(np.float32), strict=True):
        sums[index] += row
    return sums.astype(dtable.dtype)


def check(
    device: CudaDevice,
    ids: Array,
    vocabulary: int,
    columns: int,
    *,
    dtypes: tuple[Any, Any] = (FLOAT32, FLOAT32),
    scale: float = 1.0,
    accumulate: bool = False,
) -> None:
    """Compute on the device what ``summed`` computes; ``dtypes`` of the table and of dy."""
    kernels, random = cast(CpuKernels, OnDevice(device)), np.random.default_rng(ids.size)
    table, upstream = dtypes
    dy = random.standard_normal((ids.size, columns)).astype(upstream)
    dtable = (
        random.standard_normal((vocabulary, columns)) if accumulate else np.full((vocabulary, columns), np.nan)
    ).astype(table)
    wanted = summed(dtable, dy, ids, scale, accumulate)
    narrow = "" if table == upstream else "_narrow"
    size = getattr(kernels, f"embedding_backward{narrow}_workspace")(ids.size, columns)
    workspace = np.full(size, np.nan, np.float32)
    getattr(kernels, f"embedding_backward{narrow}")(dtable, dy, ids, scale, accumulate, workspace)
    assert dtable.tobytes() == wanted.tobytes()


def drawn(count: int, vocabulary: int, integer: Any = np.int32) -> Array:
    return np.random.default_rng(count).integers(0, vocabulary, count).astype(integer)


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks have as many rows of the table as they take."""
    monkeypatch.setattr(embedding, "_ENOUGH_BLOCKS", 1)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_any_number_of_rows_is_added_up_in_order(count: int, accumulate: bool, cuda: CudaDevice) -> None:
    for integer, columns in ((np.int32, 3), (np.int64, 4)):
        check(cuda, drawn(count, 61, integer), 61, columns, scale=0.5, accumulate=accumulate)


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_tables_of_any_size_are_written_by_blocks_that_take_many_rows(
    vocabulary: int, accumulate: bool, cuda: CudaDevice
) -> None:
    for count in (0, 5, 150):
        check(cuda, drawn(count, vocabulary), vocabulary, 4, accumulate=accumulate)


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_ids_may_come_any_number_of_times(order: str, dtype: Any, cuda: CudaDevice) -> None:
    """In a network's own dtype and in tables of a narrower one, with any number of columns."""
    ids = ORDERS[order](np.repeat(np.arange(len(RUNS)), RUNS)).astype(np.int32)
    for columns in (1, 32, 33, 40, 264):
        for upstream in {dtype, FLOAT32}:
            for accumulate in (False, True):
                check(cuda, ids, len(RUNS), columns, dtypes=(dtype, upstream), accumulate=accumulate)


@pytest.mark.parametrize("way", [FAST, CHECKED], ids=str)
def test_one_id_may_be_all(way: Run, cuda: CudaDevice) -> None:
    with use(way):
        for vocabulary, index in ((1, 0), (70, 0), (70, 69), (70, 33)):
            check(cuda, np.full(300, index, np.int32), vocabulary, 36)


@pytest.mark.usefixtures("few_blocks")
def test_passes_over_keys_and_rows_do_not_meet(cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every access is checked, in a block that sorts, merges and adds up more than once."""
    monkeypatch.setattr(cuda, "multiprocessor_count", 1)
    monkeypatch.setattr(family, "_BLOCKS_PER_MULTIPROCESSOR", 1)
    ids = np.concatenate([drawn(2 * BLOCK + 9, 150), np.full(70, 149, np.int32), np.full(40, 3, np.int32)])
    with use(CHECKED):
        for columns, dtype in ((5, FLOAT32), (72, BFLOAT16)):
            for accumulate in (False, True):
                check(cuda, ids, 150, columns, dtypes=(dtype, dtype), accumulate=accumulate)


def test_tables_of_more_rows_than_blocks_are_written_in_turns(
    cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "multiprocessor_count", 1)
    monkeypatch.setattr(embedding, "_ENOUGH_BLOCKS", 4)
    monkeypatch.setattr(embedding, "_MOST_COLUMN_BLOCKS", 2)
    for columns in (100, 400):
        check(cuda, drawn(3000, 3001), 3001, columns)


def test_ids_of_very_large_tables_are_sorted_by_all_their_bits(cuda: CudaDevice) -> None:
    """A key has as many bits for rows as it takes to number them, and all others for the id."""
    ids = np.array([2**40, 5, 2**40 - 1, 2**33, 5, 2**40, 0, 2**32 + 5])
    workspace = cuda.allocate(16 * 4 * ids.size).view(np.float32)
    kernels: Any = cuda.kernels
    keys = kernels._sorted_keys(cuda.to_device(ids), 3, FLOAT32, workspace)
    order = np.argsort(ids, kind="stable")
    assert cuda.download(keys).tolist() == [(int(ids[row]) << 3) + int(row) for row in order]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_any_number_of_rows_at_one_position_is_added_up_in_order(
    accumulate: bool, dtype: Any, cuda: CudaDevice
) -> None:
    """Around as many as are under way together, at equal starts and at others; by vectors, and one by one."""
    kernels, random = cast(CpuKernels, OnDevice(cuda)), np.random.default_rng(0)
    for batch in (1, 3, 4, 5, 8, 9):
        for columns in (3, 16):
            for starts in ([2] * batch, random.integers(0, 6, batch).tolist()):
                dy = random.standard_normal((batch, 2, columns)).astype(dtype)
                dtable = random.standard_normal((9, columns)).astype(dtype)
                ids = np.array([[start, start + 1] for start in starts]).reshape(-1)
                wanted = summed(dtable, dy.reshape(-1, columns), ids, 1.0, accumulate)
                kernels.position_backward(dtable, dy, starts, accumulate)
                assert dtable.tobytes() == wanted.tobytes()
