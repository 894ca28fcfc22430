"""The CPU table offers every kernel of the signature table, with the same parameters."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from mila.kernels import signatures
from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Kernels

NAMES = sorted(name for name in dir(Kernels) if not name.startswith("_") and callable(getattr(Kernels, name)))


def as_kernels(kernels: Kernels) -> Kernels:
    """Typed so that mypy compares all signatures."""
    return kernels


def test_computes_in_float32_and_float64() -> None:
    assert as_kernels(CpuKernels(1)).dtypes == (np.dtype(np.float32), np.dtype(np.float64))


@pytest.mark.parametrize("name", NAMES)
def test_offers_every_kernel_with_its_parameters(name: str) -> None:
    promised = inspect.signature(getattr(signatures.Kernels, name))
    offered = inspect.signature(getattr(CpuKernels, name))
    assert list(offered.parameters) == list(promised.parameters)
    assert inspect.getdoc(getattr(CpuKernels, name))
