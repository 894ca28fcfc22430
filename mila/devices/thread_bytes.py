"""Bytes that no two threads share."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mila.kernels.signatures import Array


class ThreadBytes(threading.local):
    """As many bytes for each thread, allocated when it first asks and freed when it ends.

    Args:
        allocate: gives so many bytes.
        size: how many.
    """

    def __init__(self, allocate: Callable[[int], Array], size: int) -> None:
        self.bytes = allocate(size)
