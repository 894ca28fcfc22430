"""What the CUDA backend relies on in CuPy itself, as far as it can be seen without a device: skipped without CuPy."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mila.devices.kernel_files import compile_options, source_text
from mila.kernels.cuda.family import BFLOAT16

cupy = pytest.importorskip("cupy", reason="cupy is not installed")

BYTES = 4096
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int32, np.int64, np.uint8)
#: What the backend does with a block of memory: views, never copies.
VIEWS: dict[str, Any] = {
    "view": lambda a, dtype: a[512 : 512 + 96].view(dtype),
    "empty view": lambda a, dtype: a[:0].view(dtype),
    "reshape": lambda a, dtype: a[512 : 512 + 96].view(dtype).reshape(1, 4, -1),
    "rows": lambda a, dtype: a[512 : 512 + 96].view(dtype).reshape(4, -1)[1:3],
    "columns": lambda a, dtype: a[512 : 512 + 96].view(dtype).reshape(4, -1)[:, 1:2],
    "no rows": lambda a, dtype: a[512 : 512 + 96].view(dtype).reshape(4, -1)[2:2],
    "flat": lambda a, dtype: a[512 : 512 + 96].view(dtype).reshape(4, -1).reshape(-1)[2:],
}


@pytest.fixture
def memory() -> Any:
    """Memory of the host, which CuPy is told is a device's."""
    return np.arange(BYTES, dtype=np.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_a_block_are_those_of_numpy(name: str, dtype: Any, memory: Any) -> None:
    unowned = cupy.cuda.UnownedMemory(memory.ctypes.data, BYTES, memory, 0)
    block = cupy.ndarray((BYTES,), np.uint8, cupy.cuda.MemoryPointer(unowned, 0))
    got, want = VIEWS[name](block, dtype), VIEWS[name](memory, dtype)
    assert (got.shape, got.dtype, got.size, got.nbytes) == (want.shape, want.dtype, want.size, want.nbytes)
    assert got.flags.c_contiguous == want.flags.c_contiguous
    assert got.data.device_id == 0
    if want.size:
        assert got.strides == want.strides
        assert got.data.ptr == want.ctypes.data


@pytest.mark.parametrize(
    "value", [np.float32(1.5), np.int32(-7), np.int64(1 << 40), np.uint64((1 << 64) - 5), np.bool_(True)], ids=repr
)
def test_scalars_are_passed_as_their_own_bytes(value: np.generic) -> None:
    passed = cupy._core._scalar.CScalar(value)
    assert ctypes.string_at(passed.ptr, value.dtype.itemsize) == value.tobytes()


def test_kernels_compile_with_the_options_and_headers_that_cupy_gives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if cupy.cuda.is_available():
        pytest.skip("there is a device, on which the tests of kernels do this")
    compiler = cupy.cuda.compiler
    monkeypatch.setattr(compiler, "_get_arch", lambda: "90")
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch=None: ("-arch=sm_90", "cubin"))
    cache = cupy.cuda._compiler_cache.DiskKernelCacheBackend(str(tmp_path))
    monkeypatch.setattr(compiler, "_kernel_cache_backend", cache)
    if cupy.cuda.get_cuda_path() is None:
        pytest.skip("NVRTC is not installed")
    driver = (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError)
    with pytest.raises(driver):  # there is no device to load it: everything before that has succeeded
        cupy._core.core.compile_with_cache(
            source_text("embedding"), compile_options(BFLOAT16), prepend_cupy_headers=False
        )
    assert len(list(tmp_path.glob("*.cubin"))) == 1
