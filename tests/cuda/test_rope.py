"""Rotary positions on the emulated device: the formula, in place and apart, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mila.kernels.cpu.table import CpuKernels
from mila.kernels.cuda.row_positions import MOST_ROWS
from tests.cuda.test_attention import CHECKED, FLOAT32, HALVES, ORDERS, on_device
from tests.emulator.stand_in.settings import use
from tests.kernels.attention_reference import Array
from tests.kernels.test_rope import SHAPES, draw, frequencies, turned_as_complex_numbers

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

#: Of what is turned, whose elements are below 8: half precision rounds them, and nothing before.
TOLERANCES = {FLOAT32: 4e-6, HALVES[0]: 1.6e-2, HALVES[1]: 2e-3}


def turned(
    kernels: CpuKernels, x: Array, shape: Any, starts: list[int], inverse: bool = False, in_place: bool = False
) -> Array:
    _, length, heads, _, head_dim, rotary_dim = shape
    cosine = np.full((max(starts) + length, rotary_dim // 2), np.nan, np.float32)
    sine = np.full_like(cosine, np.nan)
    kernels.rope_tables(cosine, sine, frequencies(rotary_dim))
    x = x.copy()
    output = x if in_place else np.full_like(x, np.nan)
    workspace = np.empty(kernels.rope_workspace(length, heads, head_dim), np.float32)
    kernels.rope(output, x, cosine, sine, starts, heads, head_dim, inverse, workspace)
    return output


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pairs_turn_as_complex_numbers(shape: Any, inverse: bool, dtype: Any, cuda: CudaDevice) -> None:
    x, starts = draw(shape, dtype)
    want, got = turned_as_complex_numbers(x, shape, starts, inverse), turned(on_device(cuda), x, shape, starts, inverse)
    assert np.abs(got.astype(np.float64) - want).max() < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
def test_every_access_is_in_bounds_and_ordered(shape: Any, dtype: Any, cuda: CudaDevice) -> None:
    x, starts = draw(shape, dtype)
    want = turned(on_device(cuda), x, shape, starts)
    for way in (CHECKED, *ORDERS):
        with use(way):
            assert turned(on_device(cuda), x, shape, starts).tobytes() == want.tobytes()
            assert turned(on_device(cuda), x, shape, starts, in_place=True).tobytes() == want.tobytes()


def test_the_other_heads_and_elements_pass_bit_for_bit(cuda: CudaDevice) -> None:
    for dtype in TOLERANCES:
        for half in (2, 8):  # elements one by one, and vectors of either dtype
            shape = (2, 5, 3, 2, 4 * half, 2 * half)
            x, starts = draw(shape, dtype)
            got = turned(on_device(cuda), x, shape, starts).reshape(2, 5, 5, -1)
            x = x.reshape(got.shape)
            assert got[:, :, 3:].tobytes() == x[:, :, 3:].tobytes()
            assert got[..., 2 * half :].tobytes() == x[..., 2 * half :].tobytes()


@pytest.mark.parametrize("shape", [(1, 3, 23, 7, 40, 28), (1, 2, 90, 30, 40, 24)], ids=str)
def test_a_position_may_have_more_pairs_and_more_others_than_a_block_has_threads(shape: Any, cuda: CudaDevice) -> None:
    """One by one, and by vectors."""
    x, starts = draw(shape, np.float32)
    want = turned_as_complex_numbers(x, shape, starts, False)
    for in_place in (False, True):
        got = turned(on_device(cuda), x, shape, starts, in_place=in_place)
        assert np.abs(got - want).max() < TOLERANCES[FLOAT32]


def test_many_rows_take_several_launches(cuda: CudaDevice) -> None:
    shape = (MOST_ROWS + 1, 2, 1, 1, 4, 4)
    x, starts = draw(shape, np.float32)
    want = turned_as_complex_numbers(x, shape, starts, False)
    assert np.abs(turned(on_device(cuda), x, shape, starts) - want).max() < 4e-6


@pytest.mark.parametrize("half", [3, 70])
def test_tables_are_rounded_once_from_float64_and_one_may_be_left_out(half: int, cuda: CudaDevice) -> None:
    given = [3.0, 0.0, -0.25, *frequencies(2 * half)][:half]
    cosine = np.full((200, half), np.nan, np.float32)
    sine = np.full_like(cosine, np.nan)
    on_device(cuda).rope_tables(cosine, None, given)
    assert np.isnan(sine).all()
    on_device(cuda).rope_tables(None, sine, given)
    angle = np.arange(200)[:, None] * np.array(given)
    assert np.abs(cosine - np.cos(angle)).max() < 6e-8
    assert np.abs(sine - np.sin(angle)).max() < 6e-8


def test_a_bound_step_is_the_kernel(cuda: CudaDevice) -> None:
    kernels, random = on_device(cuda), np.random.default_rng(0)
    cosine, sine = np.empty((9, 4), np.float32), np.empty((9, 4), np.float32)
    kernels.rope_tables(cosine, sine, frequencies(8))
    x = np.empty((1, 1, 3 * 8), np.float32)
    output, none = np.empty_like(x), np.empty(0, np.float32)
    step = kernels.bind_rope(output, x, cosine, sine, 2, 8, none)
    for position in (0, 5, 8):
        x[...] = random.standard_normal(x.shape)
        want = np.empty_like(x)
        kernels.rope(want, x, cosine, sine, [position], 2, 8, False, none)
        step(position)
        assert np.array_equal(output, want)
