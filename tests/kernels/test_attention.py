"""Attention forward and backward do what the formula says, for every option."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from tests.kernels.attention_reference import OPTIONS, SHAPES, Problem, backward, error, expected, forward, problem

#: Relative to the largest element; float32 accumulates over up to 301 keys and 64 elements of a head.
TOLERANCES: dict[type, float] = {np.float64: 1e-12, np.float32: 2e-6}

ONE, TWO, THREE = CpuKernels(1), CpuKernels(2), CpuKernels(3)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("option", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_backward_agree_with_the_formula(
    shape: tuple[int, int, int, int, int], option: tuple[bool, int], dtype: type
) -> None:
    p = problem(shape, option, dtype)
    output, log_sum_exp, dqkv = expected(p)
    got_output, got_log_sum_exp = forward(TWO, p)
    assert error(got_output, output) < TOLERANCES[dtype]
    assert error(got_log_sum_exp, log_sum_exp) < TOLERANCES[dtype]
    assert error(backward(TWO, p), dqkv) < TOLERANCES[dtype]


@pytest.mark.parametrize("option", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(1, 6, 2, 2, 3), (2, 5, 4, 1, 2), (1, 70, 2, 1, 2)], ids=str)
def test_backward_agrees_with_central_differences(
    shape: tuple[int, int, int, int, int], option: tuple[bool, int]
) -> None:
    p = problem(shape, option)
    gradient = backward(ONE, p)
    positions = np.random.default_rng(1).permutation(p.qkv.size)[:60]
    for position in positions:
        loss = []
        for step in (1e-5, -1e-5):
            moved = p.qkv.copy()
            moved.flat[position] += step
            loss.append(float((forward(ONE, replace(p, qkv=moved))[0] * p.dy).sum()))
        assert gradient.flat[position] == pytest.approx((loss[0] - loss[1]) / 2e-5, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_do_not_depend_on_the_saved_statistics(shape: tuple[int, int, int, int, int]) -> None:
    p = problem(shape, dtype=np.float32)
    output, log_sum_exp = forward(TWO, p, with_statistics=False)
    assert np.array_equal(output, forward(TWO, p)[0])
    assert np.isnan(log_sum_exp).all()


@pytest.mark.parametrize("kernels", [ONE, TWO, THREE], ids=["1 thread", "2 threads", "3 threads"])
@pytest.mark.parametrize(
    "shape", [(3, 97, 4, 1, 7), (1, 301, 8, 1, 16), (1, 301, 3, 3, 33), (2, 256, 6, 2, 32)], ids=str
)
def test_every_number_of_threads_repeats_itself_bit_for_bit(
    shape: tuple[int, int, int, int, int], kernels: CpuKernels
) -> None:
    p = problem(shape, dtype=np.float32)
    output, log_sum_exp, dqkv = expected(p)
    first, gradient = forward(kernels, p), backward(kernels, p)
    assert error(first[0], output) < 2e-6
    assert error(first[1], log_sum_exp) < 2e-6
    assert error(gradient, dqkv) < 2e-6
    for _ in range(3):
        assert np.array_equal(forward(kernels, p)[0], first[0])
        assert np.array_equal(backward(kernels, p), gradient)


def test_more_threads_than_the_workspace_has_room_for_change_nothing() -> None:
    p = problem((1, 700, 2, 1, 8), dtype=np.float32)
    output, _, dqkv = expected(p)
    many = CpuKernels(40)
    assert error(forward(many, p)[0], output) < 2e-6
    assert error(backward(many, p), dqkv) < 2e-6


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("length", [9, 200])
def test_a_later_token_never_changes_an_earlier_output(length: int, window: int) -> None:
    p = problem((1, length, 4, 2, 8), (True, window), np.float32)
    output, log_sum_exp = forward(TWO, p)
    for changed in (1, length // 2, length - 1):
        other = p.qkv.copy()
        other[:, changed:] += 3
        new_output, new_log_sum_exp = forward(TWO, replace(p, qkv=other))
        assert np.array_equal(output[:, :changed], new_output[:, :changed])
        assert np.array_equal(log_sum_exp[..., :changed], new_log_sum_exp[..., :changed])
        assert not np.array_equal(output[:, changed], new_output[:, changed])


def test_a_token_that_left_the_window_never_changes_an_output() -> None:
    p = problem((1, 200, 2, 2, 8), (True, 6), np.float32)
    other = p.qkv.copy()
    other[:, 100] += 3
    difference = (forward(TWO, p)[0] != forward(TWO, replace(p, qkv=other))[0]).any(axis=(0, 2))
    assert np.flatnonzero(difference).tolist() == list(range(100, 106))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_of_any_size_neither_overflow_nor_warn(dtype: type) -> None:
    p = problem((1, 70, 2, 2, 16), dtype=dtype)
    large = replace(p, qkv=p.qkv * np.where(np.arange(p.qkv.shape[2]) < 64, 300, 1).astype(dtype))
    output, log_sum_exp = forward(ONE, large)
    assert np.isfinite(output).all()
    assert np.isfinite(log_sum_exp).all()
    assert np.isfinite(backward(ONE, large)).all()
    if dtype is np.float64:
        assert error(output, expected(large)[0]) < 1e-9


def test_the_scale_is_the_callers() -> None:
    p = problem((1, 20, 2, 2, 8))

    class Unscaled(Problem):
        @property
        def scale(self) -> float:
            return 1.0

    unscaled = Unscaled(p.qkv, p.dy, *p.sizes)
    output, _, dqkv = expected(unscaled)
    assert error(forward(ONE, unscaled)[0], output) < 1e-12
    assert error(backward(ONE, unscaled), dqkv) < 1e-12
    assert error(forward(ONE, p)[0], output) > 1e-3
