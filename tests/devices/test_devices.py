"""Devices: identifiers, execution contexts, and how much memory there is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.components import LayerNorm, LayerNormConfig
from mila.devices import DeviceId, DeviceType, ExecutionContext
from mila.devices import memory as device_memory
from mila.devices.memory import available_host_bytes
from mila.devices.products import PRODUCT_WORKSPACE_BYTES, fix_workspace, product_workspace_bytes
from mila.errors import ConfigurationError, DeviceError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu", DeviceId(DeviceType.CPU)),
        ("CPU", DeviceId(DeviceType.CPU)),
        ("cpu:0", DeviceId(DeviceType.CPU)),
        ("cuda", DeviceId(DeviceType.CUDA, 0)),
        ("Cuda:3", DeviceId(DeviceType.CUDA, 3)),
        ("cuda:15", DeviceId(DeviceType.CUDA, 15)),
        (DeviceId(DeviceType.CUDA, 2), DeviceId(DeviceType.CUDA, 2)),
    ],
)
def test_a_device_is_read_and_written(text: Any, expected: DeviceId) -> None:
    device = DeviceId.parse(text)
    assert device == expected
    assert DeviceId.parse(str(device)) == device


@pytest.mark.parametrize(
    "text", ["", "gpu", "cpu:1", "cuda:", "cuda:-1", "cuda:01", "cuda: 1", "cuda:1 ", "cuda:٣", "cuda:99999", 3, None]
)
def test_what_is_no_device_is_refused(text: Any) -> None:
    with pytest.raises(DeviceError, match="device: "):
        DeviceId.parse(text)


def test_devices_print_as_they_are_written() -> None:
    assert str(DeviceId(DeviceType.CPU)) == "cpu"
    assert str(DeviceId(DeviceType.CUDA, 1)) == "cuda:1"
    assert repr(ExecutionContext("cpu", threads=2, seed=3)) == "ExecutionContext('cpu', threads=2, seed=3)"


def test_threads_are_at_least_one_and_by_default_what_the_process_may_use() -> None:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert ExecutionContext("cpu").threads == min(usable or 1, 8)
    assert ExecutionContext("cpu", threads=3).threads == 3
    for threads in (0, -1, 1.5, True):
        with pytest.raises(ConfigurationError, match="threads must be an integer of at least 1"):
            ExecutionContext("cpu", threads=threads)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 1.5, "x", True])
def test_a_seed_is_an_integer_of_at_least_0(seed: Any) -> None:
    with pytest.raises(ConfigurationError, match="a seed is an integer of at least 0"):
        ExecutionContext("cpu", seed=seed)
    with pytest.raises(ConfigurationError, match="norm: a seed is an integer of at least 0"):
        LayerNorm("norm", LayerNormConfig(normalized_dim=3), seed=seed)


def test_on_the_cpu_the_order_of_sums_is_always_the_same() -> None:
    ordered, unordered = ExecutionContext("cpu"), ExecutionContext("cpu", deterministic=False)
    assert ordered.deterministic
    assert not unordered.deterministic
    assert unordered.kernels is unordered.device.kernels
    assert repr(unordered).endswith(", deterministic=False)")
    assert "deterministic" not in repr(ordered)
    with pytest.raises(ConfigurationError, match="deterministic must be True or False, got 1"):
        ExecutionContext("cpu", deterministic=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (None, PRODUCT_WORKSPACE_BYTES),
        (":4096:8", 32 << 20),
        (":4096:2:16:8", (2 * 4096 + 8 * 16) << 10),
        (":0:0", 0),
        ("", None),
        ("4096:8", None),
        (":4096", None),
        (":x:1", None),
    ],
)
def test_the_workspace_of_products_is_what_the_user_asks_for(
    given: str | None, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if given is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", given)
    assert product_workspace_bytes() == size
    fix_workspace()
    assert product_workspace_bytes() == size
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == (":32768:1" if given is None else given)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def test_an_allocation_has_the_size_that_was_asked_for() -> None:
    block = ExecutionContext("cpu").allocate(1000)
    assert (block.dtype.name, block.nbytes) == ("uint8", 1000)


def test_bytes_in_use_are_not_known_where_no_pool_gives_them() -> None:
    for context in (ExecutionContext("cpu"), ExecutionContext.to_plan_with("cuda:0")):
        assert context.device.used_bytes() is None


def test_the_cpu_computes_networks_of_all_dtypes() -> None:
    context = ExecutionContext("cpu")
    supported = [context.supports(np.dtype(name)) for name in ("float32", "float64", "float16", "bfloat16", "int32")]
    assert supported == [True, True, True, True, False]
    context.synchronize()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/meminfo")
def test_the_memory_of_this_machine_is_known() -> None:
    available = available_host_bytes()
    assert available is not None
    assert 0 < available < 2**50


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that stands for the files that the operating system answers with."""
    monkeypatch.setattr(device_memory, "_MEMINFO", str(tmp_path / "meminfo"))
    monkeypatch.setattr(device_memory, "_OWN_CONTROL_GROUPS", str(tmp_path / "own"))
    monkeypatch.setattr(device_memory, "_CONTROL_GROUPS", str(tmp_path / "groups"))
    for folder in ("groups/user/session", "groups/memory/job"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="ascii")


def test_free_memory_is_the_limit_without_a_control_group(machine: Path) -> None:
    assert available_host_bytes() is None
    write(machine, meminfo="MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    assert available_host_bytes() == 1000 * 1024


def test_the_control_group_is_the_limit_where_it_is_smaller(machine: Path) -> None:
    write(machine, meminfo="MemAvailable: 1000 kB\n")
    groups = machine / "groups"
    write(groups, memory__max="max\n", memory__current="5\n")
    assert available_host_bytes() == 1024000
    write(groups, memory__max="500000\n", memory__current="200000\n")
    assert available_host_bytes() == 300000
    write(groups, memory__stat="anon 7\ninactive_file 1000\n")
    assert available_host_bytes() == 301000
    write(groups, memory__current="600000\n")
    assert available_host_bytes() == 0


def test_groups_within_groups_limit_too(machine: Path) -> None:
    write(machine, meminfo="MemAvailable: 1000 kB\n", own="0::/user/session\n")
    write(machine / "groups" / "user" / "session", memory__max="max\n", memory__current="100\n")
    write(machine / "groups" / "user", memory__max="700\n", memory__current="100\n")
    assert available_host_bytes() == 600
    write(machine / "groups" / "user" / "session", memory__max="300\n", memory__current="100\n")
    assert available_host_bytes() == 200


def test_the_older_kind_of_control_group(machine: Path) -> None:
    write(machine, own="4:cpu,cpuacct:/\n3:memory:/job\n")
    write(machine / "groups" / "memory" / "job", memory__limit_in_bytes="1000\n", memory__usage_in_bytes="400\n")
    assert available_host_bytes() == 600
