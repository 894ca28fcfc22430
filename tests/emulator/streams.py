"""Streams that run nothing until they must, and say so when an order is missing.

A launch or a copy that is queued runs when the host waits for its stream, or when something runs that is ordered after
it. So a result that is read too early is not there yet. And each operation says which memory it uses: two uses of the
same memory, of which one writes, must be ordered by a stream, an event or the host, or the later one is an error.

Order is kept by vector clocks. Every stream counts its operations; an operation's clock says, for each stream, how many
of its operations come before. Waiting for an event, or the host's waiting for a stream, takes the larger of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.emulator.arguments import Range, Usage
from tests.emulator.errors import StreamError

Clock = dict["Stream", int]


@dataclass(slots=True, eq=False)
class Operation:
    """Something queued on a stream: the ``time``-th of its stream."""

    name: str
    stream: Stream
    time: int
    clock: Clock
    usage: Usage
    action: Callable[[], None]


#: What the host has not waited for, in the order in which it was queued.
_outstanding: list[Operation] = []


@dataclass(slots=True)
class Event:
    """A point in a stream, for others to wait for."""

    clock: Clock | None = None

    def synchronize(self) -> None:
        """Let the host wait for it. An event that was never recorded has nothing to wait for."""
        if self.clock is not None:
            _let_host_wait(self.clock)

    @property
    def done(self) -> bool:
        """Whether the host has waited for all that comes before it, or there is nothing."""
        return self.clock is None or not _covered(self.clock)


class Stream:
    """A queue of operations that run in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._count = 0
        self._clock: Clock = {}

    def enqueue(self, name: str, action: Callable[[], None], usage: Usage) -> None:
        """Queue an operation.

        Raises:
            StreamError: If an operation of another stream uses the same memory and is not ordered before this one.
        """
        self._count += 1
        # Of what the host has waited for nothing needs to be remembered.
        waiting = {operation.stream for operation in _outstanding}
        clock = {stream: time for stream, time in self._clock.items() if stream in waiting} | {self: self._count}
        for other in _outstanding:
            if other.time > clock.get(other.stream, 0):
                _refuse_conflict(name, f"stream {self.name}", usage, other)
        self._clock = clock
        _outstanding.append(Operation(name, self, self._count, dict(clock), usage, action))

    def synchronize(self) -> None:
        """Let the host wait for everything queued so far.

        Raises:
            KernelError: If a kernel that was queued does something wrong.
        """
        _let_host_wait(self._clock)

    def record(self, event: Event | None = None) -> Event:
        """Return the event of this point."""
        event = event or Event()
        event.clock = dict(self._clock)
        return event

    def follow(self, other: Stream) -> None:
        """Order all that is queued from now on after all that is queued on another stream now."""
        self._clock = _joined(self._clock, other._clock)

    def wait(self, event: Event) -> None:
        """Order all that is queued from now on after the event."""
        if event.clock is not None:
            self._clock = _joined(self._clock, event.clock)

    @property
    def done(self) -> bool:
        """Whether the host has waited for everything queued so far."""
        return all(operation.stream is not self for operation in _outstanding)


def host_access(name: str, usage: Usage) -> None:
    """Check that the host may use memory now.

    Raises:
        StreamError: If queued work that the host has not waited for uses it too, and one of the two writes.
    """
    for other in _outstanding:
        _refuse_conflict(name, "the host", usage, other)


def synchronize_all() -> None:
    """Let the host wait for every stream."""
    everything: Clock = {}
    for operation in _outstanding:
        everything = _joined(everything, operation.clock)
    _let_host_wait(everything)


def _joined(first: Clock, second: Clock) -> Clock:
    return {stream: max(first.get(stream, 0), second.get(stream, 0)) for stream in {**first, **second}}


def _let_host_wait(clock: Clock) -> None:
    """Run what comes before a clock, in the order of queueing, which every clock allows."""
    for operation in _covered(clock):
        _outstanding.remove(operation)
        operation.action()


def _covered(clock: Clock) -> list[Operation]:
    """Return what is outstanding and comes before a clock."""
    return [operation for operation in _outstanding if operation.time <= clock.get(operation.stream, 0)]


def _refuse_conflict(name: str, side: str, usage: Usage, other: Operation) -> None:
    for mine, theirs, what in (
        (usage.writes, other.usage.writes, "both write"),
        (usage.reads, other.usage.writes, "the second writes"),
        (usage.writes, other.usage.reads, "the first writes"),
    ):
        overlap = _first_overlap(mine, theirs)
        if overlap is not None:
            raise StreamError(
                f"{name} on {side} and {other.name} on stream {other.stream.name} use the same {overlap} bytes, "
                f"{what}, and nothing orders them: wait for an event or synchronise the stream"
            )


def _first_overlap(first: Iterable[Range], second: Iterable[Range]) -> int | None:
    for begin, end in first:
        for other_begin, other_end in second:
            overlap = min(end, other_end) - max(begin, other_begin)
            if overlap > 0:
                return overlap
    return None
