"""One CUDA device through CuPy: memory, transfers, launches and matrix products. No other file knows CuPy.

Everything is queued on one stream of the device's own, in order. Memory comes from one pool of the device's own, so
that its ``used_bytes`` are what Mila holds. CuPy checks nothing of a launch; ``launch`` does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np

from mila.devices.cuda_sizes import CUDA_ALIGNMENT, STAGING_BUFFERS, STAGING_BYTES
from mila.devices.device_id import DeviceId
from mila.devices.kernel_files import Parameter, compile_options, kernels_of, source_text
from mila.devices.launches import along_axes, check_sizes, passed, refuse_scalar
from mila.devices.products import Products, fix_workspace
from mila.devices.thread_bytes import ThreadBytes
from mila.errors import DeviceError, DTypeError, ShapeError
from mila.kernels.cuda.family import SCRATCH_BYTES, Argument, DType, Size
from mila.kernels.cuda.table import CudaKernels
from mila.kernels.signatures import Array, Kernels

#: The first CuPy that has bfloat16.
_LEAST_CUPY = 14
#: The first compute capability that kernels are compiled for: 8.0.
_LEAST_CAPABILITY = 80


class _Kernel:
    """A kernel that is loaded on the device, and what its launches must look like."""

    __slots__ = ("allowed_shared_bytes", "function", "name", "parameters")

    def __init__(self, name: str, function: Any, parameters: Sequence[Parameter]) -> None:
        self.name = name
        self.function = function
        self.parameters = parameters
        self.allowed_shared_bytes = 0  # unasked a block gets 48 KiB, of which what the kernel declares is a part


class _Staging:
    """Pinned host memory through which tiles travel; its event says when it is free again."""

    def __init__(self) -> None:
        self._memory = cupy.cuda.alloc_pinned_memory(STAGING_BYTES)
        self.bytes: Array = np.frombuffer(self._memory, np.uint8, STAGING_BYTES)
        self.address = self._memory.ptr
        self.free = cupy.cuda.Event()


class CudaDevice:
    """A device with its stream, its memory pool, its matrix products and its loaded kernels.

    Besides what is allocated, a device takes ``SCRATCH_BYTES``, ``PRODUCT_WORKSPACE_BYTES`` for matrix products, and
    ``STAGING_BUFFERS`` pinned buffers of ``STAGING_BYTES`` on the host: at once, but scratch again for each thread.

    Args:
        device_id: which one.

    Raises:
        DeviceError: no such device here, or one that is too old.
    """

    alignment = CUDA_ALIGNMENT
    is_host = False

    def __init__(self, device_id: DeviceId) -> None:
        self.device_id = device_id
        self._device = _find(device_id)
        attributes = self._device.attributes
        self.multiprocessor_count: int = attributes["MultiProcessorCount"]
        self.most_shared_bytes: int = attributes["MaxSharedMemoryPerBlockOptin"]
        self._kernels: dict[tuple[str, str, DType], _Kernel] = {}
        self._modules: dict[tuple[str, DType], Any] = {}
        self._lock = threading.RLock()  # loading and staging: several networks may share the device
        fix_workspace()
        with self._device:
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.pool = cupy.cuda.MemoryPool()
            self._staging = tuple(_Staging() for _ in range(STAGING_BUFFERS))
            self._products = Products(device_id, *_cublas(device_id), self.stream)
        self._scratch = ThreadBytes(self.allocate, SCRATCH_BYTES)
        self.no_bytes = self.scratch[:0]
        self._warm_up()
        self.kernels: Kernels = CudaKernels(self)

    @contextmanager
    def _current(self) -> Iterator[None]:
        with cupy.cuda.Device(self.device_id.index), self.stream:  # a device of its own: threads would share its stack
            yield

    def _warm_up(self) -> None:
        """One product, so that cuBLAS has taken all its memory before anything is planned."""
        a, b, c = (self.scratch[i : i + 4].view(np.float32).reshape(1, 1) for i in (0, 256, 512))
        self.set_bytes(self.scratch, 0)
        self.multiply(c, a, b)
        self.synchronize()

    @property
    def scratch(self) -> Array:
        """The calling thread's own; see :class:`mila.kernels.cuda.family.Launcher`."""
        return self._scratch.bytes

    # ------------------------------------------------------------------ memory

    def allocate(self, size: int) -> Array:
        """``size`` uninitialised bytes; :class:`MemoryError` where the device has no room for them."""
        with self._current():
            return cupy.ndarray((size,), np.uint8, self.pool.malloc(size))  # type: ignore[no-any-return]

    def available_bytes(self) -> int:
        """Bytes that can still be allocated: what the driver has, and what the pool keeps without using it."""
        with self._current():  # a pool answers for the current device
            free, _ = self._device.mem_info
            return int(free) + int(self.pool.free_bytes())

    def total_bytes(self) -> int:
        """Memory of the device."""
        return int(self._device.mem_info[1])

    def used_bytes(self) -> int:
        """Bytes in use of what was taken from the pool."""
        with self._current():
            return int(self.pool.used_bytes())

    def synchronize(self) -> None:
        """Wait for everything queued."""
        self.stream.synchronize()

    def address_of(self, array: Array) -> int:
        """Where the first element is."""
        return int(array.data.ptr)  # type: ignore[attr-defined]

    def owns(self, array: object) -> bool:
        """Whether it is an array of this device."""
        return isinstance(array, cupy.ndarray) and array.data.device_id == self.device_id.index

    def as_array(self, what: str, value: object) -> Array:
        """``value`` as an array of this device, without a copy; what CuPy's current stream does to it comes first.

        Raises:
            DeviceError: it lives somewhere else.
            DTypeError: it is no array.
        """
        if isinstance(value, cupy.ndarray):
            array: Array = value
        elif hasattr(value, "__cuda_array_interface__"):
            array = cupy.asarray(value)
        elif hasattr(value, "__array_interface__"):
            raise DeviceError(f"{what}: expected an array of {self.device_id}, got one of the CPU; use to_device")
        else:
            raise DTypeError(f"{what}: expected an array, got {type(value).__name__}")
        if not self.owns(array):
            other = array.data.device_id  # type: ignore[attr-defined]
            raise DeviceError(f"{what}: expected an array of {self.device_id}, got one of cuda:{other}")
        self._wait_for_caller()
        return array

    def _wait_for_caller(self) -> None:
        """Order what is queued from now on after what the caller has queued on CuPy's current stream."""
        with cupy.cuda.Device(self.device_id.index):
            theirs = cupy.cuda.get_current_stream()
            if theirs.ptr != self.stream.ptr:
                self.stream.wait_event(theirs.record())

    def hand_over(self) -> None:
        """Order what the caller queues from now on, on CuPy's current stream, after everything queued here."""
        with cupy.cuda.Device(self.device_id.index):
            theirs = cupy.cuda.get_current_stream()
            if theirs.ptr != self.stream.ptr:
                theirs.wait_event(self.stream.record())

    def set_bytes(self, array: Array, value: int) -> None:
        """Write ``value`` to every byte."""
        if array.nbytes:
            with self._current():
                array.data.memset_async(value, array.nbytes, self.stream)  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ transfers

    def upload(self, target: Array, values: Array) -> None:
        """Overwrite a contiguous device array with NumPy ``values`` of its shape, converted on the way, by tiles."""
        if target.shape != values.shape:
            raise ShapeError(f"upload: expected shape {target.shape}, got {values.shape}")
        flat, source = target.reshape(-1), values.reshape(-1)
        step = STAGING_BYTES // target.dtype.itemsize
        with self._lock, self._current():
            for index, start in enumerate(range(0, source.size, step)):
                part, place = source[start : start + step], flat[start : start + step]
                staging = self._staging[index % len(self._staging)]
                staging.free.synchronize()
                np.copyto(staging.bytes[: place.nbytes].view(target.dtype), part, casting="unsafe")
                place.data.copy_from_host_async(staging.address, place.nbytes, self.stream)  # type: ignore[attr-defined]
                staging.free.record(self.stream)

    def download(self, array: Array) -> Array:
        """A NumPy copy of an array, after everything queued before, on CuPy's current stream too."""
        self._wait_for_caller()
        return self.read(array)

    def read(self, array: Array) -> Array:
        """A NumPy copy of what is queued on the device's own stream."""
        result = np.empty(array.shape, array.dtype)
        step = STAGING_BYTES // array.dtype.itemsize
        with self._lock, self._current():
            flat, target = array.reshape(-1), result.reshape(-1)  # a copy, queued here, of what is not contiguous
            staging = self._staging[0]
            staging.free.synchronize()
            for start in range(0, target.size, step):
                part, place = target[start : start + step], flat[start : start + step]
                place.data.copy_to_host_async(staging.address, part.nbytes, self.stream)  # type: ignore[attr-defined]
                self.stream.synchronize()
                np.copyto(part, staging.bytes[: part.nbytes].view(array.dtype))
        return result

    def to_device(self, values: Array) -> Array:
        """A copy of a NumPy array on the device."""
        block = self.allocate(values.nbytes)
        array = block.view(values.dtype).reshape(values.shape)
        self.upload(array, values)
        self.hand_over()
        return array

    write = upload

    # ------------------------------------------------------------------ launches and products

    def launch(
        self,
        source: str,
        kernel: str,
        dtype: DType,
        grid: Size,
        block: Size,
        arguments: Sequence[Argument],
        shared_bytes: int = 0,
    ) -> None:
        """Queue a kernel; see :meth:`mila.kernels.cuda.family.Launcher.launch`."""
        found = self._kernels.get((source, kernel, dtype)) or self._load(source, kernel, dtype)
        blocks, threads = along_axes(grid), along_axes(block)
        check_sizes(found.name, blocks, threads, shared_bytes, self.most_shared_bytes)
        self._check_arguments(found, arguments)
        if 0 in blocks:
            return
        with self._current():
            try:
                if shared_bytes > found.allowed_shared_bytes:
                    found.function.max_dynamic_shared_size_bytes = shared_bytes
                    found.allowed_shared_bytes = shared_bytes
                found.function(blocks, threads, tuple(map(passed, arguments)), shared_mem=shared_bytes)
            except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
                raise DeviceError(
                    f"{found.name}: {self.device_id} refused a grid of {blocks} blocks of {threads} threads with "
                    f"{shared_bytes} bytes of shared memory: {error}"
                ) from error

    def _load(self, source: str, kernel: str, dtype: DType) -> _Kernel:
        """Compile the file for this device and dtype, unless that has been done, and get one of its kernels."""
        parameters = kernels_of(source, dtype).get(kernel)
        if parameters is None:
            known = ", ".join(kernels_of(source, dtype)) or "none"
            raise DeviceError(f"kernel file {source}.cu: has no kernel {kernel!r}; it has {known}")
        with self._lock, self._current():
            try:
                module = self._modules.get((source, dtype))
                if module is None:
                    module = cupy.RawModule(
                        code=source_text(source), options=compile_options(dtype) + _include_option()
                    )
                    self._modules[source, dtype] = module
                function = module.get_function(kernel)
            # CuPy's own, and RuntimeErrors of the compiler, of its headers where they are not found, and of the driver.
            except (cupy.cuda.compiler.CompileException, ImportError, RuntimeError) as error:
                raise DeviceError(
                    f"kernel file {source}.cu: could not be compiled for {self.device_id}, or loaded: {error}"
                ) from error
            loaded = _Kernel(f"{source}.cu: kernel {kernel} ({dtype.name})", function, parameters)
            self._kernels[source, kernel, dtype] = loaded
            return loaded

    def _check_arguments(self, kernel: _Kernel, arguments: Sequence[Argument]) -> None:
        if len(arguments) != len(kernel.parameters):
            raise DeviceError(f"{kernel.name}: expected {len(kernel.parameters)} arguments, got {len(arguments)}")
        for parameter, argument in zip(kernel.parameters, arguments, strict=True):
            reason = (
                self._refuse_pointer(parameter, argument)
                if parameter.is_pointer
                else refuse_scalar(parameter, argument)
            )
            if reason is not None:
                raise DeviceError(f"{kernel.name}: argument {parameter.name!r} ({parameter.type}): {reason}")

    def _refuse_pointer(self, parameter: Parameter, argument: object) -> str | None:
        if argument is None:
            return None
        if not isinstance(argument, cupy.ndarray):
            return f"expected an array of {self.device_id} or None, got {type(argument).__name__}"
        if argument.data.device_id != self.device_id.index:
            return f"expected an array of {self.device_id}, got one of cuda:{argument.data.device_id}"
        if parameter.dtype is not None and argument.dtype != parameter.dtype:
            return f"expected {parameter.dtype.name}, got {argument.dtype.name}"
        if not argument.flags.c_contiguous:
            return f"expected a C-contiguous array, got strides {argument.strides} for shape {argument.shape}"
        return None

    def multiply(
        self,
        output: Array,
        a: Array,
        b: Array,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        accumulate: bool = False,
    ) -> None:
        """A matrix product; see :meth:`mila.kernels.cuda.family.Launcher.multiply`."""
        for name, array in (("output", output), ("a", a), ("b", b)):
            if not self.owns(array):
                raise DeviceError(f"matrix product: expected {name} to be an array of {self.device_id}, got {array!r}")
        with self._current():
            self._products.multiply(output, a, b, transpose_a, transpose_b, accumulate)


