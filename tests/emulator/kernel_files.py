"""What the emulator's own tests share: the kernels of this folder, compiled once per way of compiling."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.emulator.module import Mode, Module
from tests.emulator.toolchain import missing_tools

KERNELS = Path(__file__).resolve().parent / "kernels"

#: For the tests that compile kernels with g++.
needs_emulator = pytest.mark.skipif(missing_tools() is not None, reason=missing_tools() or "")

NAMES = {"layer_norm.cu": ("layer_norm<float>", "layer_norm<__nv_bfloat16>")}


@functools.cache
def module(filename: str, mode: Mode = Mode.FAST) -> Module:
    """Return a compiled file of the folder."""
    return Module.from_file(KERNELS / filename, NAMES.get(filename, ()), mode=mode)
