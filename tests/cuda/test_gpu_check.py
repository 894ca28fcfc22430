"""``benchmarks.gpu_check`` at tiny sizes on the emulated device: every part, its figures, its limits, its tables."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu_check.bench import Arrays, Bench, Call
from benchmarks.gpu_check.decoding_part import cache_bytes, construct, weight_bytes
from benchmarks.gpu_check.kernel_cases import kernel_cases
from benchmarks.gpu_check.memory_part import growth_rows
from benchmarks.gpu_check.operations import attention_operations, peak_of, training_operations
from benchmarks.gpu_check.parts import PART_OF
from benchmarks.gpu_check.rows import Row
from benchmarks.gpu_check.run_tests import in_rounds
from benchmarks.gpu_check.settings import AttentionSizes, DecoderSizes, Settings
from benchmarks.gpu_check.timing import HostClock, median_milliseconds
from mila.components import Activation
from mila.core import BuildContext, RuntimeMode
from mila.devices import ExecutionContext
from mila.kernels.cuda.family import SCRATCH_BYTES
from mila.kernels.cuda.table import CudaKernels
from mila.models import GptConfig
from tests.conftest import missing_torch
from tests.cuda.conftest import Emulated

needs_torch = pytest.mark.skipif(missing_torch() is not None, reason=str(missing_torch()))

GPT: dict[str, Any] = {"vocab_size": 31, "embedding_dim": 16, "num_layers": 2, "num_heads": 2, "max_seq_len": 16}
LLAMA = {**GPT, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 24}
TINY = Settings(
    torch_device="cpu",
    array_bytes=3072,
    flush_bytes=4096,
    warmups=1,
    rounds=2,
    narrow=24,
    wide=32,
    heads=2,
    head_dim=8,
    vocabulary=23,
    batch_ids=(7,),
    product_size=8,
    attention=(AttentionSizes(2, 5, 4, 2, 8),),
    decode_attention=(AttentionSizes(2, 9, 4, 2, 8),),
    gpt=tuple(GPT.items()),
    batch=2,
    length=8,
    steps=2,
    compile_model=False,
    decoders=(DecoderSizes("small GPT", "gpt", GPT, (1, 2), 4), DecoderSizes("small Llama", "llama", LLAMA, (1,), 4)),
    tokens=3,
    test_workers=1,
)


@pytest.fixture
def bench(emulated: Emulated, emulated_cuda: None) -> Bench:
    return Bench(TINY)


def measured(name: str, settings: Settings = TINY) -> dict[str, Row]:
    """Return the rows of a part by what they measure."""
    return {row.what: row for row in PART_OF[name].measure(settings)}


def only(rows: dict[str, Row], *parts: str) -> Row:
    """Return the one row whose name has all these parts."""
    (found,) = (row for what, row in rows.items() if all(part in what for part in parts))
    return found


# ---------------------------------------------------------------------- the parts


def test_the_machine_is_described() -> None:
    rows = measured("machine")
    assert rows["device"].measured == "CPU emulator"
    assert rows["device"].figures["multiprocessors"] == 132
    assert rows["CUDA"].measured == "driver 13.0, runtime 13.0"
    assert "cupy 14.2.0+emulator" in rows["versions"].measured
    assert f"numpy {np.__version__}" in rows["versions"].measured
    product = rows["product of 8 x 8 bfloat16 matrices"]
    assert product.ratio == 1.0  # an unknown device: the product is the peak
    assert "largest product by cuBLAS here" in product.beside
    assert rows["copy on the device"].figures["bytes_per_second"] > 0


def test_every_kernel_runs_in_both_dtypes_and_has_a_share() -> None:
    rows = measured("kernels")
    del rows["copy on the device"]
    assert [row.measured for row in rows.values() if "failed" in row.measured] == []
    assert len(rows) == 2 * len(list(kernel_cases(TINY.batch_ids)))  # no two calls have one name
    for row in rows.values():
        assert row.ratio is not None
        assert row.ratio > 0
        assert row.goal == 0.85


@needs_torch
def test_attention_is_that_of_pytorch() -> None:
    rows = measured("attention")
    assert [row.measured for row in rows.values() if "failed" in row.measured] == []
    for name in ("attention forward B=2", "attention forward and backward B=2", "attention_cached one query"):
        row = next(row for what, row in rows.items() if what.startswith(name))
        assert row.ratio is not None
        assert float(row.beside.rpartition(" ")[2]) < 0.05  # the largest difference, in bfloat16
    assert (
        next(row for what, row in rows.items() if what.startswith("attention_cached")).figures["cache_bytes"]
        == 2 * (2 * 2 * 9 * 8) * 2
    )


@needs_torch
def test_a_training_step_begins_as_that_of_pytorch() -> None:
    rows = measured("training")
    ours, theirs = (only(rows, f"{side}, training step") for side in ("Mila", "PyTorch eager"))
    assert ours.figures["first_loss"] == pytest.approx(theirs.figures["first_loss"], abs=0.02)
    assert ours.figures["tokens_per_second"] == pytest.approx(1e3 * 2 * 8 / ours.figures["milliseconds"])
    beside = rows["Mila beside PyTorch eager"].ratio
    assert beside == pytest.approx(ours.figures["tokens_per_second"] / theirs.figures["tokens_per_second"])
    utilisation = rows["Mila, model FLOP utilisation"]
    assert utilisation.figures["operations_per_token"] == training_operations(GptConfig(**GPT), 8)
    assert utilisation.ratio is not None


def test_without_pytorch_mila_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    training, attention = measured("training"), measured("attention")
    assert "PyTorch" in training
    assert only(training, "Mila, training step").figures["tokens_per_second"] > 0
    assert all(row.ratio is None for what, row in attention.items() if what.startswith("attention forward"))


def test_decoding_counts_tokens_and_bytes() -> None:
    rows = measured("decoding")
    assert [row.measured for row in rows.values() if "failed" in row.measured] == []
    decoding = only(rows, "small GPT", "B=2", "decoding")
    assert decoding.figures["tokens_per_second"] == pytest.approx(2 / decoding.figures["step_seconds"])
    reading = only(rows, "small GPT", "B=2", "reading")
    total = reading.figures["weight_bytes"] + reading.figures["cache_bytes"]
    assert reading.figures["bytes_per_second"] == pytest.approx(total / decoding.figures["step_seconds"])


def test_builds_take_from_the_pool_what_plans_reserve() -> None:
    rows = measured("memory")
    pools = [row for what, row in rows.items() if what.endswith("build, pool")]
    assert [row.ratio for row in pools] == [1.0, 1.0]
    assert all(not row.is_missed and row.figures["reserved_bytes"] > 0 for row in pools)
    steps = [row for what, row in rows.items() if what.endswith("second step")]
    assert [row.figures["pool_bytes"] for row in steps] == [0, 0]


def test_what_a_build_takes_beside_its_plan_misses_the_goal(bench: Bench) -> None:
    class AllocatesAtBuild(Activation):
        def on_building(self, context: BuildContext) -> None:
            super().on_building(context)
            self.extra = self.device.allocate(64)

    component = AllocatesAtBuild("planted")
    component.set_execution_context(bench.context)
    first, *_ = growth_rows(bench, "planted", component, BuildContext((2, 3), RuntimeMode.TRAINING), lambda: None)
    assert first.is_missed
    assert first.figures["grown_bytes"] == first.figures["reserved_bytes"] + 512


PASSES_FAILS_AND_SKIPS = """
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2, "one is not two"
def test_skips(): pytest.skip("not here")
@pytest.fixture
def broken(): raise RuntimeError("broken")
def test_errs(broken): pass
"""
DIES = """
import os

