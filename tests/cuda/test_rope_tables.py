"""Angles of rotary positions are float32 on every device and in networks of every dtype, far into a sequence too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np
import pytest

from mila.components import Rope, RopeConfig
from mila.core import BuildContext, Component, Position
from mila.devices import ExecutionContext
from tests.cuda.hosted import Hosted
from tests.promises.case import INFERENCE, TRAINING

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

HEADS, SIZE, LENGTH, LAST = 2, 16, 5, 8191
CONFIG = RopeConfig(num_heads=HEADS, num_kv_heads=0, head_dim=SIZE, max_seq_len=LAST + 1)
START = LAST + 1 - LENGTH
#: Significant bits.
PRECISION = {"bfloat16": 8, "float16": 11, "float32": 24}


def built(context: ExecutionContext, dtype: str) -> Component[Any]:
    rope = Rope("rope", CONFIG, dtype=dtype)
    rope.set_execution_context(context)
    rope.build(BuildContext((1, LENGTH, HEADS * SIZE), INFERENCE, max_seq_len=LAST + 1, prefill_size=LENGTH))
    return rope


def turned(x: Any) -> Any:
    """The formula in float64."""
    angles = (START + np.arange(LENGTH))[:, None] * np.array(CONFIG.frequencies)
    pairs = x.astype(np.float64).reshape(LENGTH, HEADS, 2, SIZE // 2)
    numbers = (pairs[:, :, 0] + 1j * pairs[:, :, 1]) * np.exp(1j * angles)[:, None]
    return np.stack((numbers.real, numbers.imag), axis=2).reshape(1, LENGTH, HEADS * SIZE)


@pytest.mark.parametrize("dtype", PRECISION)
def test_turning_rounds_once_on_every_device(dtype: str, context: ExecutionContext, cuda: CudaDevice) -> None:
    x = np.random.default_rng(0).standard_normal((1, LENGTH, HEADS * SIZE)).astype(getattr(ml_dtypes, dtype, dtype))
    want = turned(x)
    half_unit = 2.0 ** (np.floor(np.log2(np.abs(want))) - PRECISION[dtype])
    for device in (context, ExecutionContext("cpu", threads=1)):
        hosted = cast(Any, Hosted(built(device, dtype)))
        got = hosted.forward(x, position=Position(START)).astype(np.float64)
        assert np.all(np.abs(got - want) <= half_unit * 1.01 + 2e-6), device


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("mode", [INFERENCE, TRAINING])
def test_plans_have_the_same_tables_on_every_device(dtype: str, mode: Any, context: ExecutionContext) -> None:
    tables = []
    for device in (context, ExecutionContext("cpu")):
        rope = Rope("rope", CONFIG, dtype=dtype)
        rope.set_execution_context(device)
        buffers = rope.plan(BuildContext((1, LENGTH, HEADS * SIZE), mode)).buffers
        tables.append([(b.name, b.shape, b.dtype.name, b.nbytes) for b in buffers if b.name in ("cosine", "sine")])
    assert tables[0] == tables[1]
    assert {dtype for _, _, dtype, _ in tables[0]} == {"float32"}
