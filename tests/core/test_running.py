"""Forward and backward: what follows what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mila.components import Activation, LayerNorm, LayerNormConfig, Linear, LinearConfig, Softmax
from mila.core import Component
from mila.errors import DTypeError, LifecycleError, ShapeError
from tests.core.parts import WIDTH, chain, drawn, gpt, inference, training

X = np.linspace(-1, 1, 3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)
DY = np.ones((3, WIDTH), np.float32)


def built(component: Component[Any]) -> Component[Any]:
    component.build(training(3, WIDTH))
    return component


def leaves() -> list[Component[Any]]:
    return [
        Linear("leaf", LinearConfig(in_features=WIDTH, out_features=WIDTH), device="cpu"),
        LayerNorm("leaf", LayerNormConfig(normalized_dim=WIDTH), device="cpu"),
        Activation("leaf", device="cpu"),
        Softmax("leaf", device="cpu"),
    ]


@pytest.mark.parametrize("call", ["forward", "backward", "captured", "zero_gradients"])
def test_an_unbuilt_component_does_not_run(call: str) -> None:
    component = chain(device="cpu")
    if call == "zero_gradients":
        component.zero_gradients()
        return
    with pytest.raises(LifecycleError, match=f"chain: {call} needs a built component; call build first"):
        getattr(component, call)(X)


@pytest.mark.parametrize("call", ["forward", "backward"])
def test_a_child_does_not_run(call: str) -> None:
    component = chain(device="cpu")
    built(component)
    with pytest.raises(LifecycleError, match=f"chain.second: only a root runs; call {call} on 'chain'"):
        getattr(component["second"], call)(X)


def test_backward_needs_a_build_for_training() -> None:
    component = chain(device="cpu")
    component.build(drawn(3, WIDTH))
    component.forward(X)
    with pytest.raises(LifecycleError, match="backward needs a build for training"):
        component.backward(X, DY)
    assert component.get_gradients() == []


def test_backward_needs_a_forward() -> None:
    with pytest.raises(LifecycleError, match="backward needs a forward"):
        built(chain(device="cpu")).backward(X, DY)


def test_a_composite_goes_back_once_per_forward() -> None:
    component = built(chain(device="cpu"))
    component.forward(X)
    component.backward(X, DY)
    with pytest.raises(LifecycleError, match="backward has consumed the activations; call forward again"):
        component.backward(X, DY)
    component.forward(X)
    component.backward(X, DY)


@pytest.mark.parametrize("index", range(4))
def test_a_leaf_alone_may_repeat_backward(index: int) -> None:
    component = built(leaves()[index])
    component.forward(X)
    first = component.backward(X, DY).copy()
    once = [array.copy() for array in component.get_gradients() if array is not None]
    assert np.array_equal(component.backward(X, DY), first)
    twice = [array for array in component.get_gradients() if array is not None]
    assert all(np.allclose(2 * a, b, rtol=1e-6) for a, b in zip(once, twice, strict=True))


def test_backward_after_a_forward_with_other_inputs_is_refused() -> None:
    component = chain(device="cpu")
    component.build(training(3, WIDTH))
    component.forward(X)
    for other in (X.copy(), X[:2], X[1:]):
        with pytest.raises(LifecycleError, match="other inputs than the forward before it"):
            component.backward(other, DY[: len(other)])
    component.backward(X, DY)


def test_an_output_survives_backward_and_lasts_until_the_next_forward() -> None:
    component = built(chain(device="cpu"))
    output = component.forward(X)
    kept = output.copy()
    component.backward(X, DY)
    assert np.array_equal(output, kept)
    again = component.forward(X * 2)
    assert again.ctypes.data == output.ctypes.data
    assert np.array_equal(output, again)


def test_an_output_is_a_contiguous_view_of_an_owned_buffer() -> None:
    component = built(chain(device="cpu"))
    for rows in (3, 2, 1):
        output = component.forward(X[:rows])
        assert output.shape == (rows, WIDTH)
        assert output.flags.c_contiguous
        assert not output.flags.owndata
        assert output.ctypes.data % 64 == 0


def test_backward_takes_the_inputs_and_one_gradient_per_output() -> None:
    component = built(chain(device="cpu"))
    component.forward(X)
    for arguments in ((), (X,), (X, DY, DY), (DY,)):
        with pytest.raises(ShapeError, match=r"chain: .*expected 1 inputs? and 1 gradients?.* got"):
            component.backward(*arguments)
    with pytest.raises(ShapeError, match=r"gradient of 'output'.*expected.*\(3, 6\), got \(2, 6\)"):
        component.backward(X, DY[:2])
    with pytest.raises(DTypeError, match=r"gradient of 'output'.*float32.*float64"):
        component.backward(X, DY.astype(np.float64))
    component.backward(X, DY)


def test_a_bad_id_in_the_middle_leaves_gradients_and_parameters_alone() -> None:
    model = gpt()
    model.build(training(1, 4))
    ids = np.array([[1, 2, 3, 4]], np.int32)
    model.forward(ids)
    model.backward(ids, np.ones((1, 4, 11), np.float32))
    before = [array.tobytes() for array in [*model.get_parameters(), *model.get_gradients()] if array is not None]
    with pytest.raises(IndexError):
        model.forward(np.array([[1, 2, 3, 11]], np.int32))
    with pytest.raises(LifecycleError):
        model.backward(ids, np.ones((1, 4, 11), np.float32))
    after = [array.tobytes() for array in [*model.get_parameters(), *model.get_gradients()] if array is not None]
    assert before == after
    model.forward(ids)


def test_arrays_with_an_interface_are_taken_without_a_copy() -> None:
    class Wrapped:
        def __init__(self, array: Any) -> None:
            self.__array_interface__ = array.__array_interface__
            self.kept = array

    component = built(chain(device="cpu"))
    expected = component.forward(X).copy()
    wrapped = Wrapped(X)
    assert np.array_equal(component.forward(wrapped), expected)  # type: ignore[arg-type]
    component.backward(wrapped, Wrapped(DY))  # type: ignore[arg-type]


# ---------------------------------------------------------------------- parameters


def test_an_inference_build_runs_when_every_parameter_was_loaded() -> None:
    source, model = gpt(seed=4), gpt()
    source.build(drawn(1, 3))
    model.build(inference(1, 3))
    ids = np.array([[1, 2, 3]], np.int32)
    names = model.get_parameter_names()
    missing = list(names)
    for name, array in zip(names, source.get_parameters(), strict=True):
        with pytest.raises(LifecycleError) as caught:
            model.forward(ids)
        shown, rest = missing[:10], len(missing) - 10
        assert all(expected in str(caught.value) for expected in shown[:5])
        assert (f"and {rest} more" in str(caught.value)) is (rest > 0)
        model.load_parameter(name, array)
        missing.remove(name)
    assert np.array_equal(model.forward(ids), source.forward(ids))


def test_a_training_build_without_initial_values_runs_when_every_parameter_was_loaded() -> None:
    leaf = LayerNorm("norm", LayerNormConfig(normalized_dim=WIDTH, bias=False), device="cpu")
    leaf.build(training(3, WIDTH, initialize_parameters=False))
    with pytest.raises(LifecycleError, match="neither initialised nor loaded: weight"):
        leaf.forward(X)
    leaf.load_parameter("weight", np.ones(WIDTH, np.float32))
    leaf.forward(X)


def test_names_parameters_and_gradients_have_one_order_and_length() -> None:
    model = gpt()
    names = model.get_parameter_names()
    with pytest.raises(LifecycleError, match="get_parameters needs a built component"):
        model.get_parameters()
    with pytest.raises(LifecycleError, match="get_gradients needs a built component"):
        model.get_gradients()
    model.build(training(1, 3))
    shapes = [array.shape for array in model.get_parameters()]
    assert model.get_parameter_names() == names
    assert shapes == [None if array is None else array.shape for array in model.get_gradients()]
    assert sum(array.size for array in model.get_parameters()) == model.parameter_count()


def test_gradients_not_reached_are_written_as_zeros() -> None:
    model = gpt()
    model.build(training(1, 3))
    assert all(array is not None and not array.any() for array in model.get_gradients())
    ids = np.array([[1, 2, 3]], np.int32)
    output = model.forward(ids)
    model.backward(ids, np.ones_like(output))
    view = model.get_gradients()[0]
    assert view is not None
    assert view.any()
    model.zero_gradients()
    assert view.any(), "zeroing only marks"
    model.get_gradients()
    assert not view.any(), "and asking writes the zeros"
