"""How much memory this machine, or the container around this process, can still give."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP_V2 = Path("/sys/fs/cgroup")
_CGROUP_V1 = Path("/sys/fs/cgroup/memory")


def available_host_bytes() -> int | None:
    """Bytes that an allocation can still take: the smaller of the free memory and the control group's headroom.

    ``None`` where the operating system does not say.
    """
    candidates = [value for value in (_free_memory(), _control_group_headroom()) if value is not None]
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


def _control_group_headroom() -> int | None:
    """Limit minus usage, where pages of files that the kernel can drop do not count as used."""
    for limit, usage, statistics, reclaimable in (
        (_CGROUP_V2 / "memory.max", _CGROUP_V2 / "memory.current", _CGROUP_V2 / "memory.stat", "inactive_file"),
        (
            _CGROUP_V1 / "memory.limit_in_bytes",
            _CGROUP_V1 / "memory.usage_in_bytes",
            _CGROUP_V1 / "memory.stat",
            "total_inactive_file",
        ),
    ):
        limit_bytes, usage_bytes = _read_integer(limit), _read_integer(usage)
        if limit_bytes is not None and usage_bytes is not None:
            return max(0, limit_bytes - usage_bytes + _read_statistic(statistics, reclaimable))
    return None


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
