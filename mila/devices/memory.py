"""How much memory this machine, or the container around this process, can still give."""

from __future__ import annotations

import os
from collections.abc import Iterator

_MEMINFO = "/proc/meminfo"
_OWN_CONTROL_GROUPS = "/proc/self/cgroup"
_CONTROL_GROUPS = "/sys/fs/cgroup"
#: More than any of these files has.
_MOST_BYTES = 1 << 16
#: Names of limit, usage and of the pages of files that the kernel can drop: version 2, then version 1.
_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_host_bytes() -> int | None:
    """Bytes that an allocation can still take: the smaller of the free memory and the control groups' headroom.

    ``None`` where the operating system does not say.
    """
    candidates = [value for value in (_free_memory(), *_headrooms()) if value is not None]
    return min(candidates) if candidates else None


def _free_memory() -> int | None:
    found = _value_of("MemAvailable:", _read(_MEMINFO))
    return None if found is None else found * 1024


def _headrooms() -> Iterator[int | None]:
    """What each control group around this process still allows: limits hold at every level."""
    for controller, limit, usage, reclaimable in _FILES:
        for group in _own_groups(controller):
            folder = f"{_CONTROL_GROUPS}/{controller}/{group}"
            limit_bytes = _read_integer(f"{folder}/{limit}")
            if limit_bytes is None:
                continue
            usage_bytes = _read_integer(f"{folder}/{usage}")
            if usage_bytes is not None:
                dropped = _value_of(reclaimable, _read(f"{folder}/memory.stat")) or 0
                yield max(0, limit_bytes - usage_bytes + dropped)


def _own_groups(controller: str) -> list[str]:
    """Paths, relative to the mount, of this process's group and of those around it; the mount itself is one."""
    for line in _read(_OWN_CONTROL_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            parts = [part for part in path.split("/") if part not in ("", "..")]
            return [""] + ["/".join(parts[: i + 1]) for i in range(len(parts))]
    return [""]


def _read_integer(path: str) -> int | None:
    try:
        return int(_read(path))
    except ValueError:  # "max" means that there is no limit
        return None


def _value_of(key: str, text: str) -> int | None:
    """The number behind a word that begins a line."""
    for line in text.splitlines():
        if line.startswith(key) and line.split()[0] == key:
            return int(line.split()[1])
    return None


def _read(path: str) -> str:
    """The text of a file, empty where it cannot be read. Every build asks, and pathlib takes longer than the rest."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(file, _MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)
