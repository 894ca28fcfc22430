"""What the cases of the CPU kernels are made of.

A case builds arrays and arguments for a kernel and says what must come out, so that one test body serves all kernels:
agreement with the formula, in-place variants, numbers of threads, allocations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Array


@dataclass
class Run:
    """One prepared call: what it writes, and what that must be."""

    call: Callable[[], None]
    outputs: dict[str, Array]
    expected: dict[str, Array]


@dataclass
class Bench:
    """Makes arrays of one dtype; the in-place variant, if any, is the name in ``alias``."""

    kernels: CpuKernels
    dtype: np.dtype[Any]
    rows: int
    columns: int
    alias: str = ""
    spare_workspace: int = 0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def array(self, *shape: int) -> Array:
        """Normally distributed values, a little wide."""
        return (1.5 * self.random.standard_normal(shape)).astype(self.dtype)

    def empty(self, *shape: int) -> Array:
        """An output that is wrong until it is written."""
        return np.full(shape, np.nan, self.dtype)

    def workspace(self, elements: int) -> Array:
        """A workspace of the declared size (and more, if asked for): nothing may be read in it before it is written."""
        return np.full(elements + self.spare_workspace, np.nan, self.dtype)

    def statistics(self, values: Array) -> Array:
        """Saved values of the dtype that components give them: float32 where the arrays are of half precision."""
        return values.astype(np.float32 if self.dtype.itemsize == 2 else self.dtype)

    def float8(self, *shape: int) -> Array:
        """Values of float8_e4m3fn, subnormal ones included."""
        values = self.random.standard_normal(shape) * 2.0 ** self.random.integers(-9, 6, shape)
        return values.astype(ml_dtypes.float8_e4m3fn)


Build = Callable[[Bench], Run]


@dataclass(frozen=True)
class Case:
    """A kernel with one combination of options, and the in-place variants that its docstring allows."""

    name: str
    build: Build
    aliases: tuple[str, ...] = ()
    elementwise: bool = False


def wide(x: Array) -> Array:
    """A float64 copy for the reference."""
    return x.astype(np.float64)