def test_passes(): pass
def test_dies(): os._exit(3)
"""


def rows_of_tests(folder: Path, source: str, workers: int = 1) -> dict[str, Row]:
    (folder / f"test_in_{folder.name}.py").write_text(source)
    arguments = ("-q", "-p", "no:cacheprovider", "-c", str(folder / "none.ini"), "--rootdir", str(folder))
    (folder / "none.ini").write_text("[pytest]\n")
    return measured("tests", replace(TINY, tests=(*arguments, str(folder)), test_workers=workers))


def test_tests_are_counted_and_failures_are_named(tmp_path: Path) -> None:
    rows = rows_of_tests(tmp_path, PASSES_FAILS_AND_SKIPS, workers=2)
    counts = rows["tests marked gpu"]
    assert counts.measured == "1 passed"
    assert counts.beside == "1 failed, 1 error, 1 skipped"
    assert counts.ratio == pytest.approx(1 / 3)
    assert counts.is_missed
    assert "one is not two" in only(rows, "test_fails").beside
    assert "broken" in only(rows, "test_errs").beside
    assert rows["skipped: Skipped: not here"].measured == "1 tests"
    assert "pytest" not in rows


def test_a_folder_without_tests_is_said(tmp_path: Path) -> None:
    assert "no test was collected" in rows_of_tests(tmp_path, "")["pytest"].beside


def test_a_file_that_cannot_be_collected_is_said(tmp_path: Path) -> None:
    rows = rows_of_tests(tmp_path, "import no_such_package\n")
    assert rows["tests marked gpu"].is_missed
    assert "no_such_package" in only(rows, "test_in_").beside
    assert rows["pytest"].beside == "interrupted"


def test_a_process_that_dies_of_a_test_names_it(tmp_path: Path) -> None:
    rows = rows_of_tests(tmp_path, DIES)
    assert rows["tests marked gpu"].measured == "1 passed"
    died = only(rows, "pytest ")
    assert died.measured == "died with 3"
    assert died.beside.endswith("test_dies")


def test_any_beginning_of_the_tests_has_looked_into_every_file() -> None:
    items = [SimpleNamespace(nodeid=f"{file}.py::test_{number}") for file in "ab" for number in range(40)]
    names = [item.nodeid for item in in_rounds(items)]
    assert names[:6] == [f"{file}.py::test_{number}" for file in "ab" for number in (0, 16, 32)]
    assert names[6:10] == [f"{file}.py::test_{number}" for file in "ab" for number in (8, 24)]
    assert sorted(names) == sorted(item.nodeid for item in items)


# ---------------------------------------------------------------------- figures, against those of a hand


def call_of(bench: Bench, method: str, dtype: str = "bfloat16", note: str = "") -> Call:
    """Return the first call of a kernel."""
    arrays = Arrays(bench, dtype)
    calls = (build(arrays) for build in kernel_cases(TINY.batch_ids))
    return next(call for call in calls if call.what.startswith(f"{method} ") and note in call.what)


#: Bytes that calls move at the sizes of TINY, in bfloat16: arrays of 3,072 bytes have 1,536 elements.
MOVED = [
    ("copy", "", 2 * 3072),
    ("cast", "from float32", 3072 // 2 + 3072),  # 768 elements
    ("fill", "", 3072),
    ("add_in_place", "", 3 * 3072),
    ("activation_forward", "with derivative", 3 * 3072),
    ("gated_forward", "", 3072 + 3072 // 2),
    ("gated_backward", "", 2 * 3072 + 3072 // 2),
    ("layer_norm_forward", "", 2 * 3072 + 2 * 64 * 4 + 2 * 48),  # 64 rows of 24 columns
    ("layer_norm_backward", "", 3 * 3072 + 2 * 64 * 4 + 3 * 48),
    ("rms_norm_forward", "", 2 * 3072 + 64 * 4 + 48),
    ("head_norm_forward", "", 2 * 3072 + 2048 + 32 * 4 * 4 + 2 * 16),  # 32 rows of 6 heads of 8 elements
    ("rope", "", 2 * 3072 + 2 * 32 * 4 * 4),
    ("linear_backward_bias", "", 3072 + 48),
    ("put_section", "", 2 * 3072),
    ("take_section", "", 2 * (21 * 72 * 2)),
    ("embedding_forward", "", 2 * 3072 + 64 * 4),
    ("embedding_backward", "7 ids", 23 * 48 + 7 * 48 + 7 * 4),
    ("position_backward", "", 3072 + 64 * 48),
    ("cross_entropy_forward", "", 66 * 46 + 66 * 4 + 4 + 66 * 4),  # 66 rows of 23 logits
    ("adamw", "", 768 * (2 * 2 + 2 * 2 * 4 + 2)),
    ("global_norm", "", 3072),
    ("linear_forward", "single row", 3072 + 64 + 96),
]


@pytest.mark.parametrize(("method", "note", "expected"), MOVED, ids=str)
def test_calls_move_each_array_once(method: str, note: str, expected: int, bench: Bench) -> None:
    assert call_of(bench, method, note=note).moved_bytes == expected


class Recorder:
    """A device that only counts: arrays are NumPy's, and their memory is never touched."""

    multiprocessor_count = 132
    scratch = np.zeros(SCRATCH_BYTES, np.uint8)
    no_bytes = scratch[:0]

    def __init__(self) -> None:
        self.launches = 0

    def allocate(self, size: int) -> Any:
        return np.empty(size, np.uint8)

    def launch(self, *arguments: Any) -> None:
        self.launches += 1

    def read(self, array: Any) -> Any:
        return array

    def set_bytes(self, array: Any, value: int) -> None: ...


