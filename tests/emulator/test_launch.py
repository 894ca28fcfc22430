"""A launch that CUDA would refuse, or would run with wrong arguments, is an error before it begins."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes  # noqa: F401  names bfloat16 to NumPy
import numpy as np
import pytest

from tests.emulator.device_array import DeviceArray
from tests.emulator.errors import CompileError, EmulatorError, LaunchError
from tests.emulator.kernel_files import module, needs_emulator
from tests.emulator.module import Module

pytestmark = needs_emulator


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_int), ("second", ctypes.c_float))


PAIR_KERNEL = """
struct Pair { int first; float second; };
extern "C" __global__ void take(float* y, Pair pair, bool flag, unsigned long long large) {
  y[0] = flag ? pair.first + pair.second + large : -1.0f;
}
"""


def floats(count: int = 8) -> DeviceArray:
    return DeviceArray.from_host(np.ones(count, np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({4: None}, "argument 4 is a pointer, the parameter is int"),
        ({4: 8}, "argument 4 is a int, expected a device array, a NumPy scalar or a structure"),
        ({4: np.int64(8)}, r"argument 4 is int64 \(8 bytes\), the parameter is an integer of 4 bytes \(int\)"),
        ({4: np.float32(8)}, r"argument 4 is float32 \(4 bytes\), the parameter is an integer of 4 bytes"),
        ({5: np.float64(1e-5)}, r"argument 5 is float64 \(8 bytes\), the parameter is floating point of 4 bytes"),
        ({5: np.bool_(True)}, "argument 5 is bool"),
        ({0: np.int64(0)}, r"argument 0 is int64 \(8 bytes\), the parameter is a pointer of 8 bytes \(float\*\)"),
        ({0: np.ones(8, np.float32)}, "argument 0 is a ndarray, expected a device array"),
        ({3: "bfloat16"}, "argument 3 is an array of bfloat16"),
        ({3: "float64"}, r"argument 3 is an array of float64, the parameter is float const\*"),
        ({3: "int32"}, r"argument 3 is an array of int32, the parameter is float const\*"),
    ],
)
def test_a_wrong_argument_is_refused(change: dict[int, Any], message: str) -> None:
    text = """
    extern "C" __global__ void four(float* y, const float* a, const float* b, const float* c, int n, float s) {}
    """
    arguments: list[Any] = [floats(), floats(), floats(), floats(), np.int32(8), np.float32(1)]
    for position, value in change.items():
        arguments[position] = DeviceArray((8,), value) if isinstance(value, str) else value
    with pytest.raises(LaunchError, match=message):
        Module(text).kernel("four").launch([1], [8], arguments)


@pytest.mark.parametrize("given", [2, 3, 5])
def test_the_number_of_arguments_is_checked(given: int) -> None:
    kernel = module("vector_add.cu").kernel("vector_add")
    with pytest.raises(
        LaunchError, match=rf"got {given} arguments, it takes 4: \(float const\*, float const\*, float\*, int\)"
    ):
        kernel.launch([1], [8], [floats()] * given)


def test_structures_bools_and_wide_integers_arrive() -> None:
    y = floats(1)
    kernel = Module(PAIR_KERNEL).kernel("take")
    kernel.launch([1], [1], [y, Pair(2, 0.5), np.bool_(True), np.uint64(4)])
    assert y.to_host()[0] == 6.5
    packed = np.array([(2, 0.5)], np.dtype([("first", np.int32), ("second", np.float32)]))[0]
    kernel.launch([1], [1], [y, packed, np.bool_(True), np.uint64(5)])
    assert y.to_host()[0] == 7.5
    with pytest.raises(LaunchError, match="argument 1 is float32"):
        kernel.launch([1], [1], [y, np.float32(1), np.bool_(True), np.uint64(4)])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_bytes_may_be_anything(dtype: Any) -> None:
    raw = DeviceArray((32,), dtype)
    module("vector_add.cu").kernel("vector_add").launch([1], [8], [floats(), floats(), raw, np.int32(8)])
    assert (raw.to_host().view(np.float32) == 2).all()


@pytest.mark.parametrize(
    ("grid", "block", "shared_memory", "message"),
    [
        ([1], [1025], 0, "block size x must be 1 to 1,024, got 1025"),
        ([1], [32, 64], 0, "2048 threads in a block, the device allows 1024"),
        ([1], [1, 1, 65], 0, "block size z must be 1 to 64, got 65"),
        ([1], [0], 0, "block size x must be 1 to 1,024, got 0"),
        ([0], [1], 0, "grid size x must be 1 to 2,147,483,647, got 0"),
        ([1, 65536], [1], 0, "grid size y must be 1 to 65,535, got 65536"),
        ([], [1], 0, "a grid has one to three sizes"),
        ([1], [1], 49153, "49153 bytes of dynamic shared memory, the limit is 49152"),
        ([1], [1], -1, "-1 bytes of dynamic shared memory"),
    ],
)
def test_shapes_beyond_the_limits_are_refused(
    grid: list[int], block: list[int], shared_memory: int, message: str
) -> None:
    kernel = module("vector_add.cu").kernel("vector_add")
    with pytest.raises(LaunchError, match=message):
        kernel.launch(grid, block, [floats(), floats(), floats(), np.int32(8)], shared_memory)


def test_more_shared_memory_must_be_asked_for() -> None:
    kernel = module("vector_add.cu").kernel("vector_add")
    arguments = [floats(), floats(), floats(), np.int32(8)]
    kernel.allow_shared_memory(100_000)
    kernel.launch([1], [8], arguments, 100_000)
    with pytest.raises(LaunchError, match="limit is 100000"):
        kernel.launch([1], [8], arguments, 100_001)
    with pytest.raises(LaunchError, match="the device has 232448"):
        kernel.allow_shared_memory(232_449)


def test_launch_bounds_hold() -> None:
    kernel = module("planted_bugs.cu").kernel("few_threads")
    kernel.launch([1], [128], [floats(128)])
    with pytest.raises(LaunchError, match="129 threads in a block, its launch bounds allow 128"):
        kernel.launch([1], [129], [floats(129)])


def test_what_does_not_compile_says_where() -> None:
    with pytest.raises(CompileError, match=r"broken\.cu:2:\d+: error: .*undeclared"):
        Module('extern "C" __global__ void broken(float* y) {\n y[0] = undeclared;\n}', filename="broken.cu")


def test_an_unknown_kernel_is_named_with_those_that_exist() -> None:
    with pytest.raises(LaunchError, match=r"vector_add\.cu has no kernel sum; it has vector_add"):
        module("vector_add.cu").kernel("sum")


def test_commented_kernels_are_not_found_and_options_reach_the_compiler() -> None:
    text = '// extern "C" __global__ void old(int x)\nextern "C" __global__ void fill(float* y) { y[0] = VALUE; }'
    compiled = Module(text, options=["-DVALUE=3.0f"])
    assert compiled.names == ("fill",)
    y = floats(1)
    compiled.kernel("fill").launch([1], [1], [y])
    assert y.to_host()[0] == 3


def test_arrays_are_checked_on_their_way() -> None:
    array = floats(8)
    with pytest.raises(
        EmulatorError, match=r"expected a C-contiguous float32 array of shape \(8,\), got float64 of shape \(8,\)"
    ):
        array.copy_from(np.ones(8))
    array.free()
    with pytest.raises(EmulatorError, match="the array was freed"):
        array.to_host()
