"""The two modes: one fixed at build, one a switch at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mila.components import Dropout, DropoutConfig
from mila.core import RuntimeMode, TrainingMode, TrainingStep
from mila.errors import ConfigurationError, LifecycleError
from tests.core.parts import INFERENCE, TRAINING, WIDTH, Chain, DeliberateError, chain, drawn, gpt, training

NORMAL, EVAL = TrainingMode.NORMAL, TrainingMode.EVAL


def built() -> Chain:
    component = chain(device="cpu")
    component.build(training(2, WIDTH))
    component.moody.calls.clear()
    return component


def modes(component: Any) -> set[Any]:
    return {part.training_mode for part in component.walk()}


@pytest.mark.parametrize(
    ("mode", "runtime", "switch", "is_training", "is_inference", "is_eval"),
    [
        (None, None, None, False, False, False),
        (TRAINING, TRAINING, NORMAL, True, False, False),
        (INFERENCE, INFERENCE, EVAL, False, True, True),
    ],
)
def test_the_modes_of_a_component(
    mode: RuntimeMode | None, runtime: Any, switch: Any, is_training: bool, is_inference: bool, is_eval: bool
) -> None:
    model = gpt()
    if mode is not None:
        model.build(training(1, 3) if mode is TRAINING else drawn(1, 3))
    for part in model.walk():
        assert (part.runtime_mode, part.training_mode) == (runtime, switch)
        assert (part.is_training_mode, part.is_inference_mode, part.is_eval_mode) == (
            is_training,
            is_inference,
            is_eval,
        )


def test_an_unbuilt_component_has_no_switch() -> None:
    for mode in (NORMAL, EVAL, "eval"):
        with pytest.raises(LifecycleError, match="set_training_mode needs a built component"):
            chain(device="cpu").set_training_mode(mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [NORMAL, EVAL, "eval"])
def test_an_inference_build_has_no_switch_whatever_is_asked_for(mode: Any) -> None:
    model = gpt()
    model.build(drawn(1, 3))
    with pytest.raises(LifecycleError, match="an inference build is always in EVAL"):
        model.set_training_mode(mode)


def test_the_switch_turns_the_component_and_everything_below_it() -> None:
    component = built()
    component.set_training_mode(EVAL)
    assert modes(component) == {EVAL}
    assert component.is_eval_mode
    assert component.is_training_mode
    component.set_training_mode(NORMAL)
    assert modes(component) == {NORMAL}
    assert component.moody.calls == ["to eval", "to normal"]


def test_the_same_mode_again_is_a_no_op() -> None:
    component = built()
    component.set_training_mode(NORMAL)
    assert component.moody.calls == []
    for _ in range(3):
        component.set_training_mode(EVAL)
    assert component.moody.calls == ["to eval"]


def test_a_hook_that_refuses_keeps_the_mode_of_everything() -> None:
    component = built()
    component.moody.fails.add("to eval")
    with pytest.raises(DeliberateError):
        component.set_training_mode(EVAL)
    assert modes(component) == {NORMAL}
    component.moody.fails.clear()
    component.set_training_mode(EVAL)
    assert modes(component) == {EVAL}


@pytest.mark.parametrize("mode", ["eval", None, True, RuntimeMode.TRAINING])
def test_what_is_not_a_training_mode_is_refused(mode: Any) -> None:
    component = built()
    with pytest.raises(ConfigurationError, match="expected a TrainingMode"):
        component.set_training_mode(mode)
    assert modes(component) == {NORMAL}


def test_a_part_of_a_network_can_be_switched_by_itself() -> None:
    component = built()
    component.moody.set_training_mode(EVAL)
    assert component.moody.is_eval_mode
    assert component.training_mode is NORMAL
    component.set_training_mode(EVAL)
    assert component.moody.calls == ["to eval"], "what is there already is not asked again"


def test_in_eval_backward_raises_and_gradients_stay() -> None:
    component = built()
    x, dy = np.ones((2, WIDTH), np.float32), np.ones((2, WIDTH), np.float32)
    component.forward(x)
    component.backward(x, dy)
    before = [array.copy() for array in component.get_gradients() if array is not None]
    component.set_training_mode(EVAL)
    component.forward(x)
    with pytest.raises(LifecycleError, match="backward is refused in EVAL"):
        component.backward(x, dy)
    component.set_training_mode(NORMAL)
    with pytest.raises(LifecycleError, match="backward needs a forward"):
        component.backward(x, dy)
    after = [array for array in component.get_gradients() if array is not None]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))
    component.forward(x)
    component.backward(x, dy)
    assert all(
        np.allclose(2 * a, np.array(b), rtol=1e-6) for a, b in zip(before, component.get_gradients(), strict=True)
    ), "accumulation survives an evaluation"


def test_in_eval_dropout_is_off() -> None:
    dropout = Dropout("dropout", DropoutConfig(probability=0.5), device="cpu")
    dropout.build(training(64, 64))
    x = np.ones((64, 64), np.float32)
    first = dropout.forward(x).copy()
    assert 0.4 < (first == 0).mean() < 0.6
    assert set(np.unique(first)) == {0.0, 2.0}
    dropout.set_training_mode(EVAL)
    assert np.array_equal(dropout.forward(x), x)
    dropout.set_training_mode(NORMAL)
    assert not np.array_equal(dropout.forward(x), first), "another run draws another mask"


def test_an_evaluation_does_not_advance_the_draws() -> None:
    plain, evaluated = (Dropout("dropout", DropoutConfig(probability=0.5), device="cpu", seed=3) for _ in range(2))
    x = np.ones((8, 8), np.float32)
    for component in (plain, evaluated):
        component.build(training(8, 8))
        component.forward(x)
    evaluated.set_training_mode(EVAL)
    evaluated.forward(x)
    evaluated.set_training_mode(NORMAL)
    assert np.array_equal(plain.forward(x), evaluated.forward(x))


def test_backward_of_dropout_applies_the_mask_of_its_forward() -> None:
    dropout = Dropout("dropout", DropoutConfig(probability=0.5), device="cpu")
    dropout.build(training(8, 8))
    x = np.ones((8, 8), np.float32)
    for _ in range(2):
        y = dropout.forward(x).copy()
        assert np.array_equal(dropout.backward(x, x), y)


def test_a_training_step_does_not_update_in_eval() -> None:
    from mila.components import SoftmaxCrossEntropy
    from mila.training.adamw import AdamW

    step = TrainingStep(gpt(), SoftmaxCrossEntropy("loss"), AdamW())
    step.build(training(1, 3))
    step.set_training_mode(EVAL)
    ids = np.zeros((1, 3), np.int32)
    assert np.isfinite(step.forward(ids, ids)).all()
    with pytest.raises(LifecycleError, match="update is refused in EVAL"):
        step.update(0.1)
