"""Row-major matrix products by cuBLAS, which is column-major, with sums in float32."""

from __future__ import annotations

import os
import re
import weakref
from typing import Any

import numpy as np

from mila.devices.device_id import DeviceId
from mila.errors import DeviceError, DTypeError, ShapeError
from mila.kernels.cuda.family import BFLOAT16, FLOAT16, FLOAT32, DType
from mila.kernels.signatures import Array

#: Device memory that cuBLAS takes when the context is made, and never more of.
PRODUCT_WORKSPACE_BYTES = 32 << 20
#: cuBLAS reads here how large and how many its buffers are, in KiB; with one stream a handle needs one.
_WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACE = re.compile(r"(?::[0-9]{1,9}:[0-9]{1,9})+", re.ASCII)

#: ``cudaDataType`` of stored dtypes.
_TYPES: dict[DType, int] = {FLOAT32: 0, FLOAT16: 2, BFLOAT16: 14}
_NOT_TRANSPOSED, _TRANSPOSED = 0, 1
_COMPUTE_FLOAT32 = 68  # CUBLAS_COMPUTE_32F: no TF32
_DEFAULT_ALGORITHM = -1
#: Default mode, and no sums of partial sums in half precision.
_MATH_MODE = 0 | 16
_LARGEST_EXTENT = 2**31 - 1


def fix_workspace() -> None:
    """Tell cuBLAS, unless the user has, to take one buffer of a known size; before the first handle.

    A buffer of ours (``cublasSetWorkspace``) would not last: setting the stream, which every call of CuPy's does, goes
    back to cuBLAS's own.
    """
    os.environ.setdefault(_WORKSPACE_VARIABLE, f":{PRODUCT_WORKSPACE_BYTES >> 10}:1")


def product_workspace_bytes() -> int | None:
    """What cuBLAS takes for its workspace: :data:`PRODUCT_WORKSPACE_BYTES`, or what the user has asked it to.

    ``None`` where that is not understood.
    """
    given = os.environ.get(_WORKSPACE_VARIABLE)
    if given is None:
        return PRODUCT_WORKSPACE_BYTES
    if not _WORKSPACE.fullmatch(given):
        return None
    numbers = [int(number) for number in given[1:].split(":")]
    return sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True)) << 10


class Products:
    """Matrix products on one stream of one device, which must be the current ones in every call.

    Args:
        device_id: the device, for errors.
        cublas: CuPy's module.
        handle: of cuBLAS; destroyed with this object.
        stream: CuPy's stream.
    """

    def __init__(self, device_id: DeviceId, cublas: Any, handle: int, stream: Any) -> None:
        self._device_id = device_id
        self._cublas = cublas
        self._handle = handle
        self._stream = stream
        weakref.finalize(self, cublas.destroy, handle)
        cublas.setMathMode(handle, _MATH_MODE)
        # Read by cuBLAS during the call, on the host.
        self._factors = np.array([0.0, 1.0], np.float32)

    def multiply(
        self, output: Array, a: Array, b: Array, transpose_a: bool, transpose_b: bool, accumulate: bool
    ) -> None:
        """``output (+)= op(a) @ op(b)``, of rank 2, or of rank 3 for each member of a batch.

        A row-major matrix is a column-major one transposed, and ``(A B)ᵀ = Bᵀ Aᵀ``: so cuBLAS is given ``b`` first.
        """
        m, n, k = _extents(output, a, b, transpose_a, transpose_b)
        _check_dtypes(output, a, b)
        if not output.size:
            return
        if not k:
            if not accumulate:
                output.data.memset_async(0, output.nbytes, self._stream)  # type: ignore[attr-defined]
            return
        zero = self._factors.ctypes.data
        self._cublas.setStream(self._handle, self._stream.ptr)
        common = (
            self._handle,
            _TRANSPOSED if transpose_b else _NOT_TRANSPOSED,
            _TRANSPOSED if transpose_a else _NOT_TRANSPOSED,
            n,
            m,
            k,
            zero + self._factors.itemsize,
        )
        matrices = [
            (x.data.ptr, _TYPES[x.dtype], x.shape[-1], x.shape[-2] * x.shape[-1])  # type: ignore[attr-defined]
            for x in (b, a, output)
        ]
        beta = zero + self._factors.itemsize if accumulate else zero
        last = (_COMPUTE_FLOAT32, _DEFAULT_ALGORITHM)
        try:
            if output.ndim == 2:
                first, second, result = (matrix[:3] for matrix in matrices)
                self._cublas.gemmEx(*common, *first, *second, beta, *result, *last)
            else:
                first4, second4, result4 = matrices
                self._cublas.gemmStridedBatchedEx(*common, *first4, *second4, beta, *result4, output.shape[0], *last)
        except RuntimeError as error:  # cuBLAS's own, and those of the driver
            shown = _shown(output, a, b, transpose_a, transpose_b)
            raise DeviceError(f"matrix product: {self._device_id} refused {shown}: {error}") from error


def _shown(output: Array, a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> str:
    return f"{output.shape} = {a.shape}{'ᵀ' * transpose_a} @ {b.shape}{'ᵀ' * transpose_b}"


def _extents(output: Array, a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> tuple[int, int, int]:
    """M, N and K."""
    arrays = (output, a, b)
    if (
        output.ndim not in (2, 3)
        or not output.ndim == a.ndim == b.ndim
        or not output.shape[:-2] == a.shape[:-2] == b.shape[:-2]
    ):
        shown = _shown(*arrays, transpose_a, transpose_b)
        raise ShapeError(f"matrix product: expected three arrays of rank 2, or of rank 3 with one batch, got {shown}")
    for array in arrays:
        if not array.flags.c_contiguous:
            raise ShapeError(f"matrix product: expected C-contiguous arrays, got strides {array.strides}")
    m, k = a.shape[:-3:-1] if transpose_a else a.shape[-2:]
    other, n = b.shape[:-3:-1] if transpose_b else b.shape[-2:]
    if other != k or output.shape[-2:] != (m, n):
        raise ShapeError(f"matrix product: the shapes do not fit, got {_shown(*arrays, transpose_a, transpose_b)}")
    if max(m, n, k, *output.shape[:-2]) > _LARGEST_EXTENT:
        shown = _shown(*arrays, transpose_a, transpose_b)
        raise DeviceError(f"matrix product: expected extents of at most {_LARGEST_EXTENT:,}, got {shown}")
    return m, n, k


def _check_dtypes(output: Array, a: Array, b: Array) -> None:
    if a.dtype != b.dtype or a.dtype not in _TYPES or output.dtype not in (a.dtype, FLOAT32):
        raise DTypeError(
            "matrix product: expected two arrays of one dtype, and an output of the same or float32, got "
            f"{output.dtype} = {a.dtype} @ {b.dtype}"
        )
