"""CuPy has every name that Mila, its tests for CUDA and its benchmarks use, and takes every call that they make.

CuPy imports without a device. Where it is not installed, its recorded names serve.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import mila
from tests.emulator.cupy_names import mentioned_names, unknown_names
from tests.emulator.cupy_signatures import unfit_calls, unrecorded_names

TESTS = Path(__file__).resolve().parents[1]
PACKAGE = Path(mila.__file__).parent
FILES = [
    *sorted(PACKAGE.rglob("*.py")),
    *sorted((TESTS / "cuda").rglob("*.py")),
    *sorted((TESTS.parent / "benchmarks").rglob("*.py")),
]
#: Of the module for products, which is handed to them.
PRODUCTS = "import cupy\n" + "\n".join(
    f"cupy.cuda.cublas.{name}"
    for name in re.findall(r"cublas\.(\w+)", (PACKAGE / "devices" / "products.py").read_text("utf-8"))
)
TEXTS = {"cublas": PRODUCTS, **{str(path): path.read_text("utf-8") for path in FILES}}
SOURCES = {name: text for name, text in TEXTS.items() if "cupy" in text and mentioned_names(text)}


def test_only_the_backend_knows_cupy() -> None:
    own = [Path(name).name for name in SOURCES if Path(name).is_relative_to(PACKAGE)]
    assert own == ["cuda.py"]
    assert all(len(mentioned_names(SOURCES[name])) > 5 for name in ("cublas", str(PACKAGE / "devices" / "cuda.py")))


@pytest.mark.parametrize("name", SOURCES, ids=lambda name: Path(name).name)
def test_cupy_has_every_name(name: str) -> None:
    assert unrecorded_names(SOURCES[name]) == []


@pytest.mark.parametrize("name", SOURCES, ids=lambda name: Path(name).name)
def test_cupy_takes_every_call(name: str) -> None:
    assert unfit_calls(SOURCES[name]) == []


@pytest.mark.parametrize("name", SOURCES, ids=lambda name: Path(name).name)
@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")
def test_the_installed_cupy_has_every_name(name: str) -> None:
    assert unknown_names(SOURCES[name]) == []
