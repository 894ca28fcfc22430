"""The CPU table offers every kernel of the signature table, with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from mila.kernels import signatures
from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Kernels

NAMES = sorted(name for name in dir(Kernels) if not name.startswith("_") and callable(getattr(Kernels, name)))


def as_kernels(kernels: Kernels) -> Kernels:
    """Typed so that mypy compares all signatures."""
    return kernels


def test_half_precision_is_computed_in_float32() -> None:
    kernels = as_kernels(CpuKernels(1))
    assert {dtype.name: kernels.compute_dtype(dtype).name for dtype in kernels.dtypes} == {
        "float32": "float32",
        "float64": "float64",
        "bfloat16": "float32",
        "float16": "float32",
    }


@pytest.mark.parametrize("name", NAMES)
def test_offers_every_kernel_with_its_parameters(name: str) -> None:
    promised = inspect.signature(getattr(signatures.Kernels, name))
    offered = inspect.signature(getattr(CpuKernels, name))
    assert list(offered.parameters) == list(promised.parameters)
    assert inspect.getdoc(getattr(CpuKernels, name))
