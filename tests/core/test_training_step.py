"""Training steps: network, loss and optimizer under one root and one plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mila.components import (
    Linear,
    LinearConfig,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyConfig,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from mila.core import BuildContext, ComponentConfig, CompositeComponent, Graph, Port, Reference, TrainingStep
from mila.devices import ExecutionContext
from mila.errors import ConfigurationError, DTypeError, LifecycleError, NonFiniteError
from mila.models import GptTransformer
from mila.training.adamw import AdamW, AdamWConfig
from tests.core.parts import SMALL_GPT, TRAINING, drawn, gpt, inference, training

IDS = np.random.default_rng(0).integers(0, 11, (2, 5), np.int32)
TARGETS = np.random.default_rng(1).integers(0, 11, (2, 5), np.int32)


def step(**optimizer: Any) -> TrainingStep:
    return TrainingStep(gpt(dtype="float64", seed=2), SoftmaxCrossEntropy("loss"), AdamW(AdamWConfig(**optimizer)))


def built(**optimizer: Any) -> TrainingStep:
    component = step(**optimizer)
    component.build(training(2, 5))
    return component


def train(component: TrainingStep) -> float:
    loss = float(component.forward(IDS, TARGETS)[0])
    component.zero_gradients()
    component.backward(IDS, TARGETS)
    return loss


def test_it_adds_no_segment_to_paths() -> None:
    component = step()
    assert component.network.path == "gpt"
    assert component.network["block_0"].path == "gpt.block_0"  # type: ignore[index]
    assert component.get_parameter_names() == gpt().get_parameter_names()
    assert component.parameter_count() == gpt().parameter_count()


def test_it_takes_the_execution_context_dtype_and_seed_of_its_network() -> None:
    network = GptTransformer("gpt", SMALL_GPT, dtype="float64", seed=9)
    context = ExecutionContext("cpu")
    network.set_execution_context(context)
    component = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())
    assert component.get_execution_context() is context
    assert (component.dtype, component.seed) == (np.dtype(np.float64), 9)
    assert network.has_execution_context
    without = TrainingStep(GptTransformer("gpt", SMALL_GPT), SoftmaxCrossEntropy("loss"), AdamW())
    assert not without.has_execution_context
    without.set_execution_context(context)
    given = TrainingStep(GptTransformer("gpt", SMALL_GPT), SoftmaxCrossEntropy("loss"), AdamW(), device="cpu")
    assert given.has_execution_context


def test_what_it_cannot_train_is_refused_and_stays_usable() -> None:
    network = gpt()
    with pytest.raises(ConfigurationError, match="has a device already"):
        TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW(), device="cpu")
    with pytest.raises(DTypeError):
        TrainingStep(network, SoftmaxCrossEntropy("loss", dtype="float64"), AdamW())
    with pytest.raises(ConfigurationError, match="a loss of"):
        TrainingStep(network, Linear("loss", LinearConfig(in_features=11, out_features=1)), AdamW())
    assert network.parent is None
    assert network.has_execution_context
    network.build(drawn(1, 3))
    with pytest.raises(LifecycleError, match="takes an unbuilt network"):
        TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())


def test_its_network_alone_is_neither_built_nor_run() -> None:
    component = built()
    with pytest.raises(LifecycleError, match="only a root"):
        component.network.forward(IDS)
    with pytest.raises(LifecycleError, match="only a root"):
        component.network.build(training(2, 5))


def test_it_is_for_training() -> None:
    with pytest.raises(LifecycleError, match="built for training"):
        step().plan(inference(2, 5))


def test_a_shape_of_ids_serves_targets_too() -> None:
    one, both = step(), step()
    both_shapes = BuildContext({"ids": (2, 5), "targets": (2, 5)}, TRAINING)
    assert one.plan(training(2, 5)).to_dict() == both.plan(both_shapes).to_dict()


def test_the_loss_is_that_of_its_network_and_its_loss_alone() -> None:
    network = gpt(dtype="float64", seed=2)
    network.build(training(2, 5))
    loss = SoftmaxCrossEntropy("loss", device="cpu", dtype="float64")
    loss.build(training(2, 5, 11))
    logits = network.forward(IDS).copy()
    expected = loss.forward(logits, TARGETS)[0]
    component = built()
    assert component.forward(IDS, TARGETS).shape == (1,)
    assert component.forward(IDS, TARGETS)[0] == expected
    component.backward(IDS, TARGETS)
    network.backward(IDS, loss.backward(logits, TARGETS, np.ones(1))[0].copy())
    for a, b in zip(component.get_gradients(), network.get_gradients(), strict=True):
        assert a is not None
        assert b is not None
        assert np.allclose(a, b, rtol=1e-12, atol=1e-15)


def test_adamw_moves_as_its_formula_says() -> None:
    """Loshchilov & Hutter 2019, algorithm 2, written out once more."""
    beta1, beta2, epsilon, decay, rate = 0.8, 0.95, 1e-6, 0.1, 0.05
    component = built(beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=decay, maximum_norm=0.5)
    names = component.get_parameter_names()
    weights = [array.copy() for array in component.get_parameters()]
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    for t in range(1, 4):
        train(component)
        gradients = [np.array(array) for array in component.get_gradients()]
        norm = np.sqrt(sum(float((g**2).sum()) for g in gradients))
        assert np.isclose(component.update(rate), norm, rtol=1e-12)
        assert norm > 0.5
        for name, w, g, (m, v) in zip(names, weights, gradients, moments, strict=True):
            g = g * (0.5 / norm)
            m[...] = beta1 * m + (1 - beta1) * g
            v[...] = beta2 * v + (1 - beta2) * g**2
            decays = w.ndim == 2 and name.endswith("weight")
            step_size = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
            w -= rate * (step_size + (decay if decays else 0) * w)
    for a, b in zip(weights, component.get_parameters(), strict=True):
        assert np.allclose(a, b, rtol=1e-10, atol=1e-12)
    assert component.update_count == 3


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_named() -> None:
    component = built()
    train(component)
    component.update(0.01)
    train(component)
    index = component.get_parameter_names().index("block_1.mlp.fc_1.weight")
    gradient = component.get_gradients()[index]
    assert gradient is not None
    gradient[3, 2] = np.inf
    before = [array.tobytes() for array in component.get_parameters()]
    with pytest.raises(NonFiniteError, match=r"gpt.block_1.mlp.fc_1.*'weight' is inf at \(3, 2\)"):
        component.update(0.01)
    assert [array.tobytes() for array in component.get_parameters()] == before
    assert component.update_count == 1
    train(component)
    component.update(0.01)


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_a_learning_rate_without_meaning_is_refused(rate: float) -> None:
    component = built()
    train(component)
    before = [array.tobytes() for array in component.get_parameters()]
    with pytest.raises(ConfigurationError, match="learning rate"):
        component.update(rate)
    assert [array.tobytes() for array in component.get_parameters()] == before


def test_a_learning_rate_of_zero_moves_nothing() -> None:
    component = built(weight_decay=0.5)
    train(component)
    before = [array.tobytes() for array in component.get_parameters()]
    component.update(0.0)
    assert [array.tobytes() for array in component.get_parameters()] == before


def test_logits_are_those_of_the_last_position_and_leave_gradients_alone() -> None:
    component = built()
    train(component)
    before = [np.array(array) for array in component.get_gradients()]
    alone = gpt(dtype="float64", seed=2)
    alone.build(drawn(2, 5))
    for length in (5, 3, 1):
        ids = IDS[:, :length].copy()
        logits = component.logits(ids)
        assert logits.shape == (2, 1, 11)
        assert np.allclose(logits, alone.forward(ids), rtol=1e-12, atol=1e-14)
    assert all(np.array_equal(a, np.array(b)) for a, b in zip(before, component.get_gradients(), strict=True))
    assert component.training_mode is not None
    assert not component.is_eval_mode
    with pytest.raises(LifecycleError, match="backward needs a forward"):
        component.backward(IDS, TARGETS)
    train(component)


class TrainableThenFrozen(CompositeComponent[ComponentConfig]):
    """Frozen parameters between trainable ones."""

    config_class = ComponentConfig
    ports = (Port("ids", is_ids=True),)

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        embedding = TokenEmbeddingConfig(vocab_size=11, embedding_dim=7, trainable=False)
        h = graph.add(TokenEmbedding("frozen_1", embedding), *inputs)
        h = graph.add(Linear("trained_1", LinearConfig(in_features=7, out_features=5)), h)
        frozen = LinearConfig(in_features=5, out_features=3, trainable=False)
        h = graph.add(Linear("frozen_2", frozen), h)
        return graph.add(Linear("trained_2", LinearConfig(in_features=3, out_features=11)), h)


def test_frozen_parameters_stand_last_without_gradient_or_moments_and_do_not_move() -> None:
    network = TrainableThenFrozen("network", ComponentConfig(), device="cpu")
    component = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW(AdamWConfig(weight_decay=0.5)))
    plan = component.plan(training(2, 5))
    offsets = {f"{b.path}.{b.name}": b.offset for b in plan.buffers if b.arena == "parameters"}
    frozen = [offset for name, offset in offsets.items() if "frozen" in name]
    trained = [offset for name, offset in offsets.items() if "trained" in name]
    assert min(frozen) > max(trained)
    for arena in ("gradients", "first_moment", "second_moment"):
        assert not any("frozen" in b.path for b in plan.buffers if b.arena == arena)
        assert plan.arena_bytes[arena] < plan.arena_bytes["parameters"]
    component.build(training(2, 5))
    before = {n: a.copy() for n, a in zip(component.get_parameter_names(), component.get_parameters(), strict=True)}
    train(component)
    assert [array is None for array in component.get_gradients()] == ["frozen" in name for name in before]
    component.update(0.1)
    for name, array in zip(before, component.get_parameters(), strict=True):
        assert np.array_equal(array, before[name]) is ("frozen" in name)


def test_moments_have_the_element_offsets_of_the_parameters() -> None:
    plan = step().plan(training(2, 5))
    offsets = {
        arena: [b.offset // b.dtype.itemsize for b in plan.buffers if b.arena == arena]
        for arena in ("parameters", "gradients", "first_moment", "second_moment")
    }
    assert len(offsets["parameters"]) == 28
    assert all(found == offsets["parameters"] for found in offsets.values())


def test_nothing_to_train_is_an_error_of_update() -> None:
    config = SMALL_GPT.model_copy(update={"trainable": False})
    component = TrainingStep(GptTransformer("gpt", config, device="cpu"), SoftmaxCrossEntropy("loss"), AdamW())
    component.build(training(2, 5))
    component.forward(IDS, TARGETS)
    component.backward(IDS, TARGETS)
    with pytest.raises(ConfigurationError, match="no trainable parameter"):
        component.update(0.1)


def test_ignored_targets_do_not_count() -> None:
    loss = SoftmaxCrossEntropy("loss", SoftmaxCrossEntropyConfig(ignore_index=-1))
    component = TrainingStep(gpt(dtype="float64", seed=2), loss, AdamW())
    component.build(training(2, 5))
    targets = TARGETS.copy()
    targets[1] = -1
    alone = built()
    assert np.isclose(component.forward(IDS, targets)[0], alone.forward(IDS[:1], TARGETS[:1])[0], rtol=1e-12)


def test_a_network_of_activations_is_trained_too() -> None:
    network = Linear("linear", LinearConfig(in_features=4, out_features=6), device="cpu")
    component = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())
    component.build(BuildContext({"input": (2, 3, 4), "targets": (2, 3)}, TRAINING))
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    targets = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    losses = []
    for _ in range(10):
        losses.append(float(component.forward(x, targets)[0]))
        component.zero_gradients()
        component.backward(x, targets)
        component.update(0.1)
    assert losses[-1] < losses[0]
