"""Every operator with every option, and every example: gradients are slopes, in float64, through the network."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import mila
from mila.devices import ExecutionContext
from mila.network_language import BUILT_IN, Argument, Example, Operator, ResolvedNode
from tests.network_language.building import batch_of, example_network, id_limit, input_shapes
from tests.network_language.operator_calls import ALL_CALLS, WITHOUT_VARIANTS, Call
from tests.promises.case import Case
from tests.promises.test_p5_gradients import wrong_gradients

DEVICE = ExecutionContext("cpu", threads=2)
EXAMPLES = [(operator, example) for operator in BUILT_IN.operators for example in operator.examples]
OPTIONS = [(operator, argument) for operator in BUILT_IN.operators for argument in operator.arguments]


def gradient_case(name: str, construct: Any) -> Case:
    """A network as a case of the gradient check: three rows, or as many as the batch has."""

    def make(dtype: str, seed: int) -> mila.DefinedNetwork:
        network: mila.DefinedNetwork = construct(compute_dtype=dtype, seed=seed, device=None)
        return network

    resolved = construct(device=None).resolved
    shapes = input_shapes(resolved, batch_of(resolved, free=3))
    return Case(
        name, make, (), shapes, limits={tensor.name: id_limit(resolved, tensor.name) for tensor in resolved.inputs}
    )


@cache
def called_nodes() -> list[ResolvedNode]:
    """The nodes of all calls."""
    return [node for call in ALL_CALLS for node in mila.resolve(call.source, **call.contracts()).nodes]


@pytest.mark.parametrize("call", ALL_CALLS, ids=str)
def test_gradients_of_a_call_are_slopes(call: Call) -> None:
    assert wrong_gradients(gradient_case(str(call), call.network), DEVICE) == []


@pytest.mark.parametrize(("operator", "example"), EXAMPLES, ids=lambda item: getattr(item, "alias", ""))
def test_gradients_of_an_example_are_slopes(operator: Operator, example: Example) -> None:
    case = gradient_case(operator.alias, lambda **changes: example_network(example, **changes))
    assert wrong_gradients(case, DEVICE) == []


@pytest.mark.parametrize(
    ("operator", "argument"), OPTIONS, ids=lambda item: getattr(item, "alias", getattr(item, "name", ""))
)
def test_every_choice_and_every_flag_is_checked(operator: Operator, argument: Argument) -> None:
    """An operator or an option that nobody wrote a call for fails here."""
    found = {node.arguments[argument.name] for node in called_nodes() if node.operator is operator}
    if argument.choices:
        assert found == {*argument.choices}
    elif argument.type == "bool" and (operator.alias, argument.name) != ("linear", "spectral_norm"):
        assert found == {True, False}
    elif argument.default is not None and (operator.alias, argument.name) not in WITHOUT_VARIANTS:
        assert argument.default in found and len(found) > 1
    else:
        assert found


def test_every_operator_is_checked() -> None:
    assert {call.alias for call in ALL_CALLS} == {*BUILT_IN}
