"""The CUDA device: what it refuses, what it checks before a launch, what it counts, and how arrays travel."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from mila.components import Linear, LinearConfig
from mila.core import BuildContext, RuntimeMode
from mila.devices import DeviceId, ExecutionContext, address_of
from mila.devices.execution_context import _cuda_device as find_cuda_device
from mila.errors import DeviceError, DTypeError, OutOfMemoryError, ShapeError
from mila.kernels.cuda.family import SCRATCH_BYTES
from tests.cuda.conftest import BACKEND, Emulated

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

FLOAT32 = np.dtype(np.float32)
LAYER = LinearConfig(in_features=6, out_features=4)


def drawn(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---------------------------------------------------------------------- finding a device


def test_without_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, BACKEND)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"device cuda:7: .*pip install 'cupy-cuda13x\[ctk\]>=14.2', or"):
        find_cuda_device(DeviceId.parse("cuda:7"))


def fail(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"__version__": "13.6.0"}, r"expected CuPy 14 or later, got 13.6.0"),
        ({"cuda.runtime.getDeviceCount": lambda: 0}, r"device cuda:0: does not exist on this machine; there is none"),
        ({"cuda.Device.compute_capability": "75"}, r"expected compute capability 8.0 or later, got 7.5"),
    ],
    ids=["old CuPy", "no device", "old device"],
)
def test_what_mila_cannot_use_is_refused(
    change: dict[str, Any], message: str, emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in change.items():
        target: Any = emulated.modules["cupy"]
        *path, last = name.split(".")
        for part in path:
            target = getattr(target, part)
        monkeypatch.setattr(target, last, value)
    with pytest.raises(DeviceError, match=message):
        emulated.modules[BACKEND].CudaDevice(DeviceId.parse("cuda:0"))


def test_without_a_driver_there_is_no_device(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = emulated.modules["cupy.cuda.runtime"]
    error = runtime.CUDARuntimeError("cudaErrorInsufficientDriver")
    monkeypatch.setattr(runtime, "getDeviceCount", lambda: fail(error))
    with pytest.raises(DeviceError, match=r"found no CUDA device or driver on this machine \(cudaErrorInsufficient"):
        emulated.modules[BACKEND].CudaDevice(DeviceId.parse("cuda:0"))


def test_an_index_beyond_the_devices_is_refused(emulated: Emulated) -> None:
    with pytest.raises(DeviceError, match="device cuda:1: does not exist on this machine; there is cuda:0 alone"):
        emulated.modules[BACKEND].CudaDevice(DeviceId.parse("cuda:1"))


# ---------------------------------------------------------------------- memory and transfers


def test_a_device_holds_its_scratch_and_nothing_else_of_the_pool(emulated: Emulated) -> None:
    device = emulated.modules[BACKEND].CudaDevice(DeviceId.parse("cuda:0"))
    assert device.used_bytes() == SCRATCH_BYTES
    block = device.allocate(1000)
    assert device.used_bytes() == SCRATCH_BYTES + 1024
    assert device.address_of(block) % device.alignment == 0
    assert 0 < device.available_bytes() <= device.total_bytes()
    del block
    assert device.used_bytes() == SCRATCH_BYTES


@pytest.mark.parametrize("size", [0, 1, 1000, (1 << 20) + 3, 3_000_001])
def test_arrays_come_back_as_they_went(size: int, cuda: CudaDevice) -> None:
    values = np.arange(size, dtype=np.int32)
    array = cuda.to_device(values)
    assert cuda.owns(array)
    assert address_of(array) == cuda.address_of(array)
    np.testing.assert_array_equal(cuda.download(array), values)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_uploads_convert(dtype: Any, cuda: CudaDevice) -> None:
    values = drawn(7, 5, dtype=np.float64)
    target = cuda.to_device(np.zeros((7, 5), dtype))
    cuda.upload(target, values)
    np.testing.assert_array_equal(cuda.download(target), values.astype(dtype))
    with pytest.raises(ShapeError, match=r"upload: expected shape \(7, 5\), got \(5, 7\)"):
        cuda.upload(target, values.T)


def test_bytes_are_set(cuda: CudaDevice) -> None:
    array = cuda.to_device(drawn(3, 5))
    cuda.set_bytes(array[1:2], 0)
    assert (cuda.download(array) == 0).all(axis=1).tolist() == [False, True, False]


def test_a_build_that_does_not_fit_says_what_it_needs(context: ExecutionContext, cuda: CudaDevice) -> None:
    layer = Linear("layer", LAYER)
    layer.set_execution_context(context)
    build = BuildContext((2, 6), RuntimeMode.TRAINING)
    before = cuda.used_bytes()
    cuda.pool.set_limit(before + 1024)
    try:
        with pytest.raises(OutOfMemoryError, match=r"layer: the build needs .* largest buffers are layer\.") as caught:
            layer.build(build)
    finally:
        cuda.pool.set_limit(0)
    assert "of cuda:0" in str(caught.value)
    del caught
    assert cuda.used_bytes() == before
    layer.build(build)


def test_arrays_of_another_device_are_refused(context: ExecutionContext, cuda: CudaDevice) -> None:
    here, there = Linear("layer", LAYER), Linear("layer", LAYER, device="cpu")
    here.set_execution_context(context)
    x = drawn(2, 6)
    for layer in (here, there):
        layer.build(BuildContext((2, 6), RuntimeMode.TRAINING))
    with pytest.raises(DeviceError, match="layer: input 'input': expected an array of cuda:0, got one of the CPU"):
        here.forward(x)
    with pytest.raises(DeviceError, match="layer: input 'input': expected an array of the CPU, got one of a CUDA dev"):
        there.forward(cuda.to_device(x))
    with pytest.raises(DTypeError, match="layer: input 'input': expected an array, got list"):
        here.forward([1.0])  # type: ignore[arg-type]


def test_inputs_may_still_be_queued_on_the_stream_of_the_caller(
    context: ExecutionContext, cuda: CudaDevice, emulated: Emulated
) -> None:
    layer = Linear("layer", LAYER)
    layer.set_execution_context(context)
    layer.build(BuildContext((2, 6), RuntimeMode.TRAINING))
    ones = emulated.modules["cupy"].ones((2, 6), np.float32)
    expected = np.broadcast_to(cuda.download(layer.get_parameters()[0]).sum(axis=1), (2, 4))
    np.testing.assert_allclose(cuda.download(layer.forward(ones)), expected, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- launches


def launch_scale(device: CudaDevice, **changes: Any) -> None:
    """Launch ``scale`` of elementwise.cu on three numbers, with some arguments changed."""
    x = device.to_device(drawn(3))
    arguments = {"output": device.to_device(drawn(3)), "x": x, "size": np.int64(3), "factor": np.float32(2)}
    launch = {"source": "elementwise", "kernel": "scale", "dtype": FLOAT32, "grid": 1, "block": 32, "shared_bytes": 0}
    for name, value in changes.items():
        (arguments if name in arguments else launch)[name] = value
    device.launch(arguments=list(arguments.values()), **launch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "elements"}, r"kernel file elements.cu: does not exist"),
        ({"kernel": "scales"}, r"kernel file elementwise.cu: has no kernel 'scales'; it has .*scale"),
        ({"grid": -1}, r"expected 0 to 2,147,483,647 blocks along x, got -1"),
        ({"grid": (1, 65536)}, r"expected 0 to 65,535 blocks along y, got 65,536"),
        ({"block": 0}, r"expected 1 to 1,024 threads along x, got 0"),
        ({"block": (64, 1, 65)}, r"expected 1 to 64 threads along z, got 65"),
        ({"block": (32, 33)}, r"expected at most 1024 threads in a block, got 1056"),
        ({"shared_bytes": 300_000}, r"expected 0 to 232,448 bytes of shared memory, got 300,000"),
        ({"size": 3}, r"argument 'size' \(index_t size\): expected a NumPy scalar, got int"),
        ({"size": np.int32(3)}, r"argument 'size' \(index_t size\): expected int64, got int32"),
        ({"factor": np.float64(2)}, r"argument 'factor' \(float factor\): expected float32, got float64"),
        ({"x": np.zeros(3, np.float32)}, r"argument 'x' .*: expected an array of cuda:0 or None, got ndarray"),
        ({"dtype": np.dtype(np.float16)}, r"\(float16\): argument 'output' \(.*\): expected float16, got float32"),
    ],
    ids=str,
)  # fmt: skip
def test_a_launch_that_cannot_work_is_refused(changes: dict[str, Any], message: str, cuda: CudaDevice) -> None:
    with pytest.raises(DeviceError, match=message):
        launch_scale(cuda, **changes)


def test_a_launch_takes_contiguous_arrays_and_all_arguments(cuda: CudaDevice) -> None:
    square = cuda.to_device(drawn(3, 3))
    with pytest.raises(DeviceError, match=r"argument 'x' .*: expected a C-contiguous array, got strides \(12,\) for"):
        launch_scale(cuda, x=square[:, 0])
    with pytest.raises(DeviceError, match="expected 4 arguments, got 1"):
        cuda.launch("elementwise", "scale", FLOAT32, 1, 32, [square])


def test_no_blocks_are_no_launch(cuda: CudaDevice) -> None:
    launch_scale(cuda, grid=0)
    launch_scale(cuda, grid=(3, 0))


def test_a_file_that_does_not_compile_is_named(
    cuda: CudaDevice, emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulated.modules[BACKEND], "source_text", lambda source: "no C++ at all")
    monkeypatch.setattr(cuda, "_modules", {})
    monkeypatch.setattr(cuda, "_kernels", {})
    with pytest.raises(DeviceError, match=r"kernel file elementwise.cu: could not be compiled for cuda:0"):
        launch_scale(cuda)


# ---------------------------------------------------------------------- products


def turned(matrix: Any, transpose: bool) -> Any:
    return np.swapaxes(matrix, -1, -2) if transpose else matrix


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
@pytest.mark.parametrize(("m", "n", "k"), [(6, 5, 4), (1, 1, 1), (3, 2, 0), (0, 2, 3)])
def test_products(
    dtype: Any,
    transpose_a: bool,
    transpose_b: bool,
    batch: tuple[int, ...],
    m: int,
    n: int,
    k: int,
    cuda: CudaDevice,
) -> None:
    a = drawn(*batch, *((k, m) if transpose_a else (m, k)), dtype=dtype)
    b = drawn(*batch, *((n, k) if transpose_b else (k, n)), dtype=dtype, seed=1)
    product = turned(a, transpose_a).astype(np.float64) @ turned(b, transpose_b).astype(np.float64)
    matrices = cuda.to_device(a), cuda.to_device(b)
    rounding = {2: 2.0**-6, 4: 2.0**-20}[np.dtype(dtype).itemsize]
    for kind in {np.dtype(dtype), FLOAT32}:
        output = cuda.to_device(np.full((*batch, m, n), np.nan, kind))
        for factor, accumulate in ((1, False), (2, True)):
            cuda.multiply(output, *matrices, transpose_a=transpose_a, transpose_b=transpose_b, accumulate=accumulate)
            np.testing.assert_allclose(
                cuda.download(output).astype(np.float64), factor * product, rtol=rounding, atol=rounding
            )


@pytest.mark.parametrize(
    ("shapes", "dtypes", "error", "message"),
    [
        (((2, 3), (2, 4), (5, 3)), "fff", ShapeError, "the shapes do not fit"),
        (((2, 3), (2, 4), (4, 5)), "fff", ShapeError, "the shapes do not fit"),
        (((2,), (2, 4), (4, 3)), "fff", ShapeError, "of rank 2, or of rank 3 with one batch"),
        (((2, 2, 3), (1, 2, 4), (2, 4, 3)), "fff", ShapeError, "of rank 2, or of rank 3 with one batch"),
        (((2, 3), (2, 4), (4, 3)), "ffe", DTypeError, "two arrays of one dtype"),
        (((2, 3), (2, 4), (4, 3)), "eff", DTypeError, "an output of the same or float32"),
        (((2, 3), (2, 4), (4, 3)), "iii", DTypeError, "two arrays of one dtype"),
    ],
)
def test_products_that_do_not_fit_are_refused(
    shapes: tuple[tuple[int, ...], ...], dtypes: str, error: type[Exception], message: str, cuda: CudaDevice
) -> None:
    arrays = [cuda.to_device(np.zeros(shape, dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)]
    with pytest.raises(error, match=message):
        cuda.multiply(*arrays)


def test_products_take_arrays_of_the_device(cuda: CudaDevice) -> None:
    square = np.zeros((2, 2), np.float32)
    with pytest.raises(DeviceError, match="expected b to be an array of cuda:0"):
        cuda.multiply(cuda.to_device(square), cuda.to_device(square), square)


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        None,
        np.array(["a"]),
        np.array([None]),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, ">f4"),
        np.zeros(2, "M8[s]"),
    ],
    ids=["list", "nothing", "text", "objects", "structures", "big endian", "times"],
)
def test_what_is_no_array_of_numbers_stays_here(values: Any, context: ExecutionContext) -> None:
    with pytest.raises(DTypeError, match="to_device: expected"):
        context.to_device(values)


def test_an_array_that_is_not_there_does_not_come_back(context: ExecutionContext) -> None:
    with pytest.raises(DeviceError, match="to_host: expected an array of cuda:0, got one of the CPU"):
        context.to_host(np.zeros(2, np.float32))
    with pytest.raises(DTypeError, match="to_device: expected a NumPy array, got ndarray"):
        context.to_device(context.to_device(np.zeros(2, np.float32)))
    with pytest.raises(DTypeError, match="to_host: expected an array, got list"):
        context.to_host([1.0])  # type: ignore[arg-type]
