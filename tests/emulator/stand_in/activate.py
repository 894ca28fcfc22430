"""Make ``import cupy`` find the stand-in. That is always asked for, never a fallback where CuPy is missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


@contextmanager
def stand_in_cupy() -> Iterator[Any]:
    """Yield the stand-in, which is ``cupy`` for every import inside the ``with`` statement.

    Modules that have imported a real CuPy before keep it.
    """
    before = _remove_modules()
    sys.path.insert(0, str(FOLDER))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module("cupy")
    finally:
        sys.path.remove(str(FOLDER))
        _remove_modules()
        sys.modules.update(before)


def _remove_modules() -> dict[str, Any]:
    names = [name for name in sys.modules if name.partition(".")[0] == "cupy"]
    return {name: sys.modules.pop(name) for name in names}
