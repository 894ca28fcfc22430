"""The stand-in behaves as CuPy does where Mila relies on it, and finds what a GPU would leave unnoticed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.emulator.errors import KernelError, LaunchError, StreamError
from tests.emulator.kernel_files import KERNELS, NAMES, needs_emulator
from tests.emulator.module import RUNS, Run
from tests.emulator.stand_in.activate import stand_in_cupy
from tests.emulator.stand_in.settings import use

pytestmark = needs_emulator


@pytest.fixture
def cp() -> Iterator[Any]:
    with stand_in_cupy() as cupy:
        yield cupy
        cupy.cuda.Device(0).synchronize()


def function(cp: Any, filename: str, name: str) -> Any:
    names = NAMES.get(filename, ())
    options = ("-std=c++17",) if names else ()
    return cp.RawModule(
        code=(KERNELS / filename).read_text("utf-8"), options=options, name_expressions=names
    ).get_function(name)


def drawn(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def test_the_stand_in_is_cupy_only_where_it_was_asked_for() -> None:
    before = sys.modules.get("cupy")
    with stand_in_cupy() as cupy:
        import cupy as imported

        assert imported is cupy
        assert cupy.__version__.endswith("emulator")
    assert sys.modules.get("cupy") is before


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_host_code_runs_a_kernel_in_every_way(cp: Any, run: Run) -> None:
    x, weight, bias = drawn(4, 96), drawn(96), drawn(96)
    with use(run):
        kernel = function(cp, "layer_norm.cu", "layer_norm<float>")
        y, mean, rstd = cp.empty(x.shape, cp_dtype := np.float32), cp.empty(4, cp_dtype), cp.empty(4, cp_dtype)
        arguments = (y, mean, rstd, cp.asarray(x), cp.asarray(weight), cp.asarray(bias), np.int32(96), np.float32(1e-5))
        kernel((4,), (64,), arguments, shared_mem=8)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * weight + bias
    assert_allclose(y.get(), expected, rtol=1e-5, atol=1e-5)


def test_python_numbers_are_wide_as_in_cupy(cp: Any) -> None:
    kernel = function(cp, "vector_add.cu", "vector_add")
    a = cp.ones(8, np.float32)
    with pytest.raises(LaunchError, match=r"argument 3 is int64 \(8 bytes\), the parameter is an integer of 4 bytes"):
        kernel((1,), (8,), (a, a, cp.empty_like(a), 8))


def test_addresses_and_memory_pointers_are_pointers(cp: Any) -> None:
    kernel = function(cp, "vector_add.cu", "vector_add")
    a, y = cp.ones(8, np.float32), cp.empty(8, np.float32)
    kernel((1,), (8,), (a.data, a.data.ptr, y, np.int32(8)))
    assert (y.get() == 2).all()


def test_limits_of_a_launch_are_the_driver_s(cp: Any) -> None:
    kernel = function(cp, "vector_add.cu", "vector_add")
    a = cp.ones(8, np.float32)
    arguments = (a, a, cp.empty_like(a), np.int32(8))
    with pytest.raises(
        cp.cuda.driver.CUDADriverError, match="50000 bytes of dynamic shared memory, the limit is 48128"
    ):
        kernel((1,), (8,), arguments, shared_mem=50000)
    kernel.max_dynamic_shared_size_bytes = 50000
    kernel((1,), (8,), arguments, shared_mem=50000)
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="block size x"):
        kernel((1,), (2000,), arguments)
    assert kernel.attributes == {"max_dynamic_shared_size_bytes": 50000, "max_threads_per_block": 1024}


def test_wrong_sources_and_names_are_cupy_s_errors(cp: Any) -> None:
    with pytest.raises(cp.cuda.compiler.CompileException, match="error"):
        cp.RawKernel('extern "C" __global__ void k() { wrong }', "k")((1,), (1,), ())
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="named symbol not found: other"):
        function(cp, "vector_add.cu", "other")
    with pytest.raises(ValueError, match=r"need to specify C\+\+ standard"):
        cp.RawModule(code="", name_expressions=("k<float>",))
    with pytest.raises(TypeError, match="expected tuple, got list"):
        cp.RawModule(code="", options=["-std=c++17"])


def test_arrays_are_views_of_one_memory(cp: Any) -> None:
    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = cp.asarray(host)
    assert array.data.ptr % 512 == 0
    assert (array.shape, array.size, array.ndim, array.nbytes, array.itemsize, len(array)) == ((4, 6), 24, 2, 96, 4, 4)
    for view, expected in (
        (array[1:3, ::2], host[1:3, ::2]),
        (array.reshape(6, 4), host.reshape(6, 4)),
        (array.transpose(1, 0), host.T),
        (array.ravel(), host.ravel()),
        (array.view(np.int32), host.view(np.int32)),
        (array[2], host[2]),
        (array[3, 5], host[3, 5]),
    ):
        assert_array_equal(view.get(), expected)
    array[1:3].fill(7)
    array[0] = array[3]
    array[3, 0] = -1
    host[1:3], host[0], host[3, 0] = 7, host[3], -1
    assert_array_equal(cp.asnumpy(array), host)
    over = cp.ndarray((3,), np.float32, memptr=array.data + 24)
    assert_array_equal(over.get(), host.ravel()[6:9])
    copied = array.copy()
    array.fill(0)
    assert_array_equal(copied.get(), host)


def test_what_cupy_refuses_is_refused(cp: Any) -> None:
    array = cp.zeros((2, 3), np.float32)
    with pytest.raises(TypeError, match="Implicit conversion to a NumPy array is not allowed"):
        np.asarray(array)
    with pytest.raises(TypeError, match="Unsupported type"):
        array[0] = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="Shape or dtype mismatch"):
        array.set(np.ones((2, 3)))
    with pytest.raises(TypeError):
        array + array
    with pytest.raises(NotImplementedError, match="needs a copy"):
        array[[0, 1]]


def test_new_memory_is_not_zero(cp: Any) -> None:
    assert np.isnan(cp.empty(5, np.float32).get()).all()
    assert (cp.zeros(5, ml_dtypes.bfloat16).get() == 0).all()


def test_results_arrive_when_the_stream_was_waited_for(cp: Any) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    pinned = cp.cuda.alloc_pinned_memory(32)
    host = np.frombuffer(pinned, np.float32, 8)
    array = cp.asarray(np.ones(8, np.float32))
    cp.cuda.Device(0).synchronize()
    array.get(stream, out=host, blocking=False)
    assert np.isnan(host).all()
    stream.synchronize()
    assert (host == 1).all()
    pinned_again = np.frombuffer(pinned, np.float32, 8)
    pinned_again[:] = 5
    array.data.copy_from_host_async(pinned.ptr, 32, stream)
    stream.synchronize()
    assert (array.get() == 5).all()


def test_a_missing_wait_between_streams_is_named(cp: Any) -> None:
    kernel = function(cp, "vector_add.cu", "vector_add")
    array, result = cp.ones(8, np.float32), cp.empty(8, np.float32)
    side = cp.cuda.Stream(non_blocking=True)
    with pytest.raises(StreamError, match=r"kernel vector_add on stream .* and ndarray.fill on stream null"), side:
        kernel((1,), (8,), (array, array, result, np.int32(8)))
    side.wait_event(cp.cuda.get_current_stream().record())
    with side:
        kernel((1,), (8,), (array, array, result, np.int32(8)))
    assert (result.get(side) == 2).all()


def test_the_null_stream_is_ordered_with_blocking_streams(cp: Any) -> None:
    kernel = function(cp, "vector_add.cu", "vector_add")
    array, result = cp.ones(8, np.float32), cp.empty(8, np.float32)
    with cp.cuda.Stream():
        kernel((1,), (8,), (array, array, result, np.int32(8)))
    assert (result.get() == 2).all()


def test_events_measure_time_once_the_stream_ran(cp: Any) -> None:
    start, end = cp.cuda.Event(), cp.cuda.Event()
    start.record()
    cp.zeros(8)
    end.record()
    with pytest.raises(RuntimeError, match="not ready"):
        cp.cuda.get_elapsed_time(start, end)
    end.synchronize()
    assert end.done
    assert cp.cuda.get_elapsed_time(start, end) >= 0


def test_the_pool_counts_in_units_of_512_bytes(cp: Any) -> None:
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        arrays = [cp.empty(1, np.float32), cp.empty(1025, np.uint8)]
    assert pool.used_bytes() == pool.total_bytes() == 512 + 1536
    free, total = cp.cuda.Device(0).mem_info
    assert free < total
    pool.set_limit(size=2048)
    with pytest.raises(
        cp.cuda.memory.OutOfMemoryError, match=r"allocating 512 bytes \(allocated so far: 2,048 bytes, limit"
    ):
        pool.malloc(1)
    arrays.clear()
    gc.collect()
    assert pool.used_bytes() == 0
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        cp.cuda.alloc(1 << 40)


def test_use_after_free_is_found(cp: Any) -> None:
    kernel = function(cp, "vector_add.cu", "vector_add")
    array, result = cp.ones(8, np.float32), cp.empty(8, np.float32)
    cp.cuda.Device(0).synchronize()
    address = array.data.ptr
    del array
    gc.collect()
    kernel((1,), (8,), (address, address, result, np.int32(8)))
    with pytest.raises(KernelError, match="use after free"):
        cp.cuda.Device(0).synchronize()


def test_memory_lives_until_the_kernel_that_uses_it_has_run(cp: Any) -> None:
    kernel = function(cp, "vector_add.cu", "vector_add")
    array, result = cp.ones(8, np.float32), cp.empty(8, np.float32)
    kernel((1,), (8,), (array, array, result, np.int32(8)))
    del array
    gc.collect()
    assert (result.get() == 2).all()


def test_there_is_one_device(cp: Any) -> None:
    assert cp.cuda.is_available()
    assert cp.cuda.runtime.getDeviceCount() == 1
    assert cp.cuda.runtime.getDeviceProperties(0)["name"] == b"CPU emulator"
    for call in (cp.cuda.Device, cp.cuda.runtime.getDeviceProperties):
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="invalid device ordinal"):
            call(1)


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize(("dtype", "code", "tolerance"), [(np.float32, 0, 1e-5), (ml_dtypes.bfloat16, 14, 2e-2)])
def test_products_are_column_major(
    cp: Any, transposed: tuple[int, int], dtype: Any, code: int, tolerance: float
) -> None:
    m, n, k, batch = 3, 4, 5, 2
    cublas, rng = cp.cuda.cublas, np.random.default_rng(0)
    # A row-major (columns, rows) array is a column-major (rows, columns) matrix.
    a = rng.standard_normal((batch, m, k) if transposed[0] else (batch, k, m), np.float32).astype(dtype)
    b = rng.standard_normal((batch, k, n) if transposed[1] else (batch, n, k), np.float32).astype(dtype)
    c = rng.standard_normal((batch, n, m), np.float32).astype(dtype)
    left = a.astype(np.float64) if transposed[0] else a.astype(np.float64).mT
    right = b.astype(np.float64) if transposed[1] else b.astype(np.float64).mT
    expected = (2 * left @ right + 0.5 * c.astype(np.float64).mT).mT
    A, B, C = cp.asarray(a), cp.asarray(b), cp.asarray(c)
    alpha, beta = np.array([2], np.float32), np.array([0.5], np.float32)
    cublas.gemmStridedBatchedEx(
        cp.cuda.get_cublas_handle(), *transposed, m, n, k, alpha.ctypes.data, A.data.ptr, code, a.shape[2], m * k,
        B.data.ptr, code, b.shape[2], k * n, beta.ctypes.data, C.data.ptr, code, m, m * n, batch,
        cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT,
    )  # fmt: skip
    alpha[0] = 100  # was read by the call
    assert_allclose(C.get().astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def test_one_product_does_not_read_what_it_overwrites(cp: Any) -> None:
    cublas, one, zero = cp.cuda.cublas, np.ones(1, np.float32), np.zeros(1, np.float32)
    a, c = cp.ones((2, 2), np.float32), cp.empty((2, 2), np.float32)
    arguments = (0, 0, 2, 2, 2, one.ctypes.data, a.data.ptr, 0, 2, a.data.ptr, 0, 2, zero.ctypes.data, c.data.ptr, 0, 2)
    cublas.gemmEx(cp.cuda.get_cublas_handle(), *arguments, cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT)
    assert (c.get() == 2).all()
    with pytest.raises(ValueError, match="CUBLAS_STATUS_INVALID_VALUE: leading dimension 1 of 2 rows"):
        cublas.gemmEx(1, *arguments[:7], 0, 1, *arguments[9:], cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT)
