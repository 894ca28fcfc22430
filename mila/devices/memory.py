"""How much memory this machine, or the container around this process, can still give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_OWN_CONTROL_GROUPS = Path("/proc/self/cgroup")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
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
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _headrooms() -> Iterator[int | None]:
    """What each control group around this process still allows: limits hold at every level."""
    for controller, limit, usage, reclaimable in _FILES:
        for group in _own_groups(controller):
            folder = _CONTROL_GROUPS / controller / group
            limit_bytes, usage_bytes = _read_integer(folder / limit), _read_integer(folder / usage)
            if limit_bytes is not None and usage_bytes is not None:
                dropped = _read_statistic(folder / "memory.stat", reclaimable)
                yield max(0, limit_bytes - usage_bytes + dropped)


def _own_groups(controller: str) -> list[str]:
    """Paths, relative to the mount, of this process's group and of those around it; the mount itself is one."""
    try:
        lines = _OWN_CONTROL_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ["."]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            parts = [part for part in path.split("/") if part not in ("", "..")]
            return ["."] + ["/".join(parts[: i + 1]) for i in range(len(parts))]
    return ["."]


def _read_integer(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max" means that there is no limit
        return None


def _read_statistic(path: Path, key: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [key]), 0)
