"""Clocks of devices, and medians of calls.

A clock marks points of a device's work; the time between two marks is the device's own, not the host's. Before each
call that counts, a large buffer is written: then nothing of the call's arrays is left in the cache, and the host, which
only queues, is ahead of the device when the call begins.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

Run = Callable[[], object]


class Clock(Protocol):
    """Marks of one device's work, in order."""

    def flush(self) -> None:
        """Push everything else out of the cache."""

    def mark(self) -> Any:
        """The present end of what is queued."""

    def milliseconds(self, start: Any, stop: Any) -> float:
        """Between two marks that the device has passed."""

    def synchronize(self) -> None:
        """Wait for everything queued."""


class MilaClock:
    """Events of CuPy on the stream of Mila's device.

    Args:
        device: ``mila.devices.cuda.CudaDevice``.
        flush_bytes: what a flush writes.
    """

    def __init__(self, device: Any, flush_bytes: int) -> None:
        self._device = device
        self._buffer = device.allocate(flush_bytes)

    def flush(self) -> None:
        """Write the buffer."""
        self._device.set_bytes(self._buffer, 0)

    def mark(self) -> Any:
        """An event."""
        import cupy

        with cupy.cuda.Device(self._device.device_id.index):
            event = cupy.cuda.Event()
        event.record(self._device.stream)
        return event

    def milliseconds(self, start: Any, stop: Any) -> float:
        """By the device's clock."""
        import cupy

        return float(cupy.cuda.get_elapsed_time(start, stop))

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._device.synchronize()


class TorchClock:
    """Events of PyTorch on its current stream."""

    def __init__(self, torch: Any, device: str, flush_bytes: int) -> None:
        self._torch = torch
        self._buffer = torch.empty(flush_bytes, dtype=torch.uint8, device=device)

    def flush(self) -> None:
        """Write the buffer."""
        self._buffer.zero_()

    def mark(self) -> Any:
        """An event."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def milliseconds(self, start: Any, stop: Any) -> float:
        """By the device's clock."""
        return float(start.elapsed_time(stop))

    def synchronize(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize()


class HostClock:
    """For work that the host itself does, at once."""

    def flush(self) -> None:
        """Nothing."""

    def mark(self) -> float:
        """Now, in seconds."""
        return time.perf_counter()

    def milliseconds(self, start: float, stop: float) -> float:
        """Of the host's clock."""
        return 1e3 * (stop - start)

    def synchronize(self) -> None:
        """Nothing: everything has already happened."""


def torch_clock(torch: Any, device: str, flush_bytes: int) -> Clock:
    """The clock of PyTorch's device."""
    return TorchClock(torch, device, flush_bytes) if torch.device(device).type == "cuda" else HostClock()


def median_milliseconds(clock: Clock, run: Run, warmups: int, rounds: int, flush: bool = True) -> float:
    """The median of ``rounds`` calls after ``warmups`` that do not count; all are queued before the host waits."""
    for _ in range(warmups):
        run()
    marks = []
    for _ in range(rounds):
        if flush:
            clock.flush()
        start = clock.mark()
        run()
        marks.append((start, clock.mark()))
    clock.synchronize()
    return statistics.median(clock.milliseconds(start, stop) for start, stop in marks)
