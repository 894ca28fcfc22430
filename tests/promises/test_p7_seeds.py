"""P7: the same seed gives the same weights, whatever the order of construction or the name of the root."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mila.components import Mlp, MlpConfig
from mila.core import BuildContext, Component, CompositeComponent, Graph, Reference, TrainingStep
from mila.devices import ExecutionContext
from mila.models import GptConfig, GptTransformer
from tests.promises.case import INFERENCE, TRAINING, Case
from tests.promises.cases import CASES, TRAINED
from tests.promises.composite_cases import GPT, TRAINING_STEPS
from tests.promises.gradient_check import as_tuple
from tests.promises.running import differences, everything
from tests.promises.structures import EMPTY, WIDTH, EmptyConfig

WITH_PARAMETERS = [case for case in CASES if case.make(None).parameter_count()]


def weights(component: Component[Any]) -> list[bytes]:
    return [array.tobytes() for array in component.get_parameters()]


@pytest.mark.parametrize("case", WITH_PARAMETERS, ids=str)
def test_the_same_seed_gives_the_same_weights_in_every_mode_and_layout(case: Case, device: ExecutionContext) -> None:
    built = [case.build(device, mode) for mode in case.modes for _ in range(2)]
    assert all(weights(component) == weights(built[0]) for component in built)


@pytest.mark.parametrize("case", WITH_PARAMETERS, ids=str)
def test_float64_weights_are_float32_weights_widened(case: Case, device: ExecutionContext) -> None:
    narrow, wide = (case.build(device, case.modes[0], dtype) for dtype in ("float32", "float64"))
    for a, b in zip(narrow.get_parameters(), wide.get_parameters(), strict=True):
        assert np.array_equal(a.astype(b.dtype), b)


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_the_same_seed_gives_the_same_run(case: Case, device: ExecutionContext) -> None:
    first, second = (everything(case, case.build(device, TRAINING), TRAINING) for _ in range(2))
    assert differences(first, second) == []


def test_another_seed_gives_other_weights_and_other_masks(device: ExecutionContext) -> None:
    case = next(case for case in TRAINED if str(case).startswith("GptTransformer(dropout"))
    first, second = (case.build(device, TRAINING, seed=seed) for seed in (1, 2))
    assert all(a != b for a, b, name in zip(*map(weights, (first, second)), names(first), strict=True) if drawn(name))
    for name, array in zip(names(first), first.get_parameters(), strict=True):
        second.load_parameter(name, array)
    assert not np.array_equal(*(component.forward(*case.inputs(component)) for component in (first, second)))


def names(component: Component[Any]) -> list[str]:
    return component.get_parameter_names()


def drawn(name: str) -> bool:
    """Say whether a parameter is drawn at random: biases start at 0 and the weights of norms at 1."""
    return not name.endswith("bias") and ".ln" not in name and not name.startswith("ln")


def test_the_name_of_the_root_does_not_matter(device: ExecutionContext) -> None:
    models = [GptTransformer(name, GptConfig(**GPT), seed=3) for name in ("a", "another")]
    for model in models:
        model.set_execution_context(device)
        model.build(BuildContext((1, 5), TRAINING))
    assert weights(models[0]) == weights(models[1])


def test_a_training_step_has_the_weights_of_its_network_alone(device: ExecutionContext) -> None:
    step = TRAINING_STEPS[0].build(device, TRAINING)
    assert isinstance(step, TrainingStep)
    alone = GptTransformer("alone", GptConfig(**GPT), seed=7)
    alone.set_execution_context(device)
    alone.build(BuildContext((1, 5), INFERENCE, initialize_parameters=True))
    assert weights(step) == weights(alone)
    assert names(step) == names(alone)


class Pair(CompositeComponent[EmptyConfig]):
    """Two children, constructed and added in one order or the other."""

    config_class = EmptyConfig
    is_reversed = False

    def compose(self, graph: Graph, *inputs: Reference) -> tuple[Reference, ...]:
        config = MlpConfig(embedding_dim=WIDTH, hidden_dim=WIDTH)
        order = ("second", "first") if self.is_reversed else ("first", "second")
        made = {name: graph.add(child, *inputs) for name, child in [(name, Mlp(name, config)) for name in order]}
        return made["first"], made["second"]

    output_names = ("first", "second")


class ReversedPair(Pair):
    is_reversed = True


def test_the_order_of_construction_does_not_matter_and_siblings_differ(device: ExecutionContext) -> None:
    pairs = [Pair("pair", EMPTY, seed=5), ReversedPair("pair", EMPTY, seed=5)]
    found = []
    for pair in pairs:
        pair.set_execution_context(device)
        pair.build(BuildContext((2, WIDTH), TRAINING))
        found.append({name: array.tobytes() for name, array in zip(names(pair), pair.get_parameters(), strict=True)})
    assert found[0] == found[1]
    assert found[0]["first.fc_1.weight"] != found[0]["second.fc_1.weight"]
    assert found[0]["first.fc_1.weight"] != found[0]["first.fc_2.weight"]


def test_no_two_drawn_parameters_of_a_model_are_alike(device: ExecutionContext) -> None:
    model = TRAINING_STEPS[-1].build(device, TRAINING)
    first_values = [array.reshape(-1)[:4].tobytes() for array, name in parameters(model) if drawn(name)]
    assert len(set(first_values)) == len(first_values) > 8


def parameters(model: Component[Any]) -> list[tuple[np.ndarray[Any, Any], str]]:
    return list(zip(model.get_parameters(), names(model), strict=True))


@pytest.mark.parametrize("case", TRAINING_STEPS, ids=str)
def test_losses_fall(case: Case, device: ExecutionContext) -> None:
    """Twenty steps on one batch, at a rate that all of these take."""
    step = case.build(device, TRAINING)
    assert isinstance(step, TrainingStep)
    inputs = case.inputs(step)
    losses = []
    for _ in range(20):
        losses.append(float(as_tuple(step.forward(*inputs))[0][0]))
        step.zero_gradients()
        step.backward(*inputs)
        step.update(0.01)
    assert losses[-1] < 0.8 * losses[0]
