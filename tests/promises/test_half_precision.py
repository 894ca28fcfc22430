"""Networks that are stored in bfloat16 or float16 compute in float32: each stored value is rounded once, and no more.

Both builds are given the same parameters, inputs and gradients of outputs, all of which half precision holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.components import (
    ClsToken,
    LearnedPositionEncoding,
    Linear,
    LinearConfig,
    MixtureOfExperts,
    SoftmaxCrossEntropy,
    TokenEmbedding,
)
from mila.core import BuildContext, Component, RuntimeMode, TrainingStep
from mila.devices import ExecutionContext
from mila.memory.plan import GRADIENTS, PARAMETERS
from mila.models import GptConfig, GptTransformer
from mila.training import AdamW
from tests.promises.case import BOTH_MODES, TRAINING, Array, Case
from tests.promises.cases import CASES
from tests.promises.gradient_check import as_tuple, output_weights
from tests.promises.structures import STRUCTURES


def is_single_column(case: Case) -> bool:
    """Say whether the numbers that a case is given are of one feature."""
    shapes = {"input": case.shapes} if isinstance(case.shapes, tuple) else case.shapes
    return any(shape[-1] == 1 and name not in case.limits for name, shape in shapes.items())


def depth(case: Case) -> int:
    return sum(1 for _ in case.make(None).walk())


#: Half precision, with the largest relative error of one rounding.
UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
HALVES = tuple(UNITS)
LEAVES = [case for case in CASES if not case.make(None).is_composite]
#: All but those of a single column: it is a sum that may be smaller than each of its terms, and of their roundings.
COMPOSITES = [case for case in CASES if case.make(None).is_composite and not is_single_column(case)]
#: All leaves in both dtypes; composites, whose leaves are checked by themselves, in both where they are small. Float16
#: differs in how it is widened and rounded only: what training makes shows that.
BUILDS = [
    *((case, "bfloat16", mode) for case in LEAVES for mode in case.modes),
    *((case, "float16", case.modes[-1]) for case in (*LEAVES, *STRUCTURES)),
    *((case, "bfloat16", case.modes[-1]) for case in COMPOSITES),
]
#: One of each kind of composite, the deepest it has.
DEEPEST = {type(case.make(None)): case for case in sorted(COMPOSITES, key=depth)}
#: Components whose parameters take more than all else, each large enough for tiles of a weight not to count.
LARGE: list[tuple[type[Component[Any]], dict[str, Any], tuple[int, ...]]] = [
    (Linear, {"in_features": 2048, "out_features": 2048}, (2, 8, 2048)),
    (Linear, {"in_features": 2048, "out_features": 2048, "trainable": False}, (2, 8, 2048)),
    (TokenEmbedding, {"vocab_size": 50_000, "embedding_dim": 64}, (2, 8)),
    (LearnedPositionEncoding, {"max_seq_len": 8192, "embedding_dim": 512}, (2, 8, 512)),
    (MixtureOfExperts, {"embedding_dim": 128, "hidden_dim": 512, "num_experts": 8}, (2, 8, 128)),
    (MixtureOfExperts, {"embedding_dim": 512, "hidden_dim": 2, "num_experts": 2000}, (2, 8, 512)),
]
#: What an answer is, the answer in half precision, and in float32.
Pairs = list[tuple[str, Array, Array]]
SMALL_GPT = GptConfig(vocab_size=13, embedding_dim=24, num_layers=2, num_heads=3, max_seq_len=16)


def is_trained(case: Case) -> bool:
    """Say whether a case has parameters and is built for training."""
    return TRAINING in case.modes and bool(case.make(None).parameter_count())


def rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def twins(case: Case, dtype: str, mode: RuntimeMode, device: ExecutionContext) -> tuple[Component[Any], Component[Any]]:
    """Return one component stored in half precision, and one in float32 with the same parameters."""
    half, single = case.build(device, mode, dtype), case.build(device, mode, "float32")
    for name, array in zip(half.get_parameter_names(), half.get_parameters(), strict=True):
        if array.dtype == half.dtype:
            single.load_parameter(name, array)
    for part, twin in zip(half.walk(), single.walk(), strict=True):
        if isinstance(part, Linear) and isinstance(twin, Linear) and part._installed is not None:
            table, scales = part._installed  # what a case has installed is no parameter
            twin.install_shared_weight(table.astype(np.float32) if scales is None else table, scales)
    return half, single


def answers(component: Component[Any], inputs: list[Array], dtype: str) -> Iterator[tuple[str, Array]]:
    """Yield outputs, and gradients of inputs and of parameters for gradients of outputs that ``dtype`` holds."""
    outputs = as_tuple(component.forward(*inputs))
    yield from (("output", array.copy()) for array in outputs)
    if component.is_inference_mode:
        return
    weights = [rounded(weight, np.dtype(dtype)).astype(weight.dtype) for weight in output_weights(outputs)]
    weights = [] if isinstance(component, TrainingStep) else weights
    for gradient in as_tuple(component.backward(*inputs, *weights)):
        if gradient.dtype != np.int32:
            yield "input gradient", gradient.copy()
    yield from (("parameter gradient", array.copy()) for array in component.get_gradients() if array is not None)


def both_answers(case: Case, dtype: str, mode: RuntimeMode, device: ExecutionContext) -> tuple[Component[Any], Pairs]:
    half, single = twins(case, dtype, mode, device)
    inputs = case.inputs(half)
    widened = [array.astype(np.float32) if array.dtype == half.dtype else array for array in inputs]
    pairs = zip(answers(half, inputs, dtype), answers(single, widened, dtype), strict=True)
    return half, [(label, got, expected) for (label, got), (_, expected) in pairs]


def reads_what_it_made(component: Component[Any]) -> bool:
    """Say whether backward reads an output, which was rounded in between."""
    return bool(set(component.reads) & set(component.output_names))


def differences(half: Component[Any], pairs: Pairs, unit: float) -> list[str]:
    """Return a line for each answer that is not what float32 computes, but for rounding between the steps.

    Every value between two steps is rounded by at most one ``unit``, relative to itself: errors that do not depend on
    each other, so that they add up as a random walk does. Of gradients of one kind that are zero but for rounding, as
    those of key biases, no more is known than that they are small beside the others.
    """
    steps = sum(not part.is_composite for part in half.walk())
    largest: dict[str, float] = {}
    for label, _, expected in pairs:
        largest[label] = max(largest.get(label, 0.0), float(np.linalg.norm(expected)))
    wrong = []
    for i, (label, got, expected) in enumerate(pairs):
        if not half.is_composite and (label == "output" or not reads_what_it_made(half)):
            is_right = got.tobytes() == rounded(expected, got.dtype).tobytes()
        else:
            error = float(np.linalg.norm(got.astype(np.float64) - expected))
            is_right = error <= 4 * math.sqrt(steps) * unit * largest[label]
        wrong += [] if is_right else [f"{i}: {label}"]
    return wrong


@pytest.mark.parametrize(("case", "dtype", "mode"), BUILDS, ids=str)
def test_what_is_stored_is_what_float32_computes_rounded_once(
    case: Case, dtype: str, mode: RuntimeMode, device: ExecutionContext
) -> None:
    half, pairs = both_answers(case, dtype, mode, device)
    for label, got, _ in pairs:
        assert got.dtype == half.dtype or (got.dtype == np.float32 and label == "output" and got.shape == (1,))
    assert differences(half, pairs, UNITS[dtype]) == []


@pytest.mark.parametrize("case", DEEPEST.values(), ids=str)
def test_a_row_that_was_not_computed_is_noticed(case: Case, device: ExecutionContext) -> None:
    """The largest one of outputs, of gradients of inputs, and of gradients of parameters."""
    half, pairs = both_answers(case, "bfloat16", case.modes[-1], device)
    sizes = [float(np.linalg.norm(expected)) for _, _, expected in pairs]
    for label in {label for label, _, _ in pairs}:
        i = max((i for i, pair in enumerate(pairs) if pair[0] == label), key=sizes.__getitem__)
        got, expected = pairs[i][1].copy(), pairs[i][2]
        row = np.unravel_index(np.argmax(np.linalg.norm(expected, axis=-1)), expected.shape[:-1])
        got[row] = 0
        assert differences(half, [*pairs[:i], (label, got, expected), *pairs[i + 1 :]], 2.0**-8) == [f"{i}: {label}"]


@pytest.mark.parametrize("case", [case for case in (*LEAVES, *STRUCTURES) if is_trained(case)], ids=str)
def test_parameters_and_their_gradients_take_half_the_bytes(case: Case) -> None:
    half, single = (case.make(None, dtype).plan(case.context(TRAINING)) for dtype in ("bfloat16", "float32"))
    for arena in (PARAMETERS, GRADIENTS):
        got, expected = (
            {(b.path, b.name): b.nbytes for b in plan.buffers if b.arena == arena} for plan in (half, single)
        )
        assert {key: 2 * size for key, size in got.items()} == expected
        assert got or arena == GRADIENTS


@pytest.mark.parametrize("mode", BOTH_MODES)
@pytest.mark.parametrize(("component_class", "fields", "shape"), LARGE)
def test_a_network_that_is_mostly_parameters_needs_no_more_than_in_float32(
    component_class: type[Component[Any]], fields: dict[str, Any], shape: tuple[int, ...], mode: RuntimeMode
) -> None:
    config = component_class.config_class(**fields)
    half, single = (
        component_class("large", config, dtype=dtype).plan(BuildContext(shape, mode))
        for dtype in ("bfloat16", "float32")
    )
    parameters = single.stats.device_parameter_bytes + single.stats.device_gradient_bytes
    assert parameters > 0.9 * single.reserved_bytes
    assert half.reserved_bytes <= single.reserved_bytes


def test_every_leaf_with_a_matrix_is_among_the_large_ones() -> None:
    """A row for each sequence is no matrix that grows."""
    with_matrices = {
        type(leaf)
        for root in [case.make(None) for case in CASES]
        for leaf in root.walk()
        if not leaf.is_composite and any(len(declaration.shape) > 1 for declaration in leaf.declared_parameters())
    }
    assert with_matrices - {ClsToken} == {component_class for component_class, _, _ in LARGE}


def training_step(dtype: str) -> TrainingStep:
    network = GptTransformer("gpt", SMALL_GPT, device="cpu", dtype=dtype, seed=1)
    step = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())
    step.build(BuildContext((4, 16), TRAINING))
    return step


@pytest.mark.parametrize("dtype", HALVES)
def test_a_training_step_learns_and_its_loss_and_moments_are_float32(dtype: str) -> None:
    step = training_step(dtype)
    ids = np.random.default_rng(0).integers(0, 13, (4, 16), np.int32)
    targets = np.roll(ids, -1, axis=1)
    losses = []
    for _ in range(20):
        loss = step.forward(ids, targets)
        losses.append(float(loss[0]))
        step.zero_gradients()
        step.backward(ids, targets)
        step.update(0.01)
    assert losses[-1] < losses[0] / 2
    assert loss.dtype == np.float32
    assert {array.dtype for array in step.optimizer_moments().values()} == {np.dtype(np.float32)}
    assert {array.dtype for array in step.get_parameters()} == {np.dtype(dtype)}


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_add_up_with_one_rounding_per_backward(dtype: str, device: ExecutionContext) -> None:
    linear = Linear("linear", LinearConfig(in_features=5, out_features=3), dtype=dtype, seed=0)
    linear.set_execution_context(device)
    linear.build(BuildContext((4, 5), TRAINING))
    rows = np.random.default_rng(0)
    expected: list[Array] = []
    for _ in range(3):
        x, dy = (rows.standard_normal((4, width)).astype(dtype) for width in (5, 3))
        linear.forward(x)
        linear.backward(x, dy)
        wide_x, wide_dy = x.astype(np.float32), dy.astype(np.float32)
        new = [wide_dy.T @ wide_x, wide_dy.sum(axis=0)]
        old = expected or [np.zeros_like(array) for array in new]
        expected = [(a.astype(np.float32) + b).astype(dtype) for a, b in zip(old, new, strict=True)]
    for got, array in zip(linear.get_gradients(), expected, strict=True):
        assert got is not None
        assert np.allclose(got.astype(np.float32), array.astype(np.float32), rtol=2 * UNITS[dtype])


@pytest.mark.parametrize("dtype", HALVES)
def test_weights_are_saved_and_loaded_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    saved, loaded = training_step(dtype), training_step(dtype)
    for array in loaded.get_parameters():
        array.fill(0)
    network, other = saved.network, loaded.network
    assert isinstance(network, GptTransformer)
    assert isinstance(other, GptTransformer)
    network.save_weights(tmp_path / "model.safetensors")
    report = other.load_weights(tmp_path / "model.safetensors")
    assert dict(report.converted) == {}
    assert [a.tobytes() for a in other.get_parameters()] == [a.tobytes() for a in network.get_parameters()]
