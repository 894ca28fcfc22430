"""The switch for faster orders: the default repeats bit for bit, without atomics; the other differs by roundings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from mila.components import SoftmaxCrossEntropy
from mila.core import BuildContext, TrainingStep
from mila.devices import ExecutionContext
from mila.devices.kernel_files import FOLDER, compile_options, source_text
from mila.kernels.cpu.table import CpuKernels
from mila.kernels.cuda.family import BLOCK, FLOAT32
from mila.models import GptConfig, GptTransformer
from mila.training import AdamW
from tests.cuda.conftest import Emulated
from tests.cuda.hosted import Hosted
from tests.cuda.on_device import OnDevice
from tests.emulator.device_array import DeviceArray
from tests.emulator.errors import KernelError, Kind
from tests.emulator.module import RUNS, Mode, Module, Run
from tests.emulator.stand_in.settings import use
from tests.kernels.bench import Bench, Case
from tests.kernels.cases import CASES
from tests.kernels.test_cpu_kernels import assert_close
from tests.promises.case import TRAINING

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

#: The only file of atomic additions.
UNORDERED = "embedding_unordered"
BACKWARD = [case for case in CASES if case.name.startswith("embedding_backward")]
CONFIG = GptConfig(vocab_size=5, embedding_dim=12, num_layers=1, num_heads=3, max_seq_len=16)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.cu*")), ids=lambda path: path.name)
def test_the_default_has_no_atomics(path: Any) -> None:
    code = re.sub(r"//[^\n]*", "", path.read_text("utf-8"))
    assert bool(re.search(r"\batomic\w*\s*\(", code)) == (path.stem == UNORDERED)


def test_the_switch_chooses_kernels(context: ExecutionContext, cuda: CudaDevice) -> None:
    unordered = ExecutionContext("cuda:0", deterministic=False)
    assert context.deterministic
    assert context.kernels is cuda.kernels
    assert unordered.kernels is not cuda.kernels
    assert repr(unordered).endswith("deterministic=False)")


@pytest.mark.parametrize("way", RUNS, ids=str)
@pytest.mark.parametrize("shape", [(0, 5), (31, 17), (5, 16)], ids=str)
@pytest.mark.parametrize("case", BACKWARD, ids=lambda case: case.name)
def test_gradients_of_tables_are_the_same_in_any_order(
    case: Case, shape: tuple[int, int], way: Run, cuda: CudaDevice
) -> None:
    kernels = cast(CpuKernels, OnDevice(cuda, cuda.kernels.unordered()))
    with use(way):
        run = case.build(Bench(kernels, FLOAT32, *shape))
        run.call()
        cuda.synchronize()
    assert_close(run, "float32")


def test_half_precision_keeps_its_order(cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    launch = cuda.launch

    def noted(source: str, *rest: Any) -> None:
        launched.append(source)
        launch(source, *rest)

    monkeypatch.setattr(cuda, "launch", noted)
    kernels = cuda.kernels.unordered()
    for name in ("float32", "float16"):
        table, dy = (cuda.to_device(np.ones((2, 4), name)) for _ in range(2))
        workspace = cuda.to_device(np.empty(kernels.embedding_backward_workspace(2, 4), np.float32))
        kernels.embedding_backward(table, dy, cuda.to_device(np.array([1, 1])), 1.0, False, workspace)
    assert launched == ["elementwise", UNORDERED, "embedding_backward", "embedding_backward"]


def step(context: ExecutionContext) -> list[np.ndarray[Any, Any]]:
    """Return all gradients of a network in whose batch every token comes often."""
    network = GptTransformer("gpt", CONFIG)
    network.set_execution_context(context)
    training = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())
    ids = list(np.random.default_rng(0).integers(0, CONFIG.vocab_size, (2, 2, 16)).astype(np.int32))
    training.build(BuildContext(ids[0].shape, TRAINING))
    hosted = cast(Any, Hosted(training))
    hosted.forward(*ids)
    hosted.backward(*ids)
    return [np.asarray(gradient) for gradient in hosted.get_gradients() if gradient is not None]


def test_a_training_step_differs_by_roundings(emulated: Emulated) -> None:
    ordered = step(ExecutionContext("cuda:0"))
    results = []
    for way in RUNS[:2]:
        with use(way):
            results.append((step(ExecutionContext("cuda:0")), step(ExecutionContext("cuda:0", deterministic=False))))
    for same, other in results:
        for expected, repeated, got in zip(ordered, same, other, strict=True):
            assert repeated.tobytes() == expected.tobytes()
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def added_rows(text: str, mode: Mode) -> np.ndarray[Any, Any]:
    """Add eight rows of ones to one row of a table, in blocks that all meet there."""
    module = Module(text, options=compile_options(FLOAT32), mode=mode)
    table = DeviceArray.from_host(np.zeros((2, 8), np.float32))
    ids, dy = (DeviceArray.from_host(array) for array in (np.ones(8, np.int64), np.ones((8, 8), np.float32)))
    numbers = np.int64(8), np.int64(8), np.float32(1.0)
    module.kernel("add_rows_int64").launch([8], [BLOCK], [table, dy, ids, *numbers])
    return table.to_host()


def test_additions_that_are_not_atomic_are_found() -> None:
    text = source_text(UNORDERED)
    assert added_rows(text, Mode.CHECK).tolist() == [[0.0] * 8, [8.0] * 8]
    plain = text.replace("atomicAdd(target + i + k, scale * values[k])", "target[i + k] += scale * values[k]")
    assert plain != text
    with pytest.raises(KernelError) as caught:
        added_rows(plain, Mode.CHECK)
    assert Kind.RACE in {report.kind for report in caught.value.reports}
