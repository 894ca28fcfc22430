"""P5: every option that has a forward has a backward that agrees with central differences."""

from __future__ import annotations

import numpy as np
import pytest

from mila.components import ActivationConfig, Swiglu, SwigluConfig
from mila.core import Run
from mila.devices import ExecutionContext
from tests.promises.case import Array, Case, constructor
from tests.promises.cases import TRAINED
from tests.promises.gradient_check import Function, disagreements


def wrong_gradients(case: Case, device: ExecutionContext) -> list[str]:
    """Return a line for every direction in every float input and parameter whose gradient is not the slope."""
    function = Function(case, device)
    gradients = function.gradients()
    component = function.component
    found = []
    for port, array, gradient in zip(component.ports, function.inputs, gradients.inputs, strict=True):
        assert gradient.shape == array.shape
        if port.is_ids:
            assert gradient.dtype == np.int32
            assert not gradient.any()
        else:
            found += disagreements(function, port.name, array, gradient)
    names = component.get_parameter_names()
    trainable = [d.trainable for part in component.walk() for d in part.declared_parameters()]
    for name, array, parameter_gradient, is_trainable in zip(
        names, function.parameters, gradients.parameters, trainable, strict=True
    ):
        assert (parameter_gradient is not None) is is_trainable, name
        if parameter_gradient is not None:
            found += disagreements(function, name, array, parameter_gradient)
    return found


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_gradients_are_slopes(case: Case, device: ExecutionContext) -> None:
    assert wrong_gradients(case, device) == []


class ForgetsTheGate(Swiglu):
    """Its gradient of the gate is off by one part in ten thousand."""

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        (dx,) = super().backward_step(run, inputs, gradients)
        assert dx is not None
        dx[..., : dx.shape[-1] // 2] *= 1.0001
        return (dx,)


def test_a_slightly_wrong_gradient_is_noticed(device: ExecutionContext) -> None:
    config = SwigluConfig()
    right = Case("right", constructor(Swiglu, config), (config,), (2, 3, 10))
    wrong = Case("wrong", constructor(ForgetsTheGate, config), (config,), (2, 3, 10))
    assert wrong_gradients(right, device) == []
    assert wrong_gradients(wrong, device) != []


def test_every_activation_is_checked_alone_and_as_a_gate() -> None:
    from typing import get_args

    from mila.components.activation import ActivationKind

    configs = [config for case in TRAINED for config in case.configs]
    assert {c.kind for c in configs if isinstance(c, ActivationConfig)} == set(get_args(ActivationKind))
    assert {c.gate_activation for c in configs if isinstance(c, SwigluConfig)} == set(get_args(ActivationKind))