def _find(device_id: DeviceId) -> Any:
    """CuPy's device, if there is one that Mila's kernels run on."""
    if int(cupy.__version__.split(".")[0]) < _LEAST_CUPY:
        raise DeviceError(
            f"device {device_id}: expected CuPy {_LEAST_CUPY} or later, got {cupy.__version__}; upgrade it"
        )
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"device {device_id}: found no CUDA device or driver on this machine ({error})") from error
    if device_id.index >= count:
        there = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0 alone" if count else "none"
        raise DeviceError(f"device {device_id}: does not exist on this machine; there is {there}")
    device = cupy.cuda.Device(device_id.index)
    if int(device.compute_capability) < _LEAST_CAPABILITY:
        raise DeviceError(
            f"device {device_id}: expected compute capability 8.0 or later, got {device.compute_capability[:-1]}."
            f"{device.compute_capability[-1]}"
        )
    return device


def _cublas(device_id: DeviceId) -> tuple[Any, Any]:
    """CuPy's cuBLAS, and a handle of our own, which lives as long as the process or is destroyed by its owner."""
    try:
        return cupy.cuda.cublas, cupy.cuda.cublas.create()
    except ImportError as error:
        raise DeviceError(
            f"device {device_id}: cuBLAS was not found ({error}); CuPy's extra ctk brings it: "
            "pip install 'cupy-cuda13x[ctk]', or 'cupy-cuda12x[ctk]'"
        ) from error
    except RuntimeError as error:
        raise DeviceError(f"device {device_id}: cuBLAS could not start: {error}") from error


def _include_option() -> tuple[str, ...]:
    """Where the headers of CUDA lie, as far as CuPy knows; from 14.2 on it adds those of wheels by itself."""
    path = cupy.cuda.get_cuda_path()
    return () if path is None else (f"-I{path}/include",)
