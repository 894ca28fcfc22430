"""Networks may run side by side in threads: what one launch leaves in the scratch for the next stays a thread's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

Result = TypeVar("Result")
IGNORED = 0


def in_another_thread(call: Callable[[], Result]) -> Result:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    (result,) = results
    return result


def gradient_of_logits(device: CudaDevice, valid: int) -> Any:
    """Of four rows, of which so many count."""
    logits, dloss, log_sum_exp = np.zeros((4, 2), np.float32), np.ones(1, np.float32), np.full(4, np.log(2), np.float32)
    targets = np.array([1] * valid + [IGNORED] * (4 - valid), np.int32)
    dlogits, total, upstream, x, ids = map(device.to_device, (logits, log_sum_exp, dloss, logits, targets))
    device.kernels.cross_entropy_backward(dlogits, total, upstream, x, ids, IGNORED)
    return device.download(dlogits)


def test_a_call_between_two_launches_of_another_changes_nothing(
    cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, launch = gradient_of_logits(cuda, 2), cuda.launch
    counted: list[str] = []

    def interrupted(source: str, kernel: str, *rest: Any) -> None:
        launch(source, kernel, *rest)
        if kernel.startswith("count_valid") and not counted:
            counted.append(kernel)
            in_another_thread(lambda: gradient_of_logits(cuda, 4))

    monkeypatch.setattr(cuda, "launch", interrupted)
    np.testing.assert_array_equal(gradient_of_logits(cuda, 2), alone)
    assert counted == ["count_valid_int32"]


def test_a_thread_keeps_its_scratch_and_gives_it_back_when_it_ends(cuda: CudaDevice) -> None:
    def addresses() -> set[int]:
        return {cuda.address_of(cuda.scratch) for _ in range(3)}

    before = cuda.used_bytes()
    (own,), (other,) = addresses(), in_another_thread(addresses)
    assert own != other
    assert cuda.used_bytes() == before
