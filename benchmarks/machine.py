"""What a figure depends on besides the code: processor, libraries, threads, and the memory of this process."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from pathlib import Path

#: Prefix and suffix of OpenBLAS's exported names: NumPy's wheels, 64-bit integer builds, distributions.
_NAME_FORMS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


def memory_line(key: str) -> int:
    """Bytes in a line of ``/proc/self/status``: ``VmRSS`` is the resident memory, ``VmHWM`` its peak; 0 if unknown."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), 0)


def openblas() -> dict[str, str | int]:
    """Path, kernel family and threads of the OpenBLAS that is loaded in this process; empty if there is none."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return {}
    for path in sorted({line.split()[-1] for line in lines if "openblas" in line}):
        library = ctypes.CDLL(path)
        for form in _NAME_FORMS:
            core, threads = (getattr(library, form.format(name), None) for name in ("get_corename", "get_num_threads"))
            if core is not None and threads is not None:
                core.restype = ctypes.c_char_p
                return {"library": Path(path).name, "core": core().decode(), "threads": threads()}
    return {}


def openblas_environment() -> dict[str, str]:
    """The variables that OpenBLAS read when it was loaded."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("OPENBLAS_")}


def processor() -> str:
    """The processor's own name, where the operating system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def markdown_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table in Markdown, all columns but the first aligned to the right."""
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
