"""Every planted bug is found and named, with the line that did it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from tests.emulator.device_array import DeviceArray
from tests.emulator.errors import KernelError, Kind, Place, Report
from tests.emulator.kernel_files import KERNELS, module, needs_emulator
from tests.emulator.module import FORWARD, REVERSE, SHUFFLED, Mode, Module, Run

pytestmark = needs_emulator

FILE = "planted_bugs.cu"
CHECKED = (Run(Mode.CHECK, FORWARD), Run(Mode.CHECK, REVERSE))
FAST = (Run(Mode.FAST, FORWARD), Run(Mode.FAST, REVERSE), Run(Mode.FAST, SHUFFLED))
COUNT = 64  # elements of both arrays


@dataclass(frozen=True)
class Bug:
    """A kernel of planted_bugs.cu, and what must be said about it."""

    name: str
    kind: Kind
    message: str
    runs: tuple[Run, ...] = CHECKED
    grid: int = 1
    shared_memory: int = 0
    without_line: bool = False  # the fault has no line of its own, or the fast mode cannot tell

    def __str__(self) -> str:
        return self.name


EVERYWHERE = (*CHECKED, *FAST)
BUGS = (
    Bug("missing_barrier_before_read", Kind.RACE, "by thread"),
    Bug("missing_barrier_before_write", Kind.RACE, "by thread"),
    Bug("tree_without_barrier", Kind.RACE, "of the same block", shared_memory=COUNT * 4),
    Bug("warp_without_sync", Kind.RACE, "of the same block"),
    Bug("half_a_warp_without_sync", Kind.RACE, "in shared memory"),
    Bug("race_between_blocks", Kind.RACE, "read conflicts with write by block", grid=2),
    Bug("one_result_of_all_blocks", Kind.RACE, "write conflicts with write by block", grid=2),
    Bug("reads_a_counter", Kind.RACE, "atomic operation"),
    Bug("read_past_the_end", Kind.OUT_OF_BOUNDS, "past the end of an allocation of 256 bytes", EVERYWHERE),
    Bug("write_past_the_end", Kind.OUT_OF_BOUNDS, "0 bytes past the end of an allocation of 256 bytes", EVERYWHERE, 2),
    Bug("write_before_the_start", Kind.OUT_OF_BOUNDS, "4 bytes before the start of an allocation of 256 bytes"),
    Bug("vector_across_the_end", Kind.OUT_OF_BOUNDS, "past the end of an allocation of 256 bytes", EVERYWHERE),
    Bug("shared_array_overrun", Kind.OUT_OF_BOUNDS, "index outside the array"),
    Bug("shared_array_read_overrun", Kind.OUT_OF_BOUNDS, "index outside the array"),
    Bug("dynamic_shared_overrun", Kind.OUT_OF_BOUNDS, "256 bytes of dynamic shared memory", EVERYWHERE, 1, 256),
    Bug("dynamic_shared_read_overrun", Kind.OUT_OF_BOUNDS, "256 bytes of dynamic shared memory", EVERYWHERE, 1, 256),
    Bug("null_pointer", Kind.OUT_OF_BOUNDS, "a null pointer", EVERYWHERE),
    Bug("constant_null_pointer", Kind.OUT_OF_BOUNDS, "a null pointer", EVERYWHERE),
    Bug("misaligned_vector_load", Kind.MISALIGNED, ""),
    Bug("uninitialised_element", Kind.UNINITIALISED, "read of what the block has not written"),
    Bug("uninitialised_sum", Kind.UNINITIALISED, "atomic operation of what the block has not written"),
    Bug("left_by_the_block_before", Kind.UNINITIALISED, "", (CHECKED[0],), grid=2, shared_memory=256),
    Bug("divergent_barrier", Kind.DIVERGENT_BARRIER, "__syncthreads while thread 0 of the block waits at", EVERYWHERE),
    Bug("barrier_after_exit", Kind.BARRIER_AFTER_EXIT, "which 14 exited threads of the block never reach", EVERYWHERE),
    Bug("lane_outside_its_mask", Kind.WARP_OPERATION, "is not in its own mask 0x0000ffff", EVERYWHERE),
    Bug("shuffle_from_outside_the_mask", Kind.WARP_OPERATION, "reads lane 20, which is not in the mask", EVERYWHERE),
    Bug("shuffle_with_exited_lanes", Kind.WARP_OPERATION, "which never come: lane 18 has exited", EVERYWHERE),
    Bug("different_operations_meet", Kind.WARP_OPERATION, "under the same mask", EVERYWHERE, without_line=True),
    Bug("endless_loop", Kind.TIME_LIMIT, "still running after 0.2 seconds", EVERYWHERE, without_line=True),
    Bug("division_by_zero", Kind.DIVISION_BY_ZERO, "integer division by zero", EVERYWHERE),
    Bug("trap", Kind.TRAP, "__trap() was reached", EVERYWHERE),
    Bug("failing_assertion", Kind.ASSERTION, "count == 1", EVERYWHERE),
    Bug("compiler_trap", Kind.ILLEGAL_INSTRUCTION, "refuses the instruction", EVERYWHERE, without_line=True),
    Bug("deep_stack", Kind.STACK_OVERFLOW, "bytes of stack", EVERYWHERE, without_line=True),
)


def reports_of(bug: Bug, run: Run) -> tuple[Report, ...]:
    x = DeviceArray.from_host(np.ones(COUNT, np.float32))
    y = DeviceArray.from_host(np.ones(COUNT, np.float32))
    # As many as the kernel believes there are: for 256 the divisor of `division_by_zero` is 0.
    count = np.int32(256 if bug.name == "division_by_zero" else COUNT)
    with pytest.raises(KernelError, match=f"kernel {bug.name}:") as caught:
        module(FILE, run.mode).kernel(bug.name).launch(
            [bug.grid], [64], [y, x, count], bug.shared_memory, order=run.order, time_limit=0.2
        )
    return caught.value.reports


def planted_line(name: str) -> int:
    lines = (KERNELS / FILE).read_text("utf-8").splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.endswith(f"// BUG: {name}")]
    return line


@pytest.mark.parametrize(("bug", "run"), [(bug, run) for bug in BUGS for run in bug.runs], ids=str)
def test_a_planted_bug_is_found(bug: Bug, run: Run) -> None:
    reports = reports_of(bug, run)
    assert bug.kind in {report.kind for report in reports}
    report = next(report for report in reports if report.kind is bug.kind)
    if run.mode is Mode.CHECK or bug.kind is not Kind.OUT_OF_BOUNDS:
        assert bug.message in report.message
    if not bug.without_line:
        assert Place(FILE, planted_line(bug.name)) in {report.place, report.other_place}
    assert report.block in {(0, 0, 0), (1, 0, 0)}
    assert report.thread is not None


def test_every_planted_bug_is_expected_somewhere() -> None:
    kernels = set(module(FILE).names) - {"few_threads"}
    assert kernels == {bug.name for bug in BUGS}


def test_both_sides_of_a_race_are_named() -> None:
    line = planted_line(BUGS[0].name)
    messages = [str(report) for report in reports_of(BUGS[0], CHECKED[0])]
    assert messages == [
        f"{FILE}:{line}: uninitialised shared memory: read of what the block has not written in shared memory; "
        "block (0,0,0), thread (0,0,0)",
        f"{FILE}:{line - 1}: race: write conflicts with read by thread (31,0,0) of the same block in shared memory "
        f"(at {FILE}:{line}); block (0,0,0), thread (32,0,0)",
        f"{FILE}:{line}: race: read conflicts with write by thread (31,0,0) of the same block in shared memory "
        f"(at {FILE}:{line - 1}); block (0,0,0), thread (32,0,0)",
    ]


SHARED_HEADER = """
#line 1 "elements.cuh"
__device__ __forceinline__ float load(const float* address) {
  return *address;
}
#line 1 "sums.cu"
extern "C" __global__ void sum(float* y, const float* x, int count) {
  y[threadIdx.x] = load(x + threadIdx.x) +
                   load(x + threadIdx.x + count);
}
"""


@pytest.mark.parametrize("run", CHECKED, ids=str)
def test_what_a_function_of_a_header_does_is_the_line_that_called_it(run: Run) -> None:
    x = DeviceArray.from_host(np.ones(1024, np.float32))
    y = DeviceArray.from_host(np.ones(COUNT, np.float32))
    with pytest.raises(KernelError) as caught:
        Module(SHARED_HEADER, mode=run.mode).kernel("sum").launch([1], [64], [y, x, np.int32(1024)], order=run.order)
    (report,) = caught.value.reports
    assert report.kind is Kind.OUT_OF_BOUNDS
    assert report.place == Place("sums.cu", 3, inner=Place("elements.cuh", 2))
    assert str(report).startswith("sums.cu:3 (through elements.cuh:2): out of bounds")


@pytest.mark.parametrize("run", FAST, ids=str)
def test_uninitialised_shared_memory_is_not_a_number_without_checks(run: Run) -> None:
    x, y = DeviceArray.from_host(np.ones(COUNT, np.float32)), DeviceArray((COUNT,), np.float32)
    module(FILE).kernel("uninitialised_element").launch([1], [64], [y, x, np.int32(COUNT)], order=run.order)
    assert np.isnan(y.to_host()).tolist() == [True] + 63 * [False]


@pytest.mark.parametrize("run", EVERYWHERE, ids=str)
def test_use_after_free_is_found(run: Run) -> None:
    x, y = DeviceArray.from_host(np.ones(COUNT, np.float32)), DeviceArray((COUNT,), np.float32)
    x.free()
    with pytest.raises(KernelError) as caught:
        module("vector_add.cu", run.mode).kernel("vector_add").launch(
            [1], [64], [x, x, y, np.int32(COUNT)], order=run.order
        )
    (report,) = caught.value.reports
    assert report.kind is Kind.USE_AFTER_FREE
    assert "of a freed allocation of 256 bytes" in report.message
    assert report.place is not None and report.place.line == 4


@pytest.mark.parametrize("run", FAST, ids=str)
@pytest.mark.parametrize(
    ("name", "distance"),
    [("write_past_the_end", "0 bytes past the end of"), ("write_before_the_start", "4 bytes before the start of")],
)
def test_writes_that_miss_the_guard_page_are_found_after_the_launch(run: Run, name: str, distance: str) -> None:
    y = DeviceArray((61,), np.float32)  # the guard page begins 12 bytes further on
    with pytest.raises(KernelError) as caught:
        module(FILE).kernel(name).launch([1], [62], [y, y, np.int32(61)], order=run.order)
    (report,) = caught.value.reports
    assert report.kind is Kind.OUT_OF_BOUNDS
    assert report.message == f"the kernel overwrote what lies {distance} an allocation of 244 bytes"
    assert (report.place, report.block, report.thread) == (None, None, None)


def test_a_fault_on_another_os_thread_is_found_there() -> None:
    bug = next(bug for bug in BUGS if bug.name == "null_pointer")
    with ThreadPoolExecutor(2) as executor:
        for reports in executor.map(lambda run: reports_of(bug, run), EVERYWHERE):
            assert reports[0].kind is Kind.OUT_OF_BOUNDS


def test_after_a_fault_the_next_launch_is_as_good_as_new() -> None:
    for bug in BUGS:
        if bug.kind in {Kind.OUT_OF_BOUNDS, Kind.TIME_LIMIT, Kind.WARP_OPERATION}:
            reports_of(bug, CHECKED[0])
            x, y = DeviceArray.from_host(np.ones(COUNT, np.float32)), DeviceArray((COUNT,), np.float32)
            module("vector_add.cu", Mode.CHECK).kernel("vector_add").launch([1], [64], [x, x, y, np.int32(COUNT)])
            assert (y.to_host() == 2).all()
