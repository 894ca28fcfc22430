"""What the buffers of a component occupy, in six fields."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from mila.memory.declarations import Category
from mila.memory.format import format_bytes, format_table

#: A range of bytes and what it holds: (first byte, one past the last, category).
ByteRange = tuple[int, int, Category]

#: A byte that holds different things at different times counts as the first of these that it ever is.
_PRECEDENCE = (Category.PARAMETER, Category.STATE, Category.GRADIENT)


@dataclass(frozen=True)
class MemoryStats:
    """Bytes on the compute device and on the host, by what they hold.

    "Device" is the memory of the component's backend: ordinary memory on the CPU, where all host fields are 0.
    """

    device_parameter_bytes: int = 0
    device_state_bytes: int = 0
    device_gradient_bytes: int = 0
    host_parameter_bytes: int = 0
    host_state_bytes: int = 0
    host_gradient_bytes: int = 0

    @classmethod
    def of_device_ranges(cls, ranges: Iterable[ByteRange]) -> MemoryStats:
        """The union of ``ranges``: every byte once."""
        totals = union_bytes(ranges)
        return cls(totals[Category.PARAMETER], totals[Category.STATE], totals[Category.GRADIENT])

    @property
    def total_device_bytes(self) -> int:
        """Bytes on the compute device."""
        return self.device_parameter_bytes + self.device_state_bytes + self.device_gradient_bytes

    @property
    def total_host_bytes(self) -> int:
        """Bytes of host memory that stage for the device."""
        return self.host_parameter_bytes + self.host_state_bytes + self.host_gradient_bytes

    @property
    def total_bytes(self) -> int:
        """All bytes."""
        return self.total_device_bytes + self.total_host_bytes

    def __add__(self, other: MemoryStats) -> MemoryStats:
        if not isinstance(other, MemoryStats):
            return NotImplemented
        return MemoryStats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def to_table(self) -> str:
        """A table of categories by device and host, with totals."""
        rows = [
            ("Parameters", self.device_parameter_bytes, self.host_parameter_bytes),
            ("State", self.device_state_bytes, self.host_state_bytes),
            ("Gradients", self.device_gradient_bytes, self.host_gradient_bytes),
            ("Total", self.total_device_bytes, self.total_host_bytes),
        ]
        text = [(name, format_bytes(device), format_bytes(host)) for name, device, host in rows]
        return format_table(("Category", "Device", "Host"), text, right=(1, 2))

    def __str__(self) -> str:
        return self.to_table()


def union_bytes(ranges: Iterable[ByteRange]) -> dict[Category, int]:
    """Bytes covered by ``ranges``, each byte once, under the category that takes precedence."""
    events: list[tuple[int, int, int]] = []
    for first, end, category in ranges:
        if end > first:
            rank = _PRECEDENCE.index(category)
            events += [(first, 1, rank), (end, -1, rank)]
    events.sort(key=lambda event: event[0])
    totals = dict.fromkeys(_PRECEDENCE, 0)
    open_ranges = [0] * len(_PRECEDENCE)
    previous = 0
    for position, change, rank in events:
        current = next((i for i, count in enumerate(open_ranges) if count), None)
        if current is not None:
            totals[_PRECEDENCE[current]] += position - previous
        open_ranges[rank] += change
        previous = position
    return totals
