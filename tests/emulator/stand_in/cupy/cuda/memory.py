"""Device memory and the pool that counts it as CuPy's does: in units of 512 bytes."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.emulator import engine
from tests.emulator.arguments import Usage

from . import runtime
from .stream import Stream, current

ALIGNMENT = 512


class OutOfMemoryError(MemoryError):
    """The device, or the limit of a pool, has too little."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        text = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(f"{text}, limit set to: {limit:,} bytes)." if limit else f"{text}).")


class Memory:
    """Memory of its own, between guard pages; its use after it was given back is found."""

    def __init__(self, size: int) -> None:
        free, total = runtime.memGetInfo()
        if size > free:
            raise OutOfMemoryError(size, total - free)
        self.size = size
        self.ptr = engine.allocate(size, ALIGNMENT)
        runtime.change_allocated(size)
        weakref.finalize(self, _give_back, self.ptr, size)


def _give_back(address: int, size: int) -> None:
    engine.free(address)
    runtime.change_allocated(-size)


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset

    #: The device that the memory is on.
    device_id = 0

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def __int__(self) -> int:
        return self.ptr

    def memset_async(self, value: int, size: int, stream: Stream | None = None) -> None:
        """Set bytes, in the order of a stream."""
        usage = Usage(writes=((self.ptr, self.ptr + size),))
        self._queue("memset", lambda: ctypes.memset(self.ptr, value, size), usage, stream)

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Stream | None = None) -> None:
        """Copy bytes of the device."""
        usage = Usage(reads=((src.ptr, src.ptr + size),), writes=((self.ptr, self.ptr + size),))
        self._queue("copy on the device", lambda: ctypes.memmove(self.ptr, src.ptr, size), usage, stream)

    def copy_from_host_async(self, mem: Any, size: int, stream: Stream | None = None) -> None:
        """Copy bytes of the host from an address, which are read when the stream runs."""
        address = mem if isinstance(mem, int) else mem.value
        usage = Usage(writes=((self.ptr, self.ptr + size),))
        self._queue("copy to the device", lambda: ctypes.memmove(self.ptr, address, size), usage, stream)

    def copy_to_host_async(self, mem: Any, size: int, stream: Stream | None = None) -> None:
        """Copy bytes to an address of the host, which are there when the stream has run."""
        address = mem if isinstance(mem, int) else mem.value
        usage = Usage(reads=((self.ptr, self.ptr + size),))
        self._queue("copy to the host", lambda: ctypes.memmove(address, self.ptr, size), usage, stream)

    def _queue(self, name: str, action: Callable[[], Any], usage: Usage, stream: Stream | None) -> None:
        kept_alive = self  # until the copy has run
        current(stream).queue.enqueue(name, lambda: (action(), kept_alive)[0], usage)


class MemoryPool:
    """Counts what was allocated through it. Freed memory is not handed out again, so that its use is found."""

    def __init__(self, allocator: Any = None) -> None:
        self._used = 0
        self._limit = 0

    def malloc(self, size: int) -> MemoryPointer:
        """Return new memory."""
        rounded = -(-size // ALIGNMENT) * ALIGNMENT
        if self._limit and self._used + rounded > self._limit:
            raise OutOfMemoryError(rounded, self._used, self._limit)
        memory = Memory(size)
        self._used += rounded
        weakref.finalize(memory, self._forget, rounded)
        return MemoryPointer(memory, 0)

    def _forget(self, nbytes: int) -> None:
        self._used -= nbytes

    def used_bytes(self) -> int:
        """Return what is in use."""
        return self._used

    def total_bytes(self) -> int:
        """Return what is in use or kept for later; nothing is kept."""
        return self._used

    def free_bytes(self) -> int:
        """Return what is kept for later."""
        return 0

    def n_free_blocks(self) -> int:
        """Return how many pieces are kept for later."""
        return 0

    def free_all_blocks(self, stream: Stream | None = None) -> None:
        """Give back what is kept for later."""

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Allow no more than that many bytes, or that share of the device; 0: no limit."""
        self._limit = int(fraction * runtime.TOTAL_BYTES) if fraction is not None else size or 0

    def get_limit(self) -> int:
        """Return the limit in bytes; 0: none."""
        return self._limit


_default_pool = MemoryPool()
_allocators: list[Callable[[int], MemoryPointer]] = [_default_pool.malloc]


def get_default_memory_pool() -> MemoryPool:
    """Return the pool of all allocations that ask for no other."""
    return _default_pool


def alloc(size: int) -> MemoryPointer:
    """Return memory from the current allocator."""
    return _allocators[-1](size)


def _plain(size: int) -> MemoryPointer:
    return MemoryPointer(Memory(size), 0)


def set_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> None:
    """Take memory from an allocator from now on; None: without a pool."""
    _allocators[-1] = allocator or _plain


@contextmanager
def using_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> Iterator[None]:
    """Take memory from an allocator inside the ``with`` statement."""
    _allocators.append(allocator or _plain)
    try:
        yield
    finally:
        _allocators.pop()


class PinnedMemoryPointer(bytearray):
    """Memory of the host that copies may use while a stream runs."""

    @property
    def ptr(self) -> int:
        """Its address."""
        return ctypes.addressof((ctypes.c_char * len(self)).from_buffer(self))


class PinnedMemoryPool:
    """Where pinned memory comes from; nothing is kept for later."""

    def free_all_blocks(self) -> None:
        """Give back what is kept for later."""

    def n_free_blocks(self) -> int:
        """Return how many pieces are kept for later."""
        return 0


_pinned_pool = PinnedMemoryPool()


def get_default_pinned_memory_pool() -> PinnedMemoryPool:
    """Return the pool of pinned memory."""
    return _pinned_pool


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    """Return memory of the host, every byte 0xff."""
    return PinnedMemoryPointer(b"\xff" * size)
