"""Devices, streams, memory and cuBLAS."""

from . import compiler, cublas, device, driver, memory, runtime, stream
from .device import Device, get_cublas_handle
from .memory import (
    Memory,
    MemoryPointer,
    MemoryPool,
    PinnedMemoryPointer,
    alloc,
    alloc_pinned_memory,
    set_allocator,
    using_allocator,
)
from .stream import Event, Stream, get_current_stream, get_elapsed_time


def is_available() -> bool:
    """Whether there is a device; the stand-in has one."""
    return True


def get_cuda_path() -> str | None:
    """Return where CUDA is installed; the emulator finds its headers itself."""
    return None


__all__ = [
    "Device",
    "Event",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "PinnedMemoryPointer",
    "Stream",
    "alloc",
    "alloc_pinned_memory",
    "compiler",
    "cublas",
    "device",
    "driver",
    "get_cublas_handle",
    "get_cuda_path",
    "get_current_stream",
    "get_elapsed_time",
    "is_available",
    "memory",
    "runtime",
    "set_allocator",
    "stream",
    "using_allocator",
]
