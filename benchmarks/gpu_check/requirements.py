"""What must be importable, and how to carry what is missing to a machine without a network. Standard library only."""

from __future__ import annotations

import importlib
import platform
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Of the dependencies that ``pyproject.toml`` names, those that come with Mila's models; others serve the command line.
NEEDED = ("numpy", "ml_dtypes", "pydantic", "safetensors")
#: Without these a part is left out, or a comparison.
OPTIONAL = {
    "pytest": "the tests do not run",
    "hypothesis": "the tests do not run",
    "torch": "nothing is compared with PyTorch",
}

Import = Callable[[str], Any]


@dataclass(frozen=True)
class Missing:
    """A package that could not be imported, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Check:
    """What the imports gave: why nothing can run (or ``None``), remarks, and the optional packages that are missing."""

    obstacle: str | None
    remarks: tuple[str, ...]
    missing: tuple[str, ...]


def declared_requirements(text: str) -> dict[str, str]:
    """Requirements of a ``pyproject.toml`` by package, such as ``{"numpy": "numpy>=2.3"}``; those of extras too."""
    project = tomllib.loads(text)["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return {re.split(r"[\[=<>!~ ]", line, maxsplit=1)[0]: line for group in groups for line in group}


def find_missing(names: Iterable[str], import_module: Import = importlib.import_module) -> list[Missing]:
    """Try every import; whatever goes wrong counts as missing."""
    missing = []
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # a package built for another version fails in its own ways
            missing.append(Missing(name, f"{type(error).__name__}: {error}"))
    return missing


def find_old(requirements: dict[str, str], names: Iterable[str]) -> list[str]:
    """Installed packages older than what is asked for, as sentences."""
    old = []
    for name in names:
        least = re.search(r">=([\d.]+)", requirements.get(name, ""))
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if least is not None and _numbers(installed) < _numbers(least[1]):
            old.append(f"{name} {installed} is older than {least[1]}, which Mila asks for")
    return old


def how_to_carry(requirements: dict[str, str], names: Sequence[str]) -> str:
    """Commands that bring packages here from a machine with a network."""
    version = ".".join(map(str, sys.version_info[:2]))
    wanted = " ".join(f"'{requirements.get(name, name)}'" for name in names)
    wheels = "manylinux_2_28_aarch64" if _machine() in ("aarch64", "arm64") else "manylinux_2_28_x86_64"
    return "\n".join(
        (
            "Where there is a network, run",
            f"    pip install --target carried --only-binary=:all: --python-version {version} --platform {wheels} "
            f"--platform {wheels.replace('_2_28', '2014')} {wanted}",
            "copy the folder `carried` here, beside the checkout, and run",
            "    PYTHONPATH=../carried python -m benchmarks.gpu_check",
        )
    )


def how_to_get_cupy() -> str:
    """CuPy depends on the driver, so that nobody can choose for the user."""
    return (
        "CuPy must fit the machine's CUDA: cupy-cuda13x or cupy-cuda12x, version 14 or later, with the extra [ctk] "
        "where no CUDA toolkit is installed; it is carried in the same way"
    )


def check(import_module: Import = importlib.import_module) -> Check:
    """Try all imports, and say everything that is wrong at once."""
    requirements = declared_requirements((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = find_missing((*NEEDED, "cupy"), import_module)
    optional = find_missing(OPTIONAL, import_module)
    remarks = [f"{missing.name} is missing ({missing.reason}): {OPTIONAL[missing.name]}" for missing in optional]
    remarks += find_old(requirements, NEEDED)
    names = tuple(missing.name for missing in optional)
    if not needed:
        return Check(None, tuple(remarks), names)
    lines = ["cannot be imported here:", *(f"    {missing.name}: {missing.reason}" for missing in needed)]
    to_carry = [missing.name for missing in (*needed, *optional) if missing.name not in ("cupy", "torch")]
    if to_carry:
        lines.append(how_to_carry(requirements, to_carry))
    if any(missing.name == "cupy" for missing in needed):
        lines.append(how_to_get_cupy())
    return Check("\n".join(lines), tuple(remarks), names)


def missing_device(name: str, import_module: Import = importlib.import_module) -> str | None:
    """Why there is no such device, once CuPy can be imported; ``None`` where there is one."""
    runtime = import_module("cupy").cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return f"{name}: found no CUDA device or driver on this machine ({error})"
    index = int(name.partition(":")[2] or 0)
    return None if index < count else f"{name}: does not exist on this machine, which has {count} CUDA devices"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _machine() -> str:
    return platform.machine()
