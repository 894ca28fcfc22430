"""Every name of CuPy that the CUDA backend uses is one that the real CuPy has, which needs no device to say so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import mila.devices
from tests.emulator.cupy_names import mentioned_names, unknown_names

FOLDER = Path(mila.devices.__file__).parent
BACKEND = (FOLDER / "cuda.py").read_text("utf-8")
#: Of the module for products, which is handed to them.
PRODUCTS = "import cupy\n" + "\n".join(
    f"cupy.cuda.cublas.{name}" for name in re.findall(r"cublas\.(\w+)", (FOLDER / "products.py").read_text("utf-8"))
)
SOURCES = pytest.mark.parametrize("source", [BACKEND, PRODUCTS], ids=["cuda.py", "products.py"])


@SOURCES
def test_there_are_names_to_look_up(source: str) -> None:
    assert len(mentioned_names(source)) > 5


@SOURCES
@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")
def test_cupy_has_every_name(source: str) -> None:
    assert unknown_names(source) == []
