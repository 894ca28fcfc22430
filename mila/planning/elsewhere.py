"""Memory that Mila does not allocate: constants, each with its source, beside the exact part and never in it."""

from __future__ import annotations

from collections.abc import Sequence

from mila.devices import DeviceId, DeviceType
from mila.devices.cuda_sizes import STAGING_BUFFERS, STAGING_BYTES
from mila.devices.products import product_workspace_bytes
from mila.kernels.cuda.family import SCRATCH_BYTES
from mila.planning.report import Elsewhere
from mila.planning.request import Mode

#: Resident memory of a process that has imported Mila, and constructed and planned a training step of GPT-2 124M.
INTERPRETER_BYTES = 60_653_568
#: By how much that grows over products of square matrices; in training, also over the tall one of a head's gradient.
BLAS_BYTES = {Mode.INFERENCE: 6_262_784, Mode.TRAINING: 65_363_968}

_MEASURED = "measured: CPython 3.11.7, NumPy 2.4.6, Linux, AMD EPYC (benchmarks.resident_baseline)"
_BLAS_SOURCE = "measured: OpenBLAS 0.3.31 on two threads (benchmarks.resident_baseline); each more may take 32 MiB"
_FIXED = "fixed by Mila"
#: Of another program, and of a GPU that is not named: no number to add up.
_CONTEXT_SOURCE = (
    "depends on driver and GPU; not measured here; with PyTorch 1.13 about 270 MiB were reported, the GPU not named "
    "(github.com/pytorch/pytorch/pull/86509)"
)


def elsewhere_of(device: DeviceId, mode: Mode) -> list[Elsewhere]:
    """What a process takes besides; of a CUDA device, memory of the host is named and not counted."""
    if device.type is DeviceType.CPU:
        return [
            _line("interpreter", "Interpreter and libraries", INTERPRETER_BYTES, _MEASURED),
            _line("blas", "Buffers of BLAS", BLAS_BYTES[mode], _BLAS_SOURCE),
        ]
    return [
        _line("scratch", "Scratch of the device", SCRATCH_BYTES, _FIXED),
        _line(
            "cublas",
            "Workspace of cuBLAS",
            product_workspace_bytes(),
            "what CUBLAS_WORKSPACE_CONFIG says, or Mila sets",
        ),
        _line("cuda_context", "CUDA context and kernels", None, _CONTEXT_SOURCE),
        _host("staging", "Pinned staging, on the host", STAGING_BUFFERS * STAGING_BYTES, _FIXED),
        _host("interpreter", "Interpreter and libraries, on the host", None, "with CuPy; not measured"),
    ]


def known_bytes(lines: list[Elsewhere]) -> int:
    """What of it comes out of the budget, as far as it is known."""
    return sum(line.bytes for line in lines if line.is_counted and line.bytes is not None)


def unknown_labels(lines: list[Elsewhere]) -> tuple[str, ...]:
    """What comes out of the budget as well, and nobody measured."""
    return tuple(line.label for line in lines if line.is_counted and line.bytes is None)


def without(uncounted: Sequence[str]) -> str:
    """``"without CUDA context and kernels (not measured)"``; nothing where all that counts was measured."""
    return f"without {', '.join(uncounted)} (not measured)" if uncounted else ""


def _line(key: str, label: str, size: int | None, source: str) -> Elsewhere:
    return Elsewhere(key=key, label=label, bytes=size, source=source)


def _host(key: str, label: str, size: int | None, source: str) -> Elsewhere:
    return Elsewhere(key=key, label=label, bytes=size, source=source, is_counted=False)
