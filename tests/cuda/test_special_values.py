"""NaN, infinities, both zeros, denormals, the largest numbers: what the CPU's kernels make of them, CUDA's do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.cuda.family import BFLOAT16, FLOAT16, FLOAT32
from mila.kernels.signatures import Kernels
from mila.kernels.signatures.activation_function import ActivationFunction
from tests.cuda.attention_cases import ATTENTION_CASES
from tests.cuda.conftest import Emulated
from tests.cuda.on_device import OnDevice
from tests.cuda.special_values import SMALLEST_NORMAL, STEP, assert_alike, assert_denormals_alike, computed
from tests.cuda.test_kernels import belongs
from tests.kernels.bench import Case
from tests.kernels.cases import CASES

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

HALVES = (BFLOAT16, FLOAT16)
CPU = CpuKernels(1)
ALL_CASES = (*CASES, *ATTENTION_CASES)
#: Elementwise kernels of the network's dtype.
ROUNDED = tuple(
    case
    for case in CASES
    if case.elementwise and belongs(case, "float16") and not case.name.startswith(("copy-int", "fill-int"))
)

#: Kernels that sum or compare many elements.
SUMMED = tuple(case for case in CASES if not case.elementwise)

#: Methods of the signature table that compute nothing on arrays.
NO_KERNELS = ("compute_dtype", "region", "unordered")

#: Of kernels that sum or compare many elements: one kind at a time, or NaN would hide the others.
VALUES = {
    "NaN": (np.nan,),
    "infinity": (np.inf,),
    "minus infinity": (-np.inf,),
    "zeros": (-0.0, 0.0),
}
#: Of kernels whose outputs depend on a few elements each. Sums of the largest overflow in one order and not in another.
ELEMENTWISE_VALUES = {
    "small": (np.nan, -0.0, np.inf, 0.0, -np.inf),
    "large": (float(np.finfo(np.float32).max), -float(np.finfo(np.float32).max), 1e30, -1e19),
}
#: Kernels in which a zero has the sign that it has on the CPU; elsewhere that may depend on the formula.
SIGNED = (
    "copy",
    "permute",
    "take_",
    "put_",
    "gather_",
    "prepend_forward",
    "pad_forward",
    "subtract",
    "multiply",
    "clamp",
)
DENORMALS = (1e-40, -3e-42, -1e-45)
#: Kernels some of whose results are denormals where all of their arrays, or some elements of them, are.
KEEPING = (
    "add_in_place",
    "adamw",
    "cast",
    "embedding_backward-",
    "gather_",
    "permute",
    "put_",
    "residual_forward",
    "scale",
    "take_",
)
#: Those of them whose arrays are float16, where such numbers are zero.
LOSING = ("add_in_place-float16", "cast-from-float16", "cast-to-float16")
#: Of GELU, relative to itself: an error of x² alone would be ten times as much at the end.
GELU_TOLERANCE = 8e-7
#: Odd rows, and rows of whole vectors, by turns.
SHAPES = ((7, 13), (3, 32))


def test_every_kernel_has_a_case() -> None:
    """A kernel that is new must come into the lists of cases; a bound kernel is the kernel with its arguments."""
    names = [name for name in dir(Kernels) if not name.startswith("_") and callable(getattr(Kernels, name))]
    kernels = {name.removeprefix("bind_") for name in names if not name.endswith("_workspace")}
    with_cases = {case.name.partition("-")[0] for case in ALL_CASES}
    assert sorted(kernels - with_cases) == [name for name in sorted(NO_KERNELS) if name in names]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_special_values_give_what_they_give_on_the_cpu(case: Case, cuda: CudaDevice) -> None:
    kernels = OnDevice(cuda)
    step, kinds = (5, ELEMENTWISE_VALUES) if case.elementwise else (STEP, VALUES)
    for number, (what, values) in enumerate(kinds.items()):
        shape = SHAPES[number % 2]
        wanted = computed(case, CPU, FLOAT32, shape, values=values, step=step)
        found = computed(case, kernels, FLOAT32, shape, values=values, step=step)
        # Slopes are exact to 4e-6 of one, which large factors multiply, and sums depend on the order.
        is_scaled = what == "large" and case.name.startswith(("gated_", "prepend_backward"))
        is_exact = case.elementwise and not is_scaled
        assert_alike(found, wanted, is_exact, case.name.startswith(SIGNED), what)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_denormals_are_numbers_as_on_the_cpu(case: Case, cuda: CudaDevice, emulated: Emulated) -> None:
    """The sources lose none. As CuPy compiles them, a GPU takes denormals of float32 for zero."""
    count = 0
    for step in (1, 5):
        wanted = computed(case, CPU, FLOAT32, SHAPES[0], values=DENORMALS, step=step)
        found = computed(case, OnDevice(cuda), FLOAT32, SHAPES[0], values=DENORMALS, step=step)
        assert_alike(found, wanted, case.elementwise, case.name.startswith(SIGNED), "denormals")
        count += assert_denormals_alike(found, wanted)
    keeps = case.name.startswith(KEEPING) and not case.name.startswith(LOSING)
    assert count or not keeps, "no result is a denormal, so that none is compared"


def test_denormals_that_become_zero_are_found() -> None:
    kept = {"output": np.array([1.0, *DENORMALS], np.float32)}
    lost = {"output": np.where(np.abs(kept["output"]) < SMALLEST_NORMAL, np.float32(0), kept["output"])}
    assert assert_denormals_alike(kept, kept) == len(DENORMALS)
    with pytest.raises(AssertionError):
        assert_denormals_alike(lost, kept)


@pytest.mark.parametrize("case", SUMMED, ids=lambda case: case.name)
def test_arrays_that_hold_one_value_give_what_they_give_on_the_cpu(case: Case, cuda: CudaDevice) -> None:
    """Rows that are masked as a whole, among others."""
    for value in (-np.inf, np.inf, 0.0):
        special = {"values": (value,), "step": 1}
        wanted = computed(case, CPU, FLOAT32, SHAPES[1], **special)
        found = computed(case, OnDevice(cuda), FLOAT32, SHAPES[1], **special)
        if case.name.startswith("cross_entropy_forward") and value == -np.inf:
            # Of a row without any weight the logarithm is minus infinity here and NaN there; its loss is NaN in both.
            assert np.isneginf(found.pop("log_sum_exp")).all() and np.isnan(wanted.pop("log_sum_exp")).all()
        assert_alike(found, wanted, False, False, value)


def test_gelu_keeps_its_digits_far_below_zero(cuda: CudaDevice) -> None:
    """Where it is small, it is as exact as where it is large: the factor exp(-x² / 2) takes no error of x² along."""
    x = -np.linspace(0.25, 12.5, 1601, dtype=np.float32)
    output, workspace = np.empty_like(x), np.empty(0, np.float32)
    cast(CpuKernels, OnDevice(cuda)).activation_forward(output, None, x, ActivationFunction("gelu"), workspace)
    wanted = [0.5 * value * math.erfc(-value / math.sqrt(2.0)) for value in x.astype(np.float64).tolist()]
    np.testing.assert_allclose(output, wanted, rtol=GELU_TOLERANCE)


def awkward(dtype: np.dtype[np.generic]) -> tuple[float, ...]:
    """Numbers of a half-precision type whose products and sums lie halfway between two others, or overflow.

    The denormals of float16 are among them. Those of bfloat16 are denormals of float32, which a GPU takes for zero.
    """
    information: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    step, largest = float(information.eps), float(information.max)
    smallest = 2.0**-100 if dtype == BFLOAT16 else float(information.smallest_subnormal)
    return (1.0 + step, 1.5, 1.0 - step / 2, largest, -largest, largest / 2, smallest, -3 * smallest, step / 2, -0.0)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", ROUNDED, ids=lambda case: case.name)
def test_half_precision_is_the_float32_result_rounded_once(
    case: Case, dtype: np.dtype[np.generic], cuda: CudaDevice
) -> None:
    """Ties to even, beyond the largest number infinity, denormals kept: what is stored rounds as NumPy rounds."""
    special = {"values": (*awkward(dtype), np.inf, np.nan), "step": 2}
    found = computed(case, OnDevice(cuda), dtype, SHAPES[0], **special)
    wanted = computed(case, CPU, FLOAT32, SHAPES[0], **special, drawn_as=dtype)
    for name, output in found.items():
        with np.errstate(over="ignore"):
            want = wanted[name].astype(output.dtype)
        got = output.copy()
        if case.name.startswith(("activation_forward", "gated_")):  # CPU and GPU have formulas of their own
            for direction in (-np.inf, np.inf):
                with np.errstate(all="ignore"):
                    neighbour = np.nextafter(want, want.dtype.type(direction))
                got = np.where(got == neighbour, want, got)
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64), name)
