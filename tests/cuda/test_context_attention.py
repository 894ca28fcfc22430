"""Attention to keys that lie apart, on the emulated device: the formula, and with dropout the CPU's mask."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from tests.cuda.test_attention import CHECKED, ORDERS, TOLERANCES, bits, in_all_dtypes, on_device
from tests.emulator.stand_in.settings import use
from tests.kernels.attention_reference import Array
from tests.kernels.test_context_attention import Problem, expected, problem

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

#: ((B, T, S, H, D), causal): one of everything, odd sizes, a context much shorter and much longer than the queries.
CASES = (
    ((1, 1, 1, 1, 1), False),
    ((2, 5, 3, 4, 3), False),
    ((3, 97, 7, 2, 5), False),
    ((1, 131, 1, 3, 40), False),
    ((2, 3, 211, 2, 16), False),
    ((1, 70, 40, 1, 80), False),
    ((2, 5, 5, 4, 3), True),
    ((1, 97, 97, 2, 8), True),
)
SMALL = (((2, 5, 3, 4, 3), False), ((1, 67, 67, 2, 8), True))


def computed(kernels: CpuKernels, p: Problem) -> tuple[Array, ...]:
    """Output, log-sum-exp and the gradients of queries, keys and values."""
    q, k, v, dy = p.arrays
    output, dq, dk, dv = (np.full_like(x, np.nan) for x in (q, q, k, v))
    log_sum_exp = np.full((q.shape[0], p.heads, q.shape[1]), np.nan, np.float32)
    workspace = np.full(kernels.context_attention_forward_workspace(*p.sizes), np.nan, np.float32)
    kernels.context_attention_forward(output, log_sum_exp, q, k, v, *p.scalars, workspace)
    workspace = np.full(kernels.context_attention_backward_workspace(*p.sizes), np.nan, np.float32)
    kernels.context_attention_backward(dq, dk, dv, log_sum_exp, dy, output, q, k, v, *p.scalars, workspace)
    return output, log_sum_exp, dq, dk, dv


def assert_agrees(got: tuple[Array, ...], p: Problem) -> None:
    wanted = expected(p)
    largest = max(np.abs(want).max() for want in wanted)  # over a single key, gradients of scores cancel out
    for found, want in zip(got, wanted, strict=True):
        assert np.abs(found.astype(np.float64) - want).max() < TOLERANCES[p.arrays[0].dtype][1] * largest


@pytest.mark.parametrize(
    ("probability", "shape", "causal", "dtype"),
    in_all_dtypes((probability, *case) for probability, case in product((0.0, 0.3), CASES)),
    ids=str,
)
def test_agrees_with_the_formula(probability: float, shape: Any, causal: bool, dtype: Any, cuda: CudaDevice) -> None:
    p = problem(shape, dtype, probability, causal)
    assert_agrees(computed(on_device(cuda), p), p)


@pytest.mark.parametrize(("shape", "causal", "dtype"), in_all_dtypes(SMALL), ids=str)
def test_every_access_is_in_bounds_and_ordered(shape: Any, causal: bool, dtype: Any, cuda: CudaDevice) -> None:
    p = problem(shape, dtype, 0.3, causal)
    with use(CHECKED):
        assert_agrees(computed(on_device(cuda), p), p)


@pytest.mark.parametrize(("shape", "causal"), SMALL, ids=str)
def test_any_order_of_threads_gives_the_same_bits(shape: Any, causal: bool, cuda: CudaDevice) -> None:
    p, results = problem(shape, np.float32, 0.3, causal), []
    for order in ORDERS:
        with use(order):
            results.append(bits(computed(on_device(cuda), p)))
    assert results[1:] == results[:1] * 2


def test_the_same_weights_are_dropped_as_on_the_cpu(cuda: CudaDevice) -> None:
    """With values that are rows of the identity and equal scores, an output is the mask itself."""
    length, heads, probability = 13, 3, 0.4
    queries = np.zeros((2, length, heads * length), np.float32)
    values = np.tile(np.eye(length, dtype=np.float32), (2, 1, heads))
    outputs = []
    for kernels in (CpuKernels(1), on_device(cuda)):
        output = np.full_like(queries, np.nan)
        elements = kernels.context_attention_forward_workspace(length, length, heads, length, probability)
        workspace = np.empty(elements, np.float32)
        kernels.context_attention_forward(
            output, None, queries, queries, values, heads, False, 1.0, probability, 2**63 + 7, workspace
        )
        outputs.append(output != 0)
    assert np.array_equal(*outputs)
    assert 0.5 < outputs[0].mean() < 0.7


def test_all_weights_are_dropped_at_a_probability_of_almost_one(cuda: CudaDevice) -> None:
    output, _, *gradients = computed(on_device(cuda), problem((1, 5, 7, 2, 3), np.float32, 1 - 1e-12))
    assert not output.any()
    assert not any(gradient.any() for gradient in gradients)
