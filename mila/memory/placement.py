"""Offsets for buffers that are not all alive at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Steps of the schedule during which a buffer is alive, both ends included.
Interval = tuple[int, int]


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
    placed = _PlacedIntervals(sum(len(request.intervals) for request in requests))
    offsets = [0] * len(requests)
    total = 0
    for index in order:
        request = requests[index]
        offset = placed.lowest_gap(request)
        placed.add(request, offset)
        offsets[index] = offset
        total = max(total, offset + request.size)
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


class _PlacedIntervals:
    """Intervals already placed, as flat arrays: planning a model with thousands of buffers stays fast."""

    def __init__(self, capacity: int) -> None:
        self._start: NDArray[np.int64] = np.empty(capacity, np.int64)
        self._end: NDArray[np.int64] = np.empty(capacity, np.int64)
        self._low: NDArray[np.int64] = np.empty(capacity, np.int64)
        self._high: NDArray[np.int64] = np.empty(capacity, np.int64)
        self._count = 0

    def add(self, request: PlacementRequest, offset: int) -> None:
        for start, end in request.intervals:
            i = self._count
            self._start[i], self._end[i], self._low[i], self._high[i] = start, end, offset, offset + request.size
            self._count += 1

    def lowest_gap(self, request: PlacementRequest) -> int:
        n = self._count
        alive = np.zeros(n, np.bool_)
        for start, end in request.intervals:
            alive |= (self._start[:n] <= end) & (self._end[:n] >= start)
        low, high = self._low[:n][alive], self._high[:n][alive]
        if not len(low):
            return 0
        order = np.argsort(low, kind="stable")
        low, high = low[order], np.maximum.accumulate(high[order])
        begins = np.concatenate((np.zeros(1, np.int64), high[:-1]))
        fitting = np.flatnonzero(low - begins >= request.size)
        return int(begins[fitting[0]]) if len(fitting) else int(high[-1])
