"""What NumPy and Python allocate, as tracemalloc sees it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

#: NumPy files the bytes of its arrays, and nothing else, under a domain of their own.
ARRAYS = np.lib.tracemalloc_domain
#: What a call may allocate on the way: NumPy's iterator buffers (up to three of 8,192 elements), and small objects.
STEADY_BYTES_PER_THREAD = 120 * 1024
STEADY_BYTES = 120 * 1024


@contextmanager
def tracing() -> Iterator[None]:
    """Trace allocations in the block; garbage is collected before it and at no time in it."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def array_bytes() -> int:
    """Return the bytes of all arrays allocated since tracing began and not freed yet."""
    return sum(trace.size for trace in tracemalloc.take_snapshot().traces if trace.domain == ARRAYS)


def array_growth(call: Callable[[], Any]) -> int:
    """Return the bytes of arrays that ``call`` leaves behind; what it returns is kept alive meanwhile."""
    with tracing():
        before = array_bytes()
        kept = call()
        growth = array_bytes() - before
    del kept
    return growth


def object_growth(call: Callable[[], Any]) -> int:
    """Return the bytes of everything, Python's objects included, that ``call`` leaves behind."""
    with tracing():
        before = tracemalloc.get_traced_memory()[0]
        kept = call()
        growth = tracemalloc.get_traced_memory()[0] - before
    del kept
    return growth


def peak_growth(call: Callable[[], Any]) -> int:
    """Return how far memory rises above its level during ``call``."""
    with tracing():
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
