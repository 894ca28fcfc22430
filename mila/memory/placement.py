"""Offsets for buffers that are not all alive at once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

#: Steps of the schedule during which a buffer is alive, both ends included.
Interval = tuple[int, int]
#: Ranges of bytes that do not touch, in order: the first byte of each and one past its last, in turns.
Ranges = list[int]
#: How many steps, or groups of steps, make a group.
_GROUP = 8


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A buffer to place: aligned size in bytes, when it lives, and its name for a deterministic order."""

    size: int
    intervals: tuple[Interval, ...]
    name: tuple[str, str]


def place_by_lifetime(requests: Sequence[PlacementRequest]) -> tuple[list[int], int]:
    """Greedy by size: the largest first, each at the lowest offset that no buffer alive at the same time occupies.

    Returns the offset of each request and the size of the region. Ties go by first step, then by name, so that equal
    requests are placed alike on every machine.
    """
    order = sorted(range(len(requests)), key=lambda i: (-requests[i].size, requests[i].intervals[0], requests[i].name))
    taken = _TakenBytes(requests)
    offsets = [0] * len(requests)
    total = 0
    for index in order:
        request = requests[index]
        if request.size:
            offsets[index] = taken.take_lowest(request)
            total = max(total, offsets[index] + request.size)
    return offsets, total


def place_one_after_another(requests: Sequence[PlacementRequest]) -> tuple[list[int], int]:
    """The layout in which no two buffers share a byte."""
    offsets = []
    total = 0
    for request in requests:
        offsets.append(total)
        total += request.size
    return offsets, total


def fullest_step(requests: Sequence[PlacementRequest]) -> tuple[int, int]:
    """The step at which most bytes are alive, and how many: a lower bound of any placement."""
    changes: dict[int, int] = {}
    for request in requests:
        for start, end in request.intervals:
            changes[start] = changes.get(start, 0) + request.size
            changes[end + 1] = changes.get(end + 1, 0) - request.size
    best_step, best, alive = 0, 0, 0
    for step in sorted(changes):
        alive += changes[step]
        if alive > best:
            best_step, best = step, alive
    return best_step, best


class _Groups:
    """Ranges of bytes by groups of successive steps: single ones, :data:`_GROUP` of those, up to all steps."""

    def __init__(self, steps: int) -> None:
        self._levels: list[list[Ranges]] = [[[] for _ in range(steps)]]
        while len(self._levels[-1]) > 1:
            self._levels.append([[] for _ in range(-(-len(self._levels[-1]) // _GROUP))])
        self._largest_first = [(_GROUP**level, groups) for level, groups in enumerate(self._levels)][::-1]

    def around(self, step: int) -> list[Ranges]:
        """Those of the groups that a step is in, the largest group first."""
        return [groups[step // size] for size, groups in self._largest_first]

    def inside(self, first: int, end: int) -> list[Ranges]:
        """Those of the fewest groups that make up the steps from ``first`` to the one before ``end``."""
        found: list[Ranges] = []
        for groups in self._levels:
            larger, larger_end = -(-first // _GROUP), end // _GROUP
            if larger >= larger_end:
                return found + groups[first:end]
            found += groups[first : larger * _GROUP]
            found += groups[larger_end * _GROUP : end]
            first, end = larger, larger_end
        return found


class _TakenBytes:
    """Which bytes are taken when, so that a buffer is compared with few ranges instead of all buffers.

    Two intervals have a step in common if one is alive when the other begins, or begins while the other is alive. A
    step is in few groups, and an interval consists of few. Buffers that lie side by side are one range, and most do: a
    group has few ranges.

    Args:
        requests: all that will be placed; steps at which none of them begins do not count.
    """

    def __init__(self, requests: Sequence[PlacementRequest]) -> None:
        self._steps = sorted({start for request in requests for start, _ in request.intervals})
        self._fullest = bisect_left(self._steps, fullest_step(requests)[0])
        self._begun = _Groups(len(self._steps))  # at one of the steps of a group
        self._alive = _Groups(len(self._steps))  # during all of the steps of a group

    def take_lowest(self, request: PlacementRequest) -> int:
        """Take bytes at the lowest offset at which they are free during all of the intervals; returns the offset."""
        conflicting: list[Ranges] = []
        noted: list[Ranges] = []
        for start, last in request.intervals:
            first, end = bisect_left(self._steps, start), bisect_right(self._steps, last)
            if first <= self._fullest < end:  # what is free then is free at the other steps too, nearly always
                conflicting += self._alive.around(self._fullest)
            conflicting += self._alive.around(first)
            conflicting += self._begun.inside(first, end)
            noted += self._begun.around(first)
            noted += self._alive.inside(first, end)
        offset = _lowest_gap(conflicting, request.size)
        _add(noted, offset, offset + request.size)
        return offset


def _lowest_gap(conflicting: Sequence[Ranges], size: int) -> int:
    """The lowest offset at which ``size`` bytes are in none of the ranges."""
    offset, is_settled = 0, False
    while not is_settled:
        is_settled = True
        for ranges in conflicting:
            if not ranges or ranges[-1] <= offset:
                continue
            i = bisect_right(ranges, offset)
            if i % 2 or ranges[i] < offset + size:  # it begins in a range, or ends in one
                offset, is_settled = ranges[i if i % 2 else i + 1], False
    return offset


def _add(noted: Sequence[Ranges], first: int, end: int) -> None:
    """Join a range, in each of several places, with all that it touches."""
    for ranges in noted:
        if ranges and ranges[-1] == first:  # as in most of them: no need to look for it
            ranges[-1] = end
            continue
        i, j = bisect_left(ranges, first), bisect_right(ranges, end)
        ranges[i:j] = ([] if i % 2 else [first]) + ([] if j % 2 else [end])
