"""What there is, and whether it is enough."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mila.devices import DeviceId, DeviceType, ExecutionContext
from mila.errors import DeviceError
from mila.planning.elsewhere import elsewhere_of, known_bytes, unknown_labels
from mila.planning.report import Outcome, Verdict
from mila.planning.request import Mode


@dataclass(frozen=True)
class Budget:
    """Bytes for everything, the known lines of elsewhere included.

    Attributes:
        size: how many, ``None`` where nobody knows.
        source: where that is from.
        elsewhere_bytes: what is gone before the first buffer.
        uncounted: what is gone as well, and nobody measured.
    """

    size: int | None
    source: str
    elsewhere_bytes: int
    uncounted: tuple[str, ...] = ()

    @classmethod
    def of(cls, device: DeviceId, mode: Mode, asked: int | None) -> Budget:
        """As asked, or what is free now on a device that is here."""
        lines = elsewhere_of(device, mode)
        elsewhere, uncounted = known_bytes(lines), unknown_labels(lines)
        if asked is not None:
            return cls(asked, "as asked", elsewhere, uncounted)
        if device.type is DeviceType.CPU:
            free = ExecutionContext("cpu").available_bytes()
            source = "free on this machine now" if free is not None else "this system does not say what is free"
            return cls(free, source, elsewhere, uncounted)
        try:
            free = ExecutionContext(device).available_bytes()
        except DeviceError:
            return cls(None, f"{device} is not here, and no budget was given", elsewhere, uncounted)
        if free is None:
            return cls(None, f"{device} does not say what is free", elsewhere, uncounted)
        return cls(free + elsewhere, f"free on {device} now, and what asking it took", elsewhere, uncounted)

    def in_mode(self, device: DeviceId, mode: Mode) -> Budget:
        """The same bytes, for another mode."""
        lines = elsewhere_of(device, mode)
        return replace(self, elsewhere_bytes=known_bytes(lines), uncounted=unknown_labels(lines))

    def needed(self, reserved_bytes: int) -> int:
        """A build, and what is known of elsewhere."""
        return reserved_bytes + self.elsewhere_bytes

    def left(self, reserved_bytes: int) -> int | None:
        """What is left beside a build; negative where it does not fit."""
        return None if self.size is None else self.size - self.elsewhere_bytes - reserved_bytes

    def outcome(self, reserved_bytes: int) -> Outcome:
        """Whether a build fits."""
        left = self.left(reserved_bytes)
        if left is None:
            return Outcome.UNKNOWN
        return Outcome.FITS if left >= 0 else Outcome.DOES_NOT_FIT

    def verdict(self, reserved_bytes: int) -> Verdict:
        """The same, with all its numbers."""
        return Verdict(
            outcome=self.outcome(reserved_bytes),
            needed_bytes=self.needed(reserved_bytes),
            budget_bytes=self.size,
            budget_source=self.source,
            left_bytes=self.left(reserved_bytes),
            uncounted=list(self.uncounted),
        )
