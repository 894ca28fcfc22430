"""Queued work runs when it must, and a missing order between two uses of the same memory is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.emulator.device_array import DeviceArray
from tests.emulator.errors import KernelError, StreamError
from tests.emulator.kernel_files import module, needs_emulator
from tests.emulator.streams import Event, Stream, synchronize_all

pytestmark = needs_emulator

COUNT = 64


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Any:
    yield
    synchronize_all()


def ones() -> DeviceArray:
    return DeviceArray.from_host(np.ones(COUNT, np.float32))


def empty() -> DeviceArray:
    return DeviceArray((COUNT,), np.float32)


def add(result: DeviceArray, a: DeviceArray, b: DeviceArray, stream: Stream | None = None) -> None:
    module("vector_add.cu").kernel("vector_add").launch([1], [COUNT], [a, b, result, np.int32(COUNT)], stream=stream)


def test_nothing_runs_before_the_host_waits() -> None:
    stream, result = Stream("main"), empty()
    add(result, ones(), ones(), stream)
    assert not stream.done
    stream.synchronize()
    assert stream.done
    assert (result.to_host() == 2).all()


def test_reading_a_result_before_the_stream_ran_is_named() -> None:
    stream, result = Stream("main"), empty()
    add(result, ones(), ones(), stream)
    message = (
        "read of a result on the host and kernel vector_add on stream main use the same 256 bytes, the second writes"
    )
    with pytest.raises(StreamError, match=message):
        result.to_host()


def test_reading_what_a_queued_kernel_only_reads_is_fine() -> None:
    stream, a = Stream("main"), ones()
    add(empty(), a, a, stream)
    assert (a.to_host() == 1).all()


def test_overwriting_the_input_of_a_queued_kernel_is_named() -> None:
    stream, a = Stream("main"), ones()
    add(empty(), a, a, stream)
    with pytest.raises(StreamError, match=r"copy to the device on the host and kernel vector_add .* the first writes"):
        a.copy_from(np.zeros(COUNT, np.float32))


def test_a_stream_runs_in_order() -> None:
    stream, a, b, c = Stream("main"), ones(), empty(), empty()
    add(b, a, a, stream)
    add(c, b, b, stream)
    add(b, c, a, stream)
    stream.synchronize()
    assert (b.to_host() == 5).all()
    assert (c.to_host() == 4).all()


def test_a_missing_wait_between_streams_is_named() -> None:
    first, second, a, b = Stream("first"), Stream("second"), ones(), empty()
    add(b, a, a, first)
    with pytest.raises(
        StreamError, match=r"vector_add on stream second and kernel vector_add on stream first .*nothing orders"
    ):
        add(empty(), b, b, second)
    with pytest.raises(StreamError, match="both write"):
        add(b, a, a, second)


def test_an_event_orders_two_streams() -> None:
    first, second, a, b, c = Stream("first"), Stream("second"), ones(), empty(), empty()
    add(b, a, a, first)
    second.wait(first.record())
    add(c, b, b, second)
    second.synchronize()  # runs what the event stands for, too
    assert first.done
    assert (c.to_host() == 4).all()


def test_an_event_covers_only_what_came_before_it() -> None:
    first, second, a, b, c = Stream("first"), Stream("second"), ones(), empty(), empty()
    event = first.record()
    add(b, a, a, first)
    second.wait(event)
    with pytest.raises(StreamError):
        add(c, b, b, second)


def test_order_passes_through_a_third_stream() -> None:
    first, second, third = Stream("first"), Stream("second"), Stream("third")
    a, b, c = ones(), empty(), empty()
    add(b, a, a, first)
    second.wait(first.record())
    third.wait(second.record())
    add(c, b, b, third)
    third.synchronize()
    assert (c.to_host() == 4).all()


def test_the_host_orders_streams_by_waiting() -> None:
    first, second, a, b, c = Stream("first"), Stream("second"), ones(), empty(), empty()
    add(b, a, a, first)
    event = first.record()
    assert not event.done
    event.synchronize()
    assert event.done
    add(c, b, b, second)
    second.synchronize()
    assert (c.to_host() == 4).all()


def test_an_event_that_was_never_recorded_has_nothing_to_wait_for() -> None:
    event = Event()
    assert event.done
    event.synchronize()
    Stream("main").wait(event)


def test_a_copy_takes_the_values_when_it_runs() -> None:
    stream, host = Stream("main"), np.ones(COUNT, np.float32)
    array = DeviceArray.from_host(host, stream)
    host[:] = 2
    stream.synchronize()
    assert (array.to_host() == 2).all()


def test_what_a_queued_kernel_does_wrong_is_raised_when_it_runs() -> None:
    stream = Stream("main")
    module("planted_bugs.cu").kernel("trap").launch([1], [64], [empty(), ones(), np.int32(COUNT)], stream=stream)
    with pytest.raises(KernelError, match="trap"):
        stream.synchronize()
    assert stream.done
