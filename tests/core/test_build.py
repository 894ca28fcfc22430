"""Building: once, everything or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mila.core import Component
from mila.devices import ExecutionContext
from mila.errors import ConfigurationError, DeviceError, LifecycleError, OutOfMemoryError, ShapeError
from mila.memory import MemoryStats
from mila.models import GptTransformer
from tests.core.parts import SMALL_GPT, WIDTH, DeliberateError, chain, drawn, gpt, inference, training


def assert_unbuilt(component: Component[Any]) -> None:
    for part in component.walk():
        assert not part.is_built
        assert (part.runtime_mode, part.training_mode, part.build_context) == (None, None, None)
        assert not (part.is_training_mode or part.is_inference_mode or part.is_eval_mode)
        assert part.get_memory_stats() == MemoryStats()


def test_a_build_is_final() -> None:
    model = gpt()
    model.build(training(2, 5))
    with pytest.raises(LifecycleError, match="gpt: is built already"):
        model.build(training(2, 5))
    assert model.is_training_mode


def test_a_build_needs_an_execution_context() -> None:
    model = GptTransformer("gpt", SMALL_GPT)
    with pytest.raises(LifecycleError, match="gpt: has no execution context"):
        model.build(training(2, 5))
    assert_unbuilt(model)
    assert model.get_required_memory(training(2, 5)).total_bytes > 0
    model.set_execution_context(ExecutionContext("cpu"))
    model.build(training(2, 5))


def test_only_roots_are_built() -> None:
    model = gpt()
    with pytest.raises(LifecycleError, match=r"gpt.block_0: only a root is built; build 'gpt'"):
        model["block_0"].build(training(2, 5, 6))
    assert_unbuilt(model)


def test_a_build_that_fails_in_a_hook_changes_nothing_and_can_be_tried_again() -> None:
    component = chain(device="cpu")
    component.moody.fails.add("building")
    with pytest.raises(DeliberateError, match=r"chain.third: building"):
        component.build(training(2, WIDTH))
    assert_unbuilt(component)
    with pytest.raises(LifecycleError, match="needs a built component"):
        component.forward(np.ones((2, WIDTH), np.float32))
    component.moody.fails.clear()
    component.build(training(2, WIDTH))
    assert all(part.is_built for part in component.walk())
    fresh = chain(device="cpu")
    fresh.build(training(2, WIDTH))
    x = np.ones((2, WIDTH), np.float32)
    assert np.array_equal(component.forward(x), fresh.forward(x))


def test_a_build_that_does_not_fit_takes_nothing_and_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ExecutionContext("cpu")
    model = GptTransformer("gpt", SMALL_GPT)
    model.set_execution_context(context)
    needed = model.plan(training(2, 5)).reserved_bytes
    monkeypatch.setattr(context, "available_bytes", lambda: needed - 1)
    monkeypatch.setattr(context, "allocate", lambda size: pytest.fail("nothing may be allocated"))
    with pytest.raises(OutOfMemoryError) as caught:
        model.build(training(2, 5))
    message = str(caught.value)
    assert f"{needed:,}" in message
    assert f"{needed - 1:,}" in message
    assert any(f"{b.path}.{b.name}" in message for b in model.plan(training(2, 5)).largest(1))
    assert isinstance(caught.value, MemoryError)
    assert_unbuilt(model)
    monkeypatch.undo()
    monkeypatch.setattr(context, "available_bytes", lambda: needed)
    model.build(training(2, 5))


def test_a_build_whose_allocation_fails_gives_back_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ExecutionContext("cpu")
    model = GptTransformer("gpt", SMALL_GPT)
    model.set_execution_context(context)
    original, sizes = context.allocate, []

    def failing(size: int) -> Any:
        sizes.append(size)
        if len(sizes) == 3:
            raise MemoryError("no more")
        return original(size)

    monkeypatch.setattr(context, "allocate", failing)
    with pytest.raises(MemoryError):
        model.build(training(2, 5))
    assert_unbuilt(model)
    monkeypatch.undo()
    model.build(training(2, 5))


def test_where_the_system_does_not_say_what_is_free_a_build_goes_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ExecutionContext("cpu")
    model = GptTransformer("gpt", SMALL_GPT)
    model.set_execution_context(context)
    monkeypatch.setattr(context, "available_bytes", lambda: None)
    model.build(training(2, 5))


def test_a_bad_context_builds_nothing() -> None:
    model = gpt()
    for bad, error in ((training(2, 99), ShapeError), ((2, 5), ConfigurationError), (None, ConfigurationError)):
        for call in (model.plan, model.get_required_memory, model.build):
            with pytest.raises(error):
                call(bad)  # type: ignore[arg-type]
    assert_unbuilt(model)


def test_an_execution_context_is_set_once() -> None:
    model = gpt()
    with pytest.raises(LifecycleError, match="an execution context is set already"):
        model.set_execution_context(ExecutionContext("cpu"))
    with pytest.raises(LifecycleError, match="takes its execution context from its root"):
        model["block_0"].set_execution_context(ExecutionContext("cpu"))
    assert str(model["block_0"].device_id) == "cpu"
    assert model["block_0"].device_type == "cpu"


def test_what_is_not_an_execution_context_is_refused() -> None:
    model = GptTransformer("gpt", SMALL_GPT)
    with pytest.raises(DeviceError, match="expected an ExecutionContext, got 'cpu'"):
        model.set_execution_context("cpu")  # type: ignore[arg-type]
    assert not model.has_execution_context
    assert (model.device_id, model.device_type) == (None, None)
    with pytest.raises(LifecycleError, match="has no execution context"):
        model.get_execution_context()


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "tpu", "cpu:1", "", "cuda:-1"])
def test_a_device_that_does_not_exist_is_refused_by_the_constructor(device: str) -> None:
    with pytest.raises(DeviceError):
        GptTransformer("gpt", SMALL_GPT, device=device)


def test_a_hook_that_refuses_the_execution_context_leaves_none() -> None:
    component = chain()
    component.moody.fails.add("context")
    with pytest.raises(DeliberateError):
        component.set_execution_context(ExecutionContext("cpu"))
    assert all(not part.has_execution_context for part in component.walk())
    component.moody.fails.clear()
    component.set_execution_context(ExecutionContext("cpu"))
    component.build(training(2, WIDTH))


def test_a_missing_kernel_is_an_error_when_the_context_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ExecutionContext("cpu")
    original = context.kernels

    class WithoutNorms:
        dtypes = original.dtypes

        def __getattr__(self, name: str) -> Any:
            if name.startswith("layer_norm_forward"):
                raise AttributeError(name)
            return getattr(original, name)

    monkeypatch.setattr(context, "kernels", WithoutNorms())
    component = chain()
    with pytest.raises(DeviceError, match=r"chain.first: .*no kernel 'layer_norm_forward'"):
        component.set_execution_context(context)
    assert not component.has_execution_context


def test_one_execution_context_serves_several_roots_and_outlives_them() -> None:
    context = ExecutionContext("cpu")
    first, second = chain(), chain()
    for component in (first, second):
        component.set_execution_context(context)
        component.build(training(2, WIDTH))
    x = np.ones((2, WIDTH), np.float32)
    expected = first.forward(x).copy()
    assert np.array_equal(second.forward(x), expected)
    first.get_parameters()[0].fill(0)
    del first
    assert np.array_equal(second.forward(x), expected)


def test_the_seed_of_an_execution_context_serves_roots_without_one() -> None:
    models = []
    for seed, own in ((3, None), (0, 3), (3, 4)):
        model = GptTransformer("gpt", SMALL_GPT, seed=own)
        model.set_execution_context(ExecutionContext("cpu", seed=seed))
        model.build(drawn(1, 3))
        models.append(model)
    first, second, third = (model.get_parameters()[0] for model in models)
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)


def test_every_part_of_a_built_network_knows_its_own_context() -> None:
    model = gpt()
    model.build(training(2, 5))
    assert model.build_context is not None
    assert dict(model.build_context.input_shapes) == {"ids": (2, 5)}
    assert dict(model.build_context.input_dtypes) == {"ids": np.dtype(np.int32)}
    block = model["block_0.mlp.fc_2"].build_context
    assert block is not None
    assert block.input_shape == (2, 5, 24)
    assert dict(block.input_dtypes) == {"input": np.dtype(np.float32)}


def test_inference_holds_less_than_training() -> None:
    required = {
        context.runtime_mode: gpt().get_required_memory(context) for context in (training(2, 5), inference(2, 5))
    }
    (trained, inferred) = required.values()
    assert trained.device_parameter_bytes == inferred.device_parameter_bytes
    assert trained.total_bytes > inferred.total_bytes


def test_a_child_asked_before_the_build_is_answered_as_a_root_and_afterwards_by_its_buffers() -> None:
    model = gpt()
    block = model["block_0"]
    assert block.get_required_memory(training(2, 5, 6)).device_gradient_bytes > 0
    assert block.get_memory_stats().total_bytes == 0
    model.build(training(2, 5))
    held = block.get_memory_stats()
    parameters = sum(array.nbytes for array in block.get_parameters())
    assert held.device_parameter_bytes == parameters
    assert held.device_gradient_bytes >= parameters
    assert held.total_bytes < model.get_memory_stats().total_bytes
