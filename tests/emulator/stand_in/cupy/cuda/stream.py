"""Streams and events, which run nothing until the host waits.

The null stream is ordered with every stream that was not made with ``non_blocking=True``, in both directions.
"""

from __future__ import annotations

import itertools
import time
import weakref
from typing import Any, ClassVar

from tests.emulator import streams
from tests.emulator.arguments import Usage

_numbers = itertools.count(1)


class _Queue(streams.Stream):
    """A queue that keeps the order of the null stream."""

    everyone: ClassVar[weakref.WeakSet[_Queue]] = weakref.WeakSet()
    null: ClassVar[_Queue]

    def __init__(self, name: str, blocking: bool) -> None:
        super().__init__(name)
        self.blocking = blocking
        _Queue.everyone.add(self)

    def enqueue(self, name: str, action: Any, usage: Usage) -> None:
        """Queue an operation after those that the null stream puts before it."""
        if self is _Queue.null:
            for other in _Queue.everyone:
                if other.blocking:
                    self.follow(other)
        elif self.blocking:
            self.follow(_Queue.null)
        super().enqueue(name, action, usage)


_Queue.null = _Queue("null", blocking=True)


class Stream:
    """A stream; inside its ``with`` statement it is the current one."""

    null: ClassVar[Stream]
    _current: ClassVar[list[Stream]] = []

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        number = 0 if null else next(_numbers)
        self.ptr = number
        self.queue = _Queue.null if null else _Queue(str(number), not non_blocking)

    def __enter__(self) -> Stream:
        Stream._current.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        Stream._current.pop()

    def use(self) -> Stream:
        """Make it the current stream."""
        Stream._current[-1:] = [self]
        return self

    @property
    def done(self) -> bool:
        """Whether everything queued has run."""
        return self.queue.done

    def synchronize(self) -> None:
        """Wait for everything queued."""
        self.queue.synchronize()

    def record(self, event: Event | None = None) -> Event:
        """Return an event of this point."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Order what is queued from now on after an event."""
        self.queue.wait(event.point)


Stream.null = Stream(null=True)


class Event:
    """A point of a stream, with the time at which the stream ran past it."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.point = streams.Event()
        self.seconds: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Set the event to the present end of a stream."""
        queue = current(stream).queue
        queue.enqueue("event", self._mark, Usage())
        queue.record(self.point)

    def _mark(self) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for everything before it."""
        self.point.synchronize()

    @property
    def done(self) -> bool:
        """Whether everything before it has run."""
        return self.point.done


def current(stream: Stream | None) -> Stream:
    """Return the stream, or where there is none the current one; no name of CuPy's."""
    if stream is not None:
        return stream
    return Stream._current[-1] if Stream._current else Stream.null


def get_current_stream(device_id: int = -1) -> Stream:
    """Return the current stream."""
    return current(None)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return the milliseconds between two events that the host has waited for."""
    if start_event.seconds is None or end_event.seconds is None:
        raise RuntimeError("cudaErrorNotReady: device not ready")
    return (end_event.seconds - start_event.seconds) * 1e3
