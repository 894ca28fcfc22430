"""Ctrl-C, and the request to end, that wait for the end of a step."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def first_interrupt_calls(stop: Callable[[], None]) -> Iterator[None]:
    """In the block, the first SIGINT or SIGTERM calls ``stop``, and the next raises ``KeyboardInterrupt`` at once.

    Only the main thread can listen to signals: in others the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            raise KeyboardInterrupt
        stop()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