class PlannedBench(Bench):
    """Kernel calls at any size, none of which runs."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.device = settings, Recorder()
        self.kernels = CudaKernels(self.device)

    def values(self, *shape: int, dtype: Any) -> Any:
        return self.empty(*shape, dtype=dtype)

    def ids(self, count: int, limit: int, *, permuted: bool = False) -> Any:
        return np.empty(count, np.int32)


@pytest.mark.parametrize("dtype", Settings().kernel_dtypes)
def test_calls_of_a_real_run_are_larger_than_any_cache_and_take_few_launches(dtype: str) -> None:
    bench = PlannedBench(Settings())
    arrays, names = Arrays(bench, dtype), []
    for build in kernel_cases(Settings().batch_ids):
        call = build(arrays)
        before = bench.device.launches
        call.run()
        most = 5 if "embedding_backward" in call.what else 3  # ids are sorted first
        assert 1 <= bench.device.launches - before <= most, call.what
        assert call.moved_bytes >= 64 << 20, call.what
        names.append(call.what)
    assert len({*names}) == len(names)


def test_operations_of_attention_are_those_of_a_hand() -> None:
    sizes = AttentionSizes(rows=2, length=3, heads=4, kv_heads=2, head_dim=8)
    assert attention_operations(sizes, causal=False) == 2 * 4 * (2 * 3 * 3 * 8 + 2 * 3 * 3 * 8)
    assert attention_operations(sizes, causal=True) == 2 * 4 * (2 * 6 * 8 + 2 * 6 * 8)
    assert attention_operations(sizes, causal=True, backward=True) == 2 * 4 * 5 * (2 * 6 * 8)


def test_operations_of_training_are_those_of_a_hand() -> None:
    width, hidden, vocabulary, layers, length = 16, 64, 31, 2, 8
    products = layers * (width * 3 * width + width * width + 2 * width * hidden) + width * vocabulary
    attention = layers * 2 * 2 * length * width  # scores and sums, of all positions, for one of them
    assert training_operations(GptConfig(**GPT), length) == 3 * (2 * products + attention)


@pytest.mark.parametrize(
    ("name", "operations", "source"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12, "data sheet of H100"),
        ("NVIDIA H100 PCIe", 756e12, "data sheet of H100 PCIe"),
        ("NVIDIA H200", 989e12, "data sheet of H200"),
        ("NVIDIA A100-SXM4-80GB", 312e12, "data sheet of A100"),
        ("Something New", 5e12, "largest product by cuBLAS here"),
    ],
)
def test_peaks_are_those_of_the_device_by_name(name: str, operations: float, source: str) -> None:
    peak = peak_of(name, measured=5e12)
    assert (peak.operations, peak.source) == (operations, source)


@pytest.mark.parametrize("index", [0, 1], ids=["gpt, tied", "llama"])
def test_bytes_of_a_decoding_step_are_those_of_a_hand(index: int, context: ExecutionContext) -> None:
    sizes = TINY.decoders[index]
    network = construct(sizes, TINY)
    network.set_execution_context(context)
    build = BuildContext((max(sizes.rows), 10), RuntimeMode.INFERENCE, initialize_parameters=True)
    plan = network.plan(build)
    network.build(build)
    gpt_block = 4 * 16 + (3 * 16 * 16 + 3 * 16) + (16 * 16 + 16) + (2 * 16 * 64 + 64 + 16)
    llama_block = 2 * 16 + 32 * 16 + 16 * 16 + 48 * 16 + 16 * 24
    expected = [2 * gpt_block + 2 * 16 + 31 * 16, 2 * llama_block + 16 + 31 * 16][index]
    assert weight_bytes(network) == 2 * expected
    kv_heads, head_dim = [(2, 8), (2, 4)][index]
    for rows in sizes.rows:
        assert cache_bytes(plan, rows, 5.0) == 2 * 2 * rows * kv_heads * 5 * head_dim * 2


def test_a_median_leaves_out_warm_ups_and_outliers() -> None:
    class Counting(HostClock):
        """A clock that the calls themselves move."""

        now, flushes = 0.0, 0

        def flush(self) -> None:
            self.flushes += 1

        def mark(self) -> float:
            return self.now

    clock, durations = Counting(), iter([9.0, 1.0, 2.0, 50.0])

    def run() -> None:
        clock.now += next(durations)

    assert median_milliseconds(clock, run, warmups=1, rounds=3) == 2000.0
    assert clock.flushes == 3
