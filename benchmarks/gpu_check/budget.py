"""Time: of the whole run, and of each part of it."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


class Budget:
    """Seconds that a run may take, from now on.

    Args:
        seconds: of the whole run.
        clock: gives seconds.
    """

    #: A part that would get less is not worth starting: imports and the first kernels alone take longer.
    LEAST_SECONDS = 10.0

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def remaining(self) -> float:
        """Seconds that are left; never below 0."""
        return max(0.0, self._end - self._clock())

    def grant(self, limit: float) -> float | None:
        """Seconds for a part that wants at most ``limit``, or ``None`` where too little is left to start it."""
        remaining = self.remaining()
        return None if remaining < min(limit, self.LEAST_SECONDS) else min(limit, remaining)
