"""Matrix products of cuBLAS: column-major, addresses instead of arrays, in the order of the current stream."""

# ruff: noqa: N802  the names are CUDA's

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.emulator.arguments import Range, Usage

from .stream import current

CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F = 68, 70
CUBLAS_GEMM_DEFAULT = -1
CUBLAS_POINTER_MODE_HOST = 0
CUBLAS_DEFAULT_MATH = 0

#: Element types by cudaDataType.
_TYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.float32),
    1: np.dtype(np.float64),
    2: np.dtype(np.float16),
    14: np.dtype(ml_dtypes.bfloat16),
}
_ACCUMULATORS = {CUBLAS_COMPUTE_32F: ctypes.c_float, CUBLAS_COMPUTE_64F: ctypes.c_double}


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Column-major matrices, one after the other."""

    address: int
    dtype: np.dtype[Any]
    rows: int
    columns: int
    leading: int  # elements from one column to the next
    stride: int  # elements from one matrix to the next
    count: int

    def __post_init__(self) -> None:
        if self.leading < max(1, self.rows):
            raise ValueError(f"CUBLAS_STATUS_INVALID_VALUE: leading dimension {self.leading} of {self.rows} rows")

    @property
    def extent(self) -> Range:
        if not self.rows * self.columns * self.count:
            return self.address, self.address
        elements = (self.count - 1) * self.stride + (self.columns - 1) * self.leading + self.rows
        return self.address, self.address + elements * self.dtype.itemsize

    def array(self) -> NDArray[Any]:
        """Return a view of shape (count, rows, columns)."""
        begin, end = self.extent
        raw = memoryview((ctypes.c_char * (end - begin)).from_address(begin))
        size = self.dtype.itemsize
        strides = (self.stride * size, size, self.leading * size)
        return np.ndarray((self.count, self.rows, self.columns), self.dtype, raw, 0, strides)


def gemmStridedBatchedEx(
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    A: int,
    Atype: int,
    lda: int,
    strideA: int,
    B: int,
    Btype: int,
    ldb: int,
    strideB: int,
    beta: int,
    C: int,
    Ctype: int,
    ldc: int,
    strideC: int,
    batchCount: int,
    computeType: int,
    algo: int,
) -> None:
    """C = alpha op(A) op(B) + beta C for each matrix of a batch; C is not read where beta is 0."""
    a = _Matrices(A, _TYPES[Atype], *((k, m) if transa else (m, k)), lda, strideA, batchCount)
    b = _Matrices(B, _TYPES[Btype], *((n, k) if transb else (k, n)), ldb, strideB, batchCount)
    c = _Matrices(C, _TYPES[Ctype], m, n, ldc, strideC, batchCount)
    number = _ACCUMULATORS[computeType]
    factors = [number.from_address(address).value for address in (alpha, beta)]  # read by the call, not by the stream
    accumulator = np.dtype(number)

    def action() -> None:
        left, right = a.array().astype(accumulator), b.array().astype(accumulator)
        product = (left.mT if transa else left) @ (right.mT if transb else right)
        result = c.array()
        scaled = accumulator.type(factors[0]) * product
        if factors[1]:
            scaled = scaled + accumulator.type(factors[1]) * result.astype(accumulator)
        result[...] = scaled.astype(result.dtype)

    usage = Usage(reads=(a.extent, b.extent), writes=(c.extent,))
    current(None).queue.enqueue("matrix product", action, usage)


def gemmEx(
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    A: int,
    Atype: int,
    lda: int,
    B: int,
    Btype: int,
    ldb: int,
    beta: int,
    C: int,
    Ctype: int,
    ldc: int,
    computeType: int,
    algo: int,
) -> None:
    """C = alpha op(A) op(B) + beta C."""
    gemmStridedBatchedEx(
        handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0, beta, C, Ctype, ldc, 0, 1,
        computeType, algo,
    )  # fmt: skip


def create() -> int:
    """Return a new handle."""
    return 2


def destroy(handle: int) -> None:
    """Give a handle back."""


def setStream(handle: int, stream: int) -> None:
    """Set a handle's stream; the calls above use the current one, as CuPy's do."""


def setMathMode(handle: int, mode: int) -> None:
    """Choose how float32 is multiplied; here always in float32."""


def setPointerMode(handle: int, mode: int) -> None:
    """Say where alpha and beta lie; here always on the host."""
    if mode != CUBLAS_POINTER_MODE_HOST:
        raise ValueError("the stand-in reads alpha and beta from the host")
