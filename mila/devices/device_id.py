"""Device types and identifiers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from mila.errors import DeviceError

_PATTERN = re.compile(r"(cpu|cuda)(?::(0|[1-9][0-9]{0,3}))?", re.ASCII)


class DeviceType(StrEnum):
    """Where arrays live and kernels run."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, order=True)
class DeviceId:
    """One device: its type and its index, 0 for the CPU."""

    type: DeviceType
    index: int = 0

    @classmethod
    def parse(cls, text: str | DeviceId) -> DeviceId:
        """Read ``"cpu"``, ``"cuda"`` or ``"cuda:0"``, in any case; anything else is a :class:`DeviceError`."""
        if isinstance(text, DeviceId):
            return text
        match = _PATTERN.fullmatch(text.lower()) if isinstance(text, str) else None
        if match is None:
            raise DeviceError(f"device: expected 'cpu' or 'cuda:<index>', got {text!r}")
        device = cls(DeviceType(match.group(1)), int(match.group(2) or 0))
        if device.type is DeviceType.CPU and device.index != 0:
            raise DeviceError(f"device: the CPU has index 0 only, got {text!r}")
        return device

    def __str__(self) -> str:
        return self.type.value if self.type is DeviceType.CPU else f"{self.type.value}:{self.index}"
