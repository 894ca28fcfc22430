"""Attention on the emulated device does what the formula says, with every option, in any order of threads."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np
import pytest

from mila.errors import DeviceError
from mila.kernels.cpu.table import CpuKernels
from tests.cuda.on_device import OnDevice
from tests.emulator.module import FORWARD, REVERSE, SHUFFLED, Mode, Run
from tests.emulator.stand_in.settings import use
from tests.kernels.attention_reference import OPTIONS, Array, Problem, error, expected, problem

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

FLOAT32 = np.dtype(np.float32)
HALVES = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
FAST, CHECKED = Run(Mode.FAST, FORWARD), Run(Mode.CHECK, FORWARD)
ORDERS = (FAST, Run(Mode.FAST, REVERSE), Run(Mode.FAST, SHUFFLED))

#: (B, T, H, K, D): one position, groups of 1 to 4, odd and even heads, one tile and several of queries and of keys.
SHAPES = (
    (1, 1, 1, 1, 4),
    (2, 5, 4, 2, 3),
    (3, 97, 4, 1, 7),
    (1, 131, 6, 3, 5),
    (1, 64, 2, 2, 64),
    (1, 67, 2, 1, 128),
    (1, 35, 1, 1, 256),
)
#: As large as a check of every access should get.
SMALL = ((2, 5, 4, 2, 3), (1, 67, 3, 1, 8))
#: Heads beside the sizes that kernels are compiled for.
HEAD_SIZES = (1, 2, 12, 33, 63, 65, 100, 127, 129, 255)
#: Forward and backward, relative to the largest element. What is stored in half precision is rounded once, to 8 bits or
#: to 11, and the output that the backward step reads was rounded too.
TOLERANCES = {FLOAT32: (2e-6, 2e-6), HALVES[0]: (2.0**-8, 2.5 * 2.0**-8), HALVES[1]: (2.0**-11, 2.5 * 2.0**-11)}


def in_all_dtypes(cases: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return each case with float32, and with one of both kinds of half precision by turns."""
    return [(*case, dtype) for i, case in enumerate(cases) for dtype in (FLOAT32, HALVES[i % 2])]


def on_device(device: CudaDevice) -> CpuKernels:
    return cast(CpuKernels, OnDevice(device))


def computed(kernels: CpuKernels, p: Problem) -> tuple[Array, Array, Array]:
    """Output, log-sum-exp and gradient of ``qkv``; all that is written is NaN before."""
    batch, length, _ = p.qkv.shape
    output, dqkv = np.full_like(p.dy, np.nan), np.full_like(p.qkv, np.nan)
    log_sum_exp = np.full((batch, p.heads, length), np.nan, np.float32)
    options = (*p.sizes, p.causal, p.window, p.scale)
    workspace = np.full(kernels.attention_forward_workspace(length, *p.sizes), np.nan, np.float32)
    kernels.attention_forward(output, log_sum_exp, p.qkv, *options, workspace)
    workspace = np.full(kernels.attention_backward_workspace(length, *p.sizes), np.nan, np.float32)
    kernels.attention_backward(dqkv, log_sum_exp, p.dy, output, p.qkv, *options, workspace)
    return output, log_sum_exp, dqkv


def assert_agrees(got: tuple[Array, Array, Array], p: Problem) -> None:
    forward, backward = TOLERANCES[p.qkv.dtype]
    limits = (forward, TOLERANCES[FLOAT32][0], backward)
    for name, found, wanted, limit in zip(("output", "log_sum_exp", "dqkv"), got, expected(p), limits, strict=True):
        assert error(found.astype(np.float64), wanted) < limit, name


def bits(arrays: tuple[Array, ...]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


@pytest.mark.parametrize(("shape", "option", "dtype"), in_all_dtypes(product(SHAPES, OPTIONS)), ids=str)
def test_agrees_with_the_formula(shape: Any, option: tuple[bool, int], dtype: Any, cuda: CudaDevice) -> None:
    p = problem(shape, option, dtype)
    assert_agrees(computed(on_device(cuda), p), p)


@pytest.mark.parametrize(
    ("shape", "option", "dtype"), in_all_dtypes(product(SMALL, [(True, 0), (True, 7), (False, 9)])), ids=str
)
def test_every_access_is_in_bounds_and_ordered(
    shape: Any, option: tuple[bool, int], dtype: Any, cuda: CudaDevice
) -> None:
    p = problem(shape, option, dtype)
    with use(CHECKED):
        assert_agrees(computed(on_device(cuda), p), p)


@pytest.mark.parametrize("option", [(True, 0), (True, 7), (False, 0)], ids=str)
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_any_order_of_threads_gives_the_same_bits(shape: Any, option: tuple[bool, int], cuda: CudaDevice) -> None:
    p, results = problem(shape, option, np.float32), []
    for order in ORDERS:
        with use(order):
            results.append(bits(computed(on_device(cuda), p)))
    assert results[1:] == results[:1] * 2


@pytest.mark.parametrize("head_dim", HEAD_SIZES)
def test_heads_of_any_size_serve(head_dim: int, cuda: CudaDevice) -> None:
    p = problem((1, 19, 2, 1, head_dim), dtype=np.float32)
    assert_agrees(computed(on_device(cuda), p), p)


def test_larger_heads_are_refused_before_anything_is_allocated(cuda: CudaDevice) -> None:
    kernels = on_device(cuda)
    with pytest.raises(DeviceError, match="at most 256 elements, got 257"):
        kernels.attention_forward_workspace(8, 2, 2, 257)
    with pytest.raises(DeviceError, match="at most 256 elements, got 257"):
        kernels.attention_cached_workspace(8, 8, 2, 2, 257, 0)


@pytest.mark.parametrize("window", [0, 5])
def test_a_later_token_never_changes_an_earlier_output(window: int, cuda: CudaDevice) -> None:
    p, changed = problem((1, 90, 4, 2, 8), (True, window), np.float32), 33
    other = p.qkv.copy()
    other[:, changed:] += 3
    first = computed(on_device(cuda), p)
    second = computed(on_device(cuda), Problem(other, p.dy, *p.sizes, p.causal, p.window))
    assert np.array_equal(first[0][:, :changed], second[0][:, :changed])
    assert np.array_equal(first[1][..., :changed], second[1][..., :changed])
    assert not np.array_equal(first[0][:, changed], second[0][:, changed])


def test_scores_of_any_size_do_not_overflow(cuda: CudaDevice) -> None:
    p = problem((1, 70, 2, 2, 16), dtype=np.float32)
    large = p.qkv * np.where(np.arange(p.qkv.shape[2]) < 64, 300, 1).astype(np.float32)
    for array in computed(on_device(cuda), Problem(large, p.dy, *p.sizes)):
        assert np.isfinite(array).all()


def test_no_rows_are_no_work(cuda: CudaDevice) -> None:
    output, _, dqkv = computed(on_device(cuda), problem((0, 5, 2, 1, 4), dtype=np.float32))
    assert output.shape == (0, 5, 8) and dqkv.shape == (0, 5, 16)
