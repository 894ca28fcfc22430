"""The two reference networks of 328 and 5,020 parameters, from their text to a trained model in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila import BuildContext, DefinedNetwork, RuntimeMode, TrainingStep
from mila.components import SoftmaxCrossEntropy
from mila.errors import CheckpointError
from mila.network_language import DefinedNetworkConfig, plan_from_json
from mila.serialization import ArchiveMode, ModelArchive
from mila.training.adamw import AdamW, AdamWConfig
from tests.network_language.building import built, inputs_of, named_parameters, network_of, outputs_of
from tests.network_language.network_cases import CASE_BY_ID
from tests.promises.case import Array

NAMES = {"gt-reference-1": 328, "gt-reference-2": 5020}
BATCH = 16
each_reference = pytest.mark.parametrize("case", [CASE_BY_ID[name] for name in NAMES], ids=lambda case: case["id"])


def contents(network: DefinedNetwork) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in named_parameters(network).items()}


def learn(network: DefinedNetwork, ids: Array, targets: Array, steps: int, rate: float) -> list[float]:
    """Gradient descent by hand on the mean squared distance from ``targets``; returns the losses."""
    losses = []
    for _ in range(steps):
        output = network.forward(ids)
        difference = output - targets
        losses.append(float((difference**2).mean()))
        network.zero_gradients()
        network.backward(ids, (2 / difference.size) * difference)
        for parameter, gradient in zip(network.get_parameters(), network.get_gradients(), strict=True):
            assert gradient is not None
            parameter -= rate * gradient
    return losses


@each_reference
def test_it_prints_and_plans_before_anything_is_allocated(case: dict[str, Any]) -> None:
    network = network_of(case)
    assert network.parameter_count() == NAMES[case["id"]]
    assert network.resolved.parameters_line == f"Parameters: {NAMES[case['id']]:,}"
    assert str(network.resolved) == case["expect"]["table"]
    assert str(network) == case["expect"]["model_table"]
    plan = network.plan(BuildContext((32, *case["input_shape"][1:]), RuntimeMode.TRAINING))
    assert not network.is_built
    assert network.get_memory_stats().total_bytes == 0
    assert plan.stats.device_parameter_bytes >= 4 * NAMES[case["id"]]
    assert plan.stats.device_gradient_bytes >= 4 * NAMES[case["id"]]


@each_reference
def test_it_learns_by_hand(case: dict[str, Any]) -> None:
    network = built(network_of(case), RuntimeMode.TRAINING, BATCH)
    (ids,) = inputs_of(network, BATCH)
    targets = np.random.default_rng(1).standard_normal((BATCH, case["output_shape"][1])).astype(np.float32)
    losses = learn(network, ids, targets, steps=60, rate=0.2)
    assert losses[-1] < 0.5 * losses[0]


def training_step(network: DefinedNetwork, case: dict[str, Any]) -> TrainingStep:
    """The network with a loss over classes, one per row: the output width is their number."""
    step = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW(AdamWConfig()))
    shapes = {"x": (BATCH, *case["input_shape"][1:]), "targets": (BATCH,)}
    step.build(BuildContext(shapes, RuntimeMode.TRAINING))
    return step


@each_reference
def test_it_learns_in_a_training_step(case: dict[str, Any]) -> None:
    network = network_of(case)
    step = training_step(network, case)
    (ids,) = inputs_of(network, BATCH)
    targets = np.random.default_rng(1).integers(0, case["output_shape"][1], BATCH)
    losses = []
    for _ in range(20):
        losses.append(float(step.forward(ids, targets)[0]))
        step.zero_gradients()
        step.backward(ids, targets)
        step.update(0.01)
    assert losses[-1] < 0.8 * losses[0]
    assert step.get_parameter_names() == [*network.resolved.parameter_shapes()]


@each_reference
def test_its_weights_go_through_a_file(case: dict[str, Any], tmp_path: Path) -> None:
    network = built(network_of(case), RuntimeMode.TRAINING, BATCH)
    (ids,) = inputs_of(network, BATCH)
    learn(network, ids, np.zeros((BATCH, case["output_shape"][1]), np.float32), steps=3, rate=0.1)
    network.save_weights(tmp_path / "weights.safetensors")

    loaded = built(network_of(case, seed=99), RuntimeMode.INFERENCE, BATCH)
    assert contents(loaded) != contents(network)
    report = loaded.load_weights(tmp_path / "weights.safetensors")
    assert report.loaded == len(network.get_parameter_names())
    assert contents(loaded) == contents(network)
    np.testing.assert_allclose(outputs_of(loaded, ids), outputs_of(network, ids), rtol=1e-5, atol=1e-6)


@each_reference
def test_it_goes_through_an_archive_that_says_all_of_it(case: dict[str, Any], tmp_path: Path) -> None:
    """The config in the archive is the plan: network and weights come from the archive alone."""
    network = built(network_of(case), RuntimeMode.TRAINING, BATCH)
    with ModelArchive.create(tmp_path / "model", ArchiveMode.WEIGHTS_ONLY) as archive:
        network.save_(archive, ArchiveMode.WEIGHTS_ONLY)
    with ModelArchive.open(tmp_path / "model") as reader:
        architecture = reader.read_json("config")
        config = DefinedNetworkConfig.model_validate(architecture["config"])
        loaded = DefinedNetwork("loaded", config, device="cpu", dtype=architecture["dtype"])
        loaded.build(BuildContext((BATCH, *case["input_shape"][1:]), RuntimeMode.INFERENCE))
        loaded.load_(reader, ArchiveMode.WEIGHTS_ONLY)
    assert contents(loaded) == contents(network)
    assert str(loaded) == str(network)
    assert loaded.config == network.config
    assert plan_from_json(config.plan).to_json() == config.plan
    (ids,) = inputs_of(network, BATCH)
    np.testing.assert_allclose(outputs_of(loaded, ids), outputs_of(network, ids), rtol=1e-5, atol=1e-6)


def test_the_weights_of_one_are_refused_by_the_other(tmp_path: Path) -> None:
    first, second = (built(network_of(CASE_BY_ID[name]), RuntimeMode.INFERENCE) for name in NAMES)
    first.save_weights(tmp_path / "weights.safetensors")
    before = contents(second)
    with pytest.raises(CheckpointError, match=r"n2\.norm1\.weight"):
        second.load_weights(tmp_path / "weights.safetensors")
    assert contents(second) == before
