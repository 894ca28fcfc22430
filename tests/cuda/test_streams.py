"""What a caller queues on streams of CuPy's, and what the device queues, happen in the order of the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mila.components import Activation, ActivationConfig
from mila.core import BuildContext, RuntimeMode
from mila.devices import ExecutionContext
from tests.cuda.conftest import Emulated

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice


def test_an_array_that_is_still_queued_comes_to_the_host_as_it_will_be(
    context: ExecutionContext, cuda: CudaDevice, emulated: Emulated
) -> None:
    cupy = emulated.modules["cupy"]
    with cupy.cuda.Stream(non_blocking=True):
        np.testing.assert_array_equal(context.to_host(cupy.ones((2, 3), np.float32)), np.ones((2, 3)))
    np.testing.assert_array_equal(context.to_host(cupy.ones(5, np.int64)), np.ones(5))


def test_what_the_caller_queues_after_a_call_comes_after_it(
    context: ExecutionContext, cuda: CudaDevice, emulated: Emulated
) -> None:
    """Outputs are read, and inputs written over, on the caller's stream, without waiting on the host."""
    cupy = emulated.modules["cupy"]
    component = Activation("activation", ActivationConfig(kind="relu"))
    component.set_execution_context(context)
    component.build(BuildContext((2, 3), RuntimeMode.TRAINING))
    with cupy.cuda.Stream(non_blocking=True):
        x = context.to_device(np.array([[1, -2, 3], [-4, 5, -6]], np.float32))
        y = component.forward(x).copy()
        (dx,) = (component.backward(x, y).copy(),)
        x.fill(0)
        np.testing.assert_array_equal(y.get(), [[1, 0, 3], [0, 5, 0]])
        np.testing.assert_array_equal(dx.get(), [[1, 0, 3], [0, 5, 0]])
