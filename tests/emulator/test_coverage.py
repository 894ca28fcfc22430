"""Coverage says which lines of a kernel no thread has reached."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.emulator.coverage import line_counts, missed_lines
from tests.emulator.device_array import DeviceArray
from tests.emulator.errors import EmulatorError
from tests.emulator.kernel_files import module, needs_emulator
from tests.emulator.module import Mode, Module

pytestmark = [needs_emulator, pytest.mark.skipif(shutil.which("gcov") is None, reason="gcov is not installed")]

SOURCE = """
template <typename Element> __device__ Element twice(Element value) {
  return value + value;
}
extern "C" __global__ void branch(float* y, int limit) {
  const int i = threadIdx.x;
  if (i < limit) {
    y[i] = twice(1.0f);
  } else {
    y[i] = twice(2);
  }
}
"""


def test_lines_are_counted_by_thread_and_branch() -> None:
    compiled = Module(SOURCE, mode=Mode.COVERAGE, filename="branch.cu")
    kernel, y = compiled.kernel("branch"), DeviceArray((8,), np.float32)
    kernel.launch([1], [8], [y, np.int32(8)])
    counts = line_counts(compiled)
    assert (counts[3], counts[6], counts[8], counts[10]) == (8, 8, 8, 0)
    assert y.to_host().tolist() == [2] * 8

    kernel.launch([1], [8], [y, np.int32(8)])
    assert missed_lines(compiled) == [10]
    kernel.launch([1], [8], [y, np.int32(5)])
    assert missed_lines(compiled) == []
    assert 3 in missed_lines(compiled)  # counts were forgotten


def test_another_way_of_compiling_counts_nothing() -> None:
    with pytest.raises(EmulatorError, match="was compiled for FAST, not for COVERAGE"):
        line_counts(module("vector_add.cu"))
