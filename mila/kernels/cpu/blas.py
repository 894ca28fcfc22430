"""Control over the number of threads of the OpenBLAS library that NumPy loaded.

NumPy offers no call for it, so the library is asked itself, through ``ctypes``; a switch takes under a microsecond.
Where NumPy runs on another BLAS (Accelerate on macOS, MKL, a static build), the controls do nothing.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

#: Decorations of the exported names, by build: NumPy's wheels, 64-bit integer builds, distributions.
_NAME_FORMS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


class BlasThreads:
    """Process-wide number of BLAS threads; use ``blas_threads()``, there is one BLAS in a process.

    ``begin`` and ``end`` bracket a region with another number. Regions nest, and may overlap between user threads: the
    smallest number of all open regions holds, and when the last one ends, the number from before the first returns.
    """

    def __init__(self, get: Callable[[], int] | None, put: Callable[[int], None] | None) -> None:
        """Wrap the library's two functions, or nothing at all."""
        self._get = get
        self._put = put
        self._lock = threading.Lock()
        self._regions: list[int] = []
        self._outside = 0
        self._current = 0
        if get is not None and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    @property
    def controlled(self) -> bool:
        """Whether a BLAS library was found whose threads can be set."""
        return self._get is not None

    @property
    def count(self) -> int:
        """The number of threads now; 0 where it is not known."""
        return 0 if self._get is None else self._get()

    def begin(self, count: int) -> int:
        """Open a region of at most ``count`` threads and return what ``end`` has to be given."""
        if self._get is not None:
            with self._lock:
                is_first = not self._regions
                if is_first:
                    self._outside = self._current = self._get()
                self._regions.append(count)
                if is_first or count < self._current:
                    self._apply(count)
        return count

    def end(self, region: int) -> None:
        """Close a region; one that a fork has closed already may be closed again."""
        if self._get is not None:
            with self._lock:
                if region in self._regions:
                    self._regions.remove(region)
                    if region == self._current or not self._regions:
                        self._apply(min(self._regions, default=self._outside))

    def _apply(self, count: int) -> None:
        if count != self._current and self._put is not None:
            self._put(count)
            self._current = count

    def _after_fork(self) -> None:
        """Leave the regions of the parent's other threads, which do not exist in the child."""
        self._lock = threading.Lock()
        if self._regions:
            self._regions.clear()
            self._apply(self._outside)


@functools.cache
def blas_threads() -> BlasThreads:
    """The control of the BLAS library that NumPy uses in this process."""
    for path in _mapped_libraries():
        try:
            library = ctypes.PyDLL(path)
        except OSError:
            continue
        for form in _NAME_FORMS:
            get = getattr(library, form.format("get_num_threads"), None)
            put = getattr(library, form.format("set_num_threads"), None)
            if get is not None and put is not None:
                get.argtypes, get.restype = (), ctypes.c_int
                put.argtypes, put.restype = (ctypes.c_int,), None
                return BlasThreads(get, put)
    return BlasThreads(None, None)


def _mapped_libraries() -> Iterator[str]:
    """Paths of the OpenBLAS libraries mapped into this process, NumPy's own first (SciPy may have brought another)."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    paths = {line.split(maxsplit=5)[5] for line in lines if "openblas" in line and len(line.split(maxsplit=5)) == 6}
    bundled = str(Path(np.__file__).parent.with_name("numpy.libs"))
    yield from sorted(paths, key=lambda path: (not path.startswith(bundled), path))
