"""Part: what the machine is, and what it can do at most."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np

import mila
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.kernels_part import copy_row
from benchmarks.gpu_check.operations import peak_of
from benchmarks.gpu_check.rows import Row
from benchmarks.gpu_check.settings import Settings
from benchmarks.machine import processor

#: What the driver says of itself on Linux.
_DRIVER = Path("/proc/driver/nvidia/version")
_PACKAGES = ("numpy", "ml_dtypes", "torch", "triton", "pytest")


def measure(settings: Settings) -> Iterator[Row]:
    """Versions, sizes, the copying rate and the rate of products."""
    yield Row("host", processor() or platform.machine())
    yield Row("versions", versions())
    bench = Bench(settings)
    yield from device_rows(bench)
    yield copy_row(bench.copy_rate())
    rate = bench.product_rate(np.dtype(settings.dtype))
    peak = peak_of(device_name(bench), rate)
    size = settings.product_size
    yield Row(
        f"product of {size} x {size} {settings.dtype} matrices",
        f"{rate / 1e12:,.0f} TFLOP/s",
        f"peak {peak.operations / 1e12:,.0f} TFLOP/s ({peak.source})",
        rate / peak.operations,
        figures={"operations_per_second": rate, "peak": peak.operations, "peak_source": peak.source},
    )


def versions() -> str:
    """Of Python and the packages that matter; none where a package is not installed."""
    import cupy

    found = [f"python {sys.version.split()[0]}", f"mila {mila.__version__}", f"cupy {cupy.__version__}"]
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


def device_name(bench: Bench) -> str:
    """The maker's name of the device."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(bench.device.device_id.index)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def device_rows(bench: Bench) -> Iterator[Row]:
    """What the device is, and which CUDA it runs with."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(bench.device.device_id.index)
    with cupy.cuda.Device(bench.device.device_id.index):
        free, total = cupy.cuda.runtime.memGetInfo()
    capability = f"{properties['major']}.{properties['minor']}"
    figures = {"capability": capability, "multiprocessors": bench.device.multiprocessor_count, "total_bytes": total}
    described = f"{capability}, {bench.device.multiprocessor_count} multiprocessors, {total / 2**30:.1f} GiB"
    yield Row("device", device_name(bench), described, figures=figures)
    driver, runtime = (
        f"{version // 1000}.{version % 1000 // 10}"
        for version in (cupy.cuda.runtime.driverGetVersion(), cupy.cuda.runtime.runtimeGetVersion())
    )
    yield Row("CUDA", f"driver {driver}, runtime {runtime}", f"{free / 2**30:.1f} GiB free")
    if _DRIVER.exists():
        yield Row("driver", _DRIVER.read_text(encoding="utf-8").splitlines()[0])
