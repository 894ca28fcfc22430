"""Gradients that are stored in half precision, and what a step adds to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mila.components import LayerNorm, LayerNormConfig, Linear, LinearConfig
from mila.core import BuildContext, Component, RuntimeMode
from mila.core.widening import WideGradient
from mila.devices.host import Host
from mila.kernels.cpu.table import CpuKernels
from mila.memory.plan import TRANSIENT


def wide_gradient() -> WideGradient:
    return WideGradient(
        np.full(3, 7, np.float16), Host(1).set_bytes, np.full(3, np.nan, np.float32), CpuKernels(1).cast
    )


def test_a_step_contributes_as_often_as_it_likes_and_is_rounded_once() -> None:
    gradient = wide_gradient()
    for total in (2049.0, 4098.0):  # the first is no float16: it is 2048
        gradient.begin()
        wide, accumulate = gradient.contribute()
        assert accumulate is (total > 2049)
        wide[...] = 2048.0 + (wide if accumulate else 0)
        again, accumulate = gradient.contribute()
        assert again is wide
        assert accumulate
        wide += 1
        gradient.end()
    assert gradient.read().tolist() == [4096.0] * 3  # 2048 + 2048 + 1, to even


def test_a_step_that_failed_leaves_the_gradient_as_it_was() -> None:
    gradient = wide_gradient()
    gradient.begin()
    gradient.contribute()[0].fill(5)
    gradient.end()
    gradient.begin()
    gradient.contribute()[0].fill(9)
    gradient.begin()  # the next step: the last one never ended
    gradient.end()
    assert gradient.read().tolist() == [5.0] * 3
    gradient.mark_zero()
    assert gradient.is_zero
    assert gradient.read().tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("component", "wide"),
    [
        (
            Linear("linear", LinearConfig(in_features=8, out_features=4), dtype="float16"),
            {"bias.wide", "bias.gradient.wide"},
        ),
        (
            LayerNorm("norm", LayerNormConfig(normalized_dim=8), dtype="float16"),
            {"weight.wide", "weight.gradient.wide", "bias.wide", "bias.gradient.wide"},
        ),
    ],
    ids=["linear", "norm"],
)
def test_the_plan_shows_the_scratch_of_a_step(component: Component[Any], wide: set[str]) -> None:
    plan = component.plan(BuildContext((3, 8), RuntimeMode.TRAINING))
    scratch = [buffer for buffer in plan.buffers if buffer.name.endswith(".wide")]
    assert {buffer.name for buffer in scratch} == wide | {"input.wide", "output.upstream.wide"}
    assert {(buffer.arena, buffer.dtype.name) for buffer in scratch} == {(TRANSIENT, "float32")}
    assert all(start == end for buffer in scratch for start, end in buffer.intervals)
    stored = {buffer.name: buffer.dtype.name for buffer in plan.buffers if buffer.name.endswith(".stored")}
    assert stored == {"output.stored": "float16", "input.gradient.stored": "float16"}
