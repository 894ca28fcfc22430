"""Ways of compiling: fused products and sums, and modules that do not disturb each other."""

from __future__ import annotations

import numpy as np

from tests.emulator.device_array import DeviceArray
from tests.emulator.kernel_files import module, needs_emulator
from tests.emulator.module import Mode, Module

pytestmark = needs_emulator


def test_products_and_sums_are_fused_on_request() -> None:
    a = np.float32(1 + 2**-12)
    square = np.float32(a * a)
    results = {}
    for mode in (Mode.FAST, Mode.FUSED):
        out = DeviceArray((1,), np.float32)
        module("intrinsics.cu", mode).kernel("fused").launch([1], [1], [out, a, a, square])
        results[mode] = float(out.to_host()[0])
    assert results == {Mode.FAST: 0.0, Mode.FUSED: 2.0**-24}


def test_modules_keep_their_static_variables_apart() -> None:
    """Template statics and functions of one name would otherwise be the first module's in all of them."""
    source = """
    template <typename Element> __device__ Element factor() { static Element value = VALUE; return value; }
    extern "C" __global__ void scale(float* y) { y[0] = factor<float>(); }
    """
    for value in ("2.0f", "3.0f"):
        y = DeviceArray((1,), np.float32)
        Module(source, options=[f"-DVALUE={value}"]).kernel("scale").launch([1], [1], [y])
        assert y.to_host()[0] == float(value[:-1])
