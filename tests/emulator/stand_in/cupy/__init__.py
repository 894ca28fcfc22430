"""Stand-in for the part of CuPy that Mila touches; kernels run on the CPU, under the emulator.

The names are CuPy's, and so is what they do, with three exceptions that find mistakes. Streams run nothing until the
host waits. New memory holds 0xff. And arrays have no arithmetic: CuPy's own kernels are no part of what is to be
proven.
"""

from . import cuda
from ._array import (
    asarray,
    asnumpy,
    empty,
    empty_like,
    full,
    ndarray,
    ones,
    zeros,
    zeros_like,
)
from ._kernels import RawKernel, RawModule
from .cuda.memory import get_default_memory_pool, get_default_pinned_memory_pool

__version__ = "14.2.0+emulator"

__all__ = [
    "RawKernel",
    "RawModule",
    "asarray",
    "asnumpy",
    "cuda",
    "empty",
    "empty_like",
    "full",
    "get_default_memory_pool",
    "get_default_pinned_memory_pool",
    "ndarray",
    "ones",
    "zeros",
    "zeros_like",
]
