"""Build contexts: shapes, chunks, capacities, captures."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from mila.components import (
    Activation,
    Attention,
    AttentionConfig,
    GptBlock,
    GptBlockConfig,
    LastPosition,
    LayerNorm,
    LayerNormConfig,
    Linear,
    LinearConfig,
    Residual,
    Softmax,
    SoftmaxConfig,
    SoftmaxCrossEntropy,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from mila.core import BuildContext, Component
from mila.core.context import LeafContext, Overwrite
from mila.errors import ConfigurationError, LifecycleError, ShapeError
from mila.models import GptConfig, GptTransformer
from tests.core.parts import INFERENCE, SMALL_GPT, TRAINING, chain, drawn, gpt, inference, llama, training


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((), ShapeError),
        (None, ShapeError),
        (b"23", ShapeError),
        ((0, 3), ShapeError),
        ((2, -1), ShapeError),
        ((2.0, 3), ShapeError),
        ((True, 3), ShapeError),
        ("23", ShapeError),
        (5, ShapeError),
        ({}, ShapeError),
        ({"ids": (0,)}, ShapeError),
    ],
)
def test_a_shape_that_is_none_is_refused(shape: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="build context"):
        BuildContext(shape, TRAINING)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"prefill_size": 0}, ShapeError),
        ({"prefill_size": -1}, ShapeError),
        ({"prefill_size": 1.5}, ShapeError),
        ({"prefill_size": True}, ShapeError),
        ({"max_seq_len": 0}, ShapeError),
        ({"capture": "block_0"}, ConfigurationError),
        ({"capture": 3}, ConfigurationError),
        ({"capture": [3]}, ConfigurationError),
        ({"all_logits": 1}, ConfigurationError),
        ({"layout": "poisoned"}, ConfigurationError),
    ],
)
def test_an_option_without_meaning_is_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="build context"):
        BuildContext((2, 3), INFERENCE, **options)


def test_a_mode_is_a_runtime_mode() -> None:
    with pytest.raises(ConfigurationError, match="runtime_mode must be a RuntimeMode, got 'training'"):
        BuildContext((2, 3), "training")  # type: ignore[arg-type]


def test_prefill_is_for_inference() -> None:
    with pytest.raises(ConfigurationError, match="prefill_size is for inference"):
        training(2, 3, prefill_size=2)


def test_parameters_are_initialised_in_training_unless_said() -> None:
    assert training(2, 3).initialize_parameters
    assert not inference(2, 3).initialize_parameters
    assert not training(2, 3, initialize_parameters=False).initialize_parameters
    assert drawn(2, 3).initialize_parameters


def test_extents_may_be_numpy_integers_and_become_plain_ones() -> None:
    context = BuildContext((np.int64(2), np.int32(3)), TRAINING)  # type: ignore[arg-type]
    assert context.input_shape == (2, 3)
    assert all(type(extent) is int for extent in context.input_shape)


def test_one_shape_of_several_has_to_be_asked_for_by_name() -> None:
    context = BuildContext({"a": (2,), "b": (3,)}, TRAINING)
    assert dict(context.input_shapes) == {"a": (2,), "b": (3,)}
    with pytest.raises(ShapeError, match="expected one input, got a, b"):
        _ = context.input_shape
    with pytest.raises(TypeError):
        context.input_shapes["a"] = (4,)  # type: ignore[index]


# ---------------------------------------------------------------------- chunks


def allocated(component: Component[Any], context: BuildContext) -> tuple[int, ...]:
    component.build(context)
    assert component.build_context is not None
    return next(iter(component.build_context.input_shapes.values()))


def leaf_defaults() -> list[tuple[Component[Any], tuple[int, ...], int]]:
    """Return leaves with what an inference build for 7 positions allocates by default."""
    heads = AttentionConfig(num_heads=2, num_kv_heads=2, head_dim=1)
    cached = AttentionConfig(num_heads=2, num_kv_heads=2, head_dim=1, kv_cache=True)
    embedding = TokenEmbeddingConfig(vocab_size=5, embedding_dim=6)
    return [
        (Activation("leaf", device="cpu"), (2, 7, 6), 1),
        (Residual("leaf", device="cpu"), (2, 7, 6), 1),
        (LayerNorm("leaf", LayerNormConfig(normalized_dim=6), device="cpu"), (2, 7, 6), 1),
        (Linear("leaf", LinearConfig(in_features=6, out_features=5), device="cpu"), (2, 7, 6), 1),
        (TokenEmbedding("leaf", embedding, device="cpu"), (2, 7), 1),
        (Softmax("leaf", device="cpu"), (2, 7, 6), 1),
        (Softmax("leaf", SoftmaxConfig(axis=1), device="cpu"), (2, 7, 6), 7),
        (Attention("leaf", heads, device="cpu"), (2, 7, 6), 7),
        (Attention("leaf", cached, device="cpu"), (2, 7, 6), 1),
        (LastPosition("leaf", device="cpu"), (2, 7, 6), 7),
        (SoftmaxCrossEntropy("leaf", device="cpu"), (2, 7, 6), 7),
        (chain(device="cpu"), (2, 7, 6), 7),
        (GptBlock("block", GptBlockConfig(embedding_dim=6, num_heads=2), device="cpu"), (2, 7, 6), 7),
    ]


@pytest.mark.parametrize("index", range(len(leaf_defaults())))
def test_what_inference_allocates_by_default(index: int) -> None:
    component, shape, expected = leaf_defaults()[index]
    assert allocated(component, drawn(*shape))[1] == expected


@pytest.mark.parametrize("index", range(len(leaf_defaults())))
def test_training_allocates_the_whole_sequence(index: int) -> None:
    component, shape, _ = leaf_defaults()[index]
    assert allocated(component, training(*shape)) == shape


@pytest.mark.parametrize(("length", "expected"), [(1, 1), (16, 16), (511, 511), (512, 512), (513, 512), (700, 512)])
def test_a_language_model_takes_chunks_of_at_most_512(length: int, expected: int) -> None:
    config = GptConfig(vocab_size=5, embedding_dim=2, num_layers=1, num_heads=1, max_seq_len=1024)
    model = GptTransformer("gpt", config, device="cpu")
    assert allocated(model, drawn(1, length)) == (1, expected)
    assert model.build_context is not None
    assert model.build_context.max_seq_len == length


def test_an_input_without_a_sequence_axis_has_no_chunks() -> None:
    assert allocated(Activation("leaf", device="cpu"), drawn(5, 6)) == (5, 6)
    with pytest.raises(ShapeError, match="prefill_size needs an input with a sequence axis"):
        Activation("leaf").plan(inference(5, 6, prefill_size=2))


def test_a_chunk_is_as_large_as_asked_for_and_at_most_the_sequence() -> None:
    model = gpt()
    assert allocated(model, drawn(2, 9, prefill_size=4)) == (2, 4)
    ids = np.zeros((2, 5), np.int32)
    model.forward(ids[:, :4].copy())
    with pytest.raises(ShapeError, match=r"gpt: input 'ids': axis 1 expected 1 to 4, got 5"):
        model.forward(ids)
    with pytest.raises(ShapeError, match="prefill_size 10 is more than the sequence length 9"):
        gpt().build(drawn(2, 9, prefill_size=10))


def test_the_whole_sequence_decides_the_capacity_of_caches() -> None:
    small, large = (gpt().plan(inference(2, 9, prefill_size=4, max_seq_len=n)) for n in (9, 16))
    capacities = [{b.shape[2] for b in plan.buffers if b.name == "keys"} for plan in (small, large)]
    assert capacities == [{9}, {16}]
    with pytest.raises(ShapeError, match="at most 16"):
        gpt().plan(inference(2, 9, max_seq_len=17))
    with pytest.raises(ShapeError, match="max_seq_len 8 is less than the sequence length 9"):
        gpt().plan(inference(2, 9, max_seq_len=8))


def test_there_is_a_cache_only_where_the_config_asks_and_only_in_inference() -> None:
    def caches(component: Component[Any], context: BuildContext) -> int:
        return sum(b.name in ("keys", "values") for b in component.plan(context).buffers)

    plain, cached = (
        GptBlock("block", GptBlockConfig(embedding_dim=6, num_heads=2, kv_cache=cache)) for cache in (False, True)
    )
    assert caches(plain, inference(2, 7, 6)) == 0
    assert caches(cached, inference(2, 7, 6)) == 2
    assert caches(cached, training(2, 7, 6)) == 0
    assert caches(gpt(), inference(2, 7)) == 4
    assert caches(llama(), inference(2, 7)) == 4


# ---------------------------------------------------------------------- captures and logits


def bytes_at_the_end(model: Component[Any], context: BuildContext) -> int:
    """Return how many transient bytes are alive when everything has run."""
    plan = model.plan(context)
    last = len(plan.step_names) - 1
    alive = [b for b in plan.buffers if b.arena == "transient" and b.intervals[-1][1] >= last]
    return sum(b.nbytes for b in alive)


def test_a_captured_value_stays_readable_and_its_bytes_are_in_the_plan() -> None:
    ids = np.array([[1, 2, 3, 4]], np.int32)
    for make in (training, drawn):
        plain, capturing = gpt(), gpt()
        capture = ["block_0", "block_1.mlp.fc_1"]
        context = make(1, 4, capture=capture)
        assert bytes_at_the_end(capturing, context) == bytes_at_the_end(plain, make(1, 4)) + 4 * (4 * 6 + 4 * 24)
        capturing.build(context)
        plain.build(make(1, 4))
        assert np.array_equal(capturing.forward(ids), plain.forward(ids))
        assert capturing.captured("block_0").shape == (1, 4, 6)
        assert capturing.captured("block_1.mlp.fc_1").shape == (1, 4, 24)
        kept = capturing.captured("block_0").copy()
        if make is training:
            capturing.backward(ids, np.ones((1, 4, 11), np.float32))
        assert np.array_equal(capturing.captured("block_0"), kept)


def test_a_captured_value_is_what_the_child_alone_makes() -> None:
    model = gpt()
    model.build(training(1, 4, capture=["dropout", "block_0"]))
    ids = np.array([[1, 2, 3, 4]], np.int32)
    model.forward(ids)
    assert isinstance(model["block_0"].config, GptBlockConfig)
    block = GptBlock("alone", model["block_0"].config, device="cpu")
    block.build(training(1, 4, 6))
    for name, array in zip(block.get_parameter_names(), model["block_0"].get_parameters(), strict=True):
        block.load_parameter(name, array)
    assert np.allclose(block.forward(model.captured("dropout").copy()), model.captured("block_0"), rtol=1e-6)


def test_what_was_not_captured_is_not_readable() -> None:
    model = gpt()
    model.build(training(1, 4, capture=["block_0"]))
    with pytest.raises(LifecycleError, match="captured values exist after forward"):
        model.captured("block_0")
    model.forward(np.zeros((1, 4), np.int32))
    with pytest.raises(ConfigurationError, match=r"'block_1' was not named in BuildContext.capture"):
        model.captured("block_1")
    with pytest.raises(ConfigurationError, match="capture names 'nowhere'"):
        gpt().plan(training(1, 4, capture=["nowhere"]))


@pytest.mark.parametrize("make", [gpt, llama])
def test_inference_gives_the_last_logits_unless_all_are_asked_for(make: Any) -> None:
    ids = np.random.default_rng(0).integers(0, 11, (2, 7), np.int32)
    trained, last, everything = make(), make(), make()
    trained.build(training(2, 7))
    last.build(drawn(2, 7))
    everything.build(drawn(2, 7, all_logits=True))
    expected = trained.forward(ids)
    assert expected.shape == (2, 7, 11)
    assert last.forward(ids).shape == (2, 1, 11)
    assert np.allclose(last.forward(ids), expected[:, -1:], rtol=1e-5, atol=1e-6)
    assert np.allclose(everything.forward(ids), expected, rtol=1e-5, atol=1e-6)
    assert SMALL_GPT.vocab_size == 11


def test_what_a_graph_allows_changes_nothing_else() -> None:
    """Every field is given a value of its own, so that one which is forgotten, or comes later, is noticed."""
    values: dict[str, Any] = {field.name: object() for field in fields(LeafContext)}
    context = LeafContext(**values)
    allowed = context.allowing((Overwrite.FORWARD,), (True,))
    assert allowed == replace(context, overwritable=(Overwrite.FORWARD,), gradient_overwritable=(True,))
