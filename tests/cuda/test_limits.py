"""More rows, experts and ids than grids and scratch hold at once, ids that no table has, and dropout at any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from mila.components import SoftmaxCrossEntropy, SoftmaxCrossEntropyConfig, TokenEmbedding, TokenEmbeddingConfig
from mila.core import BuildContext, RuntimeMode
from mila.devices import ExecutionContext
from mila.errors import TokenIdError
from mila.kernels.cpu.table import CpuKernels
from mila.kernels.cuda import elementwise, positions, reductions, tokens
from mila.kernels.cuda.family import BFLOAT16, FLOAT32, SCRATCH_BYTES
from tests.cuda.on_device import OnDevice
from tests.cuda.test_sizes import PLAIN, run_of
from tests.kernels.bench import Case
from tests.kernels.cases import CASES
from tests.kernels.test_cpu_kernels import assert_close

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

CPU = CpuKernels(1)
#: Numbers of eight bytes that the scratch holds, and some more.
HELD = SCRATCH_BYTES // 8
#: Sums for many rows, over an axis in the middle.
SUMS = tuple(case for case in CASES if case.name in ("sum_axis-1-1.0", "broadcast_sum-(1,)"))


def both(device: CudaDevice) -> tuple[CpuKernels, CpuKernels]:
    return CPU, cast(CpuKernels, OnDevice(device))


def drawn(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


# ---------------------------------------------------------------------- scratch


@pytest.mark.parametrize("rows", [HELD + 1, 2 * HELD + 3])
def test_positions_of_more_rows_than_the_scratch_holds(rows: int, cuda: CudaDevice) -> None:
    x, table, starts = drawn(rows, 2, 1), drawn(40, 1), np.arange(rows) % 37
    lengths = (1 + starts % 2).tolist()
    found = []
    for kernels in both(cuda):
        output, dtable, last = np.full_like(x, np.nan), table.copy(), np.full((rows, 1, 1), np.nan, np.float32)
        kernels.position_forward(output, x, table, starts.tolist())
        kernels.position_backward(dtable, x, starts.tolist(), True)
        kernels.gather_last(last, x, lengths)
        found.append((output, last, dtable))
    for got, want in zip(found[1][:2], found[0][:2], strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(found[1][2], found[0][2], rtol=1e-4, atol=1e-4)


def test_the_last_rows_may_be_gathered_in_place_from_more_rows_than_the_scratch_holds(cuda: CudaDevice) -> None:
    rows = HELD + 7
    lengths = (1 + np.arange(rows) % 3).tolist()
    found = []
    for kernels in both(cuda):
        x = drawn(rows, 3, 2)
        kernels.gather_last(x.reshape(-1)[: 2 * rows].reshape(rows, 1, 2), x, lengths)
        found.append(x.reshape(-1)[: 2 * rows])
    np.testing.assert_array_equal(*found)


def test_slots_of_more_experts_than_the_scratch_holds(cuda: CudaDevice) -> None:
    count = HELD + 2
    experts = np.random.default_rng(0).integers(0, count, (60, 2), np.int32)
    experts[-1] = count - 1, 0
    found = []
    for kernels in both(cuda):
        slots = np.full(experts.size, -1, np.int32)
        found.append((list(kernels.group_slots(slots, experts, count)), slots.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("count", [512 * 1024 + 1, 700_001])
def test_more_ids_than_blocks_look_at_once(count: int, cuda: CudaDevice) -> None:
    ids = np.arange(count) % 50
    ids[[count // 2, count - 1]] = 2**40, -(2**33)
    for device in both(cuda):
        assert device.integer_range(ids) == (-(2**33), 2**40)
        assert device.first_outside(ids, 50, None) == count // 2
        assert device.first_outside(ids, 50, 2**40) == count - 1


# ---------------------------------------------------------------------- grids


@pytest.mark.parametrize("case", (*PLAIN, *SUMS), ids=lambda case: case.name)
def test_rows_beyond_the_blocks_of_an_axis_are_taken_in_turns(
    case: Case, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With grids of at most three blocks along the second axis, where a device has 65,535."""
    for module in (elementwise, positions, reductions, tokens):
        monkeypatch.setattr(module, "_MOST_BLOCKS", 3)
    assert_close(run_of(case, OnDevice(cuda), "float32", (31, 17)), "float32")


# ---------------------------------------------------------------------- ids

VOCABULARY = 10
WRONG = (-1, VOCABULARY, 2**31, 2**32 + 3, -(2**63), 2**63 - 1)


def refusal(component: Any, context: ExecutionContext, shape: tuple[int, ...], inputs: tuple[Any, ...]) -> str:
    """What a component says of its inputs."""
    component.set_execution_context(context)
    component.build(BuildContext(shape, RuntimeMode.TRAINING))
    with pytest.raises(TokenIdError) as caught:
        component.forward(*(context.to_device(value) for value in inputs))
    return str(caught.value)


@pytest.mark.parametrize("wrong", WRONG)
def test_ids_that_no_table_has_are_refused_as_on_the_cpu(wrong: int, context: ExecutionContext) -> None:
    ids, logits = np.zeros((2, 3), np.int64), drawn(2, 3, VOCABULARY)
    ids[1, 2] = wrong
    config, loss = TokenEmbeddingConfig(vocab_size=VOCABULARY, embedding_dim=4), SoftmaxCrossEntropyConfig()
    said: list[tuple[str, str]] = []
    for each in (ExecutionContext("cpu"), context):
        said.append(
            (
                refusal(TokenEmbedding("table", config), each, (2, 3), (ids,)),
                refusal(SoftmaxCrossEntropy("loss", loss), each, logits.shape, (logits, ids)),
            )
        )
    assert said[0] == said[1]
    assert f"table: id {wrong} at position (1, 2) is outside" in said[0][0]


# ---------------------------------------------------------------------- dropout


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_dropout_drops_what_the_cpu_drops_at_any_size(dtype: np.dtype[Any], cuda: CudaDevice) -> None:
    for size in range(1, 101):
        x, kept = np.ones(size, np.float32), []
        for kernels, stored in zip(both(cuda), (FLOAT32, dtype), strict=True):
            output = np.full(size, np.nan, stored)
            workspace = np.empty(kernels.dropout_workspace(1, size), np.float32)
            kernels.dropout(output, x.astype(stored), 0.4, 2**64 - size, workspace)
            kept.append(output != 0)
        np.testing.assert_array_equal(kept[0], kept[1])
