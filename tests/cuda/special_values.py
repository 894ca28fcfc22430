"""Benches whose arrays hold special values among ordinary ones, and what kernels of two devices make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.signatures import Array
from tests.kernels.bench import Bench, Case

#: One of so many elements is special.
STEP = 23
SMALLEST_NORMAL = 2.0**-126
#: What roundings of a formula's steps to denormals may come to.
DENORMAL_UNITS = 4


@dataclass
class SpecialBench(Bench):
    """Every array that is drawn has ``values`` in some places.

    Attributes:
        values: Put in turn into every ``step``-th element or so.
        step: How rare they are.
        drawn_as: What numbers are rounded to when they are drawn, if that is not the dtype of the arrays.
    """

    values: Sequence[float] = ()
    step: int = STEP
    drawn_as: np.dtype[Any] | None = None

    def array(self, *shape: int) -> Array:
        """As ever, but for the special values."""
        x = super().array(*shape).astype(self.drawn_as or self.dtype)
        places = np.random.default_rng(x.size).permutation(x.size)[: -(-x.size // self.step)]
        x.reshape(-1)[places] = np.resize(np.array(self.values, np.float64), places.size)
        return x.astype(self.dtype)


def computed(
    case: Case, kernels: Any, dtype: np.dtype[Any], shape: tuple[int, int], **special: Any
) -> dict[str, Array]:
    """The outputs of a case whose arrays hold special values."""
    with np.errstate(all="ignore"):
        run = case.build(SpecialBench(cast(CpuKernels, kernels), dtype, *shape, **special))
        run.call()
    return run.outputs


def assert_alike(
    found: Mapping[str, Array], wanted: Mapping[str, Array], elementwise: bool, signs: bool, what: object
) -> None:
    """The same NaN and infinities, and finite values that agree to 4e-6 of themselves, or of the largest.

    Args:
        found: Outputs by name.
        wanted: The same of the CPU.
        elementwise: Whether values depend on a few others alone; then a large one excuses none of the others.
        signs: Whether a zero must have the same sign.
        what: For the message.
    """
    assert found.keys() == wanted.keys()
    for name, output in found.items():
        got, want = output.astype(np.float64), wanted[name].astype(np.float64)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), f"{what}: {name}: NaN")
        np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want), f"{what}: {name}: infinity")
        np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want), f"{what}: {name}: minus infinity")
        if signs:
            zeros = (got == 0) & (want == 0)
            np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]), f"{what}: {name}: sign of 0")
        finite = np.isfinite(want)
        got, want = got[finite], want[finite]
        size = np.abs(want)
        size = np.maximum(1.0, size if elementwise else size.max(initial=0.0))
        np.testing.assert_array_less(np.abs(got - want), 4e-6 * size, f"{what}: {name}")


def assert_denormals_alike(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> int:
    """What is a denormal of float32 on the CPU is the same here, but for some units in the last place; how many are."""
    count = 0
    for name, want in wanted.items():
        tiny = (want != 0) & (np.abs(want) < SMALLEST_NORMAL)
        np.testing.assert_allclose(found[name][tiny], want[tiny], 0, DENORMAL_UNITS * 2.0**-149, err_msg=name)
        count += int(tiny.sum())
    return count
