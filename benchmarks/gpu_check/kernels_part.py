"""Part: what share of the device's copying rate the kernels reach that memory bounds."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_check.bench import Arrays, Bench, Call
from benchmarks.gpu_check.kernel_cases import kernel_cases
from benchmarks.gpu_check.rows import Row
from benchmarks.gpu_check.settings import Settings

#: The least share of the copying rate that is wanted.
GOAL = 0.85


def measure(settings: Settings) -> Iterator[Row]:
    """The copying rate, and each kernel in each dtype."""
    bench = Bench(settings)
    rate = bench.copy_rate()
    yield copy_row(rate)
    for dtype in settings.kernel_dtypes:
        arrays = Arrays(bench, dtype)
        for number, build in enumerate(kernel_cases(settings.batch_ids)):
            call = None
            try:
                call = build(arrays)
                yield share_row(call, bench.milliseconds(call.run), rate)
            except Exception as error:  # one kernel that does not run says nothing of the others
                what = f"case {number} {dtype}" if call is None else call.what
                yield Row(what, f"failed: {type(error).__name__}: {error}", goal=GOAL)


def copy_row(rate: float) -> Row:
    """The copying rate, in bytes per second."""
    return Row("copy on the device", f"{rate / 1e9:,.0f} GB/s", figures={"bytes_per_second": rate})


def share_row(call: Call, milliseconds: float, rate: float) -> Row:
    """A call that took so long."""
    reached = 1e3 * call.moved_bytes / milliseconds
    return Row(
        call.what,
        f"{reached / 1e9:,.0f} GB/s",
        f"{call.moved_bytes / 1e6:,.0f} MB in {milliseconds:.3f} ms; copy {rate / 1e9:,.0f} GB/s",
        reached / rate,
        GOAL,
        {"milliseconds": milliseconds, "moved_bytes": call.moved_bytes, "bytes_per_second": reached},
    )
