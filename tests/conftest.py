"""What every test shares: repeatable hypothesis runs, and skips for what this machine lacks."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent


def find_benchmarks() -> None:
    """Let tests import ``benchmarks``, which is not installed, without the checkout on the path: it holds mila, too."""
    folder = ROOT / "benchmarks"
    specification = importlib.util.spec_from_file_location(
        "benchmarks", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert specification is not None and specification.loader is not None
    sys.modules["benchmarks"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(sys.modules["benchmarks"])


find_benchmarks()
settings.register_profile("mila", deadline=None, derandomize=True, database=None)
settings.load_profile("mila")


def pytest_report_header() -> str:
    """Say which mila is tested: the installed one, or the checkout."""
    specification = importlib.util.find_spec("mila")
    return f"mila from {specification.origin or 'a folder without __init__.py' if specification else 'nowhere'}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile: next to nothing becomes any, and there is ever more to look through."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked ``parity`` or ``gpu`` where torch or a CUDA device is missing."""
    missing = {"parity": missing_torch(), "gpu": missing_gpu() if any(map(needs_gpu, items)) else None}
    for item in items:
        for marker, reason in missing.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module", autouse=True)
def old_objects_are_left_alone() -> None:
    """Keep items and reports out of later garbage collections: with this many tests each would take half a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Compare with PyTorch on one thread of its own: more would spin after each call, on cores that others need."""
    if item.get_closest_marker("parity") and missing_torch() is None:
        import torch

        torch.set_num_threads(1)


def needs_gpu(item: pytest.Item) -> bool:
    return item.get_closest_marker("gpu") is not None


def missing_torch() -> str | None:
    return None if importlib.util.find_spec("torch") else "torch is not installed (pip install '.[parity]')"


def missing_gpu() -> str | None:
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed"
    import cupy

    try:
        return None if cupy.cuda.runtime.getDeviceCount() else "no CUDA device"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no CUDA device: {error}"
