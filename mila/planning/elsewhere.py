"""Memory that Mila does not allocate: constants, each with its source, beside the exact part and never in it."""

from __future__ import annotations

from mila.devices import DeviceId, DeviceType
from mila.devices.cuda_sizes import STAGING_BUFFERS, STAGING_BYTES
from mila.devices.products import PRODUCT_WORKSPACE_BYTES
from mila.kernels.cuda.family import SCRATCH_BYTES
from mila.planning.report import Elsewhere

#: Resident memory of a process that has imported Mila, and constructed and planned a training step of GPT-2 124M.
INTERPRETER_BYTES = 60_551_168
#: By how much that grows over the first large products of matrices.
BLAS_BYTES = 6_230_016

_MEASURED = "measured: CPython 3.11.7, NumPy 2.4.6, Linux, AMD EPYC (benchmarks.resident_baseline)"
_BLAS_SOURCE = "measured: OpenBLAS 0.3.31 on two threads (benchmarks.resident_baseline)"
_FIXED = "fixed by Mila"


def elsewhere_of(device: DeviceId) -> list[Elsewhere]:
    """What a process takes besides; of a CUDA device, memory of the host is named and not counted."""
    if device.type is DeviceType.CPU:
        return [
            _line("interpreter", "Interpreter and libraries", INTERPRETER_BYTES, _MEASURED),
            _line("blas", "Buffers of BLAS", BLAS_BYTES, _BLAS_SOURCE),
        ]
    return [
        _line("scratch", "Scratch of the device", SCRATCH_BYTES, _FIXED),
        _line("cublas", "Workspace of cuBLAS", PRODUCT_WORKSPACE_BYTES, f"{_FIXED}, through CUBLAS_WORKSPACE_CONFIG"),
        _line("cuda_context", "CUDA context and kernels", None, "depends on driver and GPU; not measured"),
        _host("staging", "Pinned staging, on the host", STAGING_BUFFERS * STAGING_BYTES, _FIXED),
        _host("interpreter", "Interpreter and libraries, on the host", None, "with CuPy; not measured"),
    ]


def known_bytes(lines: list[Elsewhere]) -> int:
    """What of it comes out of the budget, as far as it is known."""
    return sum(line.bytes for line in lines if line.is_counted and line.bytes is not None)


def _line(key: str, label: str, size: int | None, source: str) -> Elsewhere:
    return Elsewhere(key=key, label=label, bytes=size, source=source)


def _host(key: str, label: str, size: int | None, source: str) -> Elsewhere:
    return Elsewhere(key=key, label=label, bytes=size, source=source, is_counted=False)
