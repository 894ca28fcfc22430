"""The sampler: what it may choose, how often, and what decides."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from mila.errors import ConfigurationError, NonFiniteError
from mila.generation import GenerationConfig, Sampler
from mila.memory.storage import FLOAT32
from tests.promises.measuring import peak_growth

ONE_ROW = [np.array([0], np.int32)]


def sampler(size: int, prompts: list[NDArray[np.int32]] | None = None, **fields: Any) -> Sampler:
    return Sampler(GenerationConfig(**fields), size, FLOAT32, ONE_ROW if prompts is None else prompts)


def kept(logits: list[float], **fields: Any) -> list[int]:
    """Return the ids that may be drawn."""
    array = np.array(logits, np.float32)
    chances = sampler(array.size, **{"temperature": 1.0, **fields}).distribution(0, array)
    ids: list[int] = np.flatnonzero(chances).tolist()
    return ids


def test_the_lowest_of_the_likeliest_is_taken() -> None:
    logits = np.array([1, 5, 2, 5, 5], np.float32)
    assert sampler(5).choose(0, logits) == 1
    assert sampler(5, vocabulary=1).choose(0, logits) == 0
    assert logits.tolist() == [1, 5, 2, 5, 5]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 2}, [0, 2]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.5}, [2]),
        ({"top_p": 0.7}, [0, 2]),
        ({"top_p": 1e-9}, [2]),
        ({"top_p": 1.0}, [0, 1, 2, 3]),
        ({"min_p": 0.5}, [0, 2]),
        ({"min_p": 0.0}, [0, 1, 2, 3]),
        ({"min_p": 1.0}, [2]),
        ({"top_k": 3, "top_p": 0.95, "min_p": 0.2}, [0, 1, 2]),
        ({"top_p": 0.7, "temperature": 100.0}, [0, 1, 2]),
        ({"temperature": 1e-40}, [2]),
        ({"vocabulary": 2}, [0, 1]),
        ({"vocabulary": 2, "top_k": 1}, [0]),
    ],
)
def test_filters_keep_the_likeliest(fields: dict[str, Any], expected: list[int]) -> None:
    logits = np.log([0.3, 0.12, 0.55, 0.03]).tolist()
    assert kept(logits, **fields) == expected


def test_of_those_at_the_limit_top_k_keeps_all_and_top_p_the_lowest() -> None:
    assert kept([1.0, 2.0, 1.0, 1.0], top_k=2) == [0, 1, 2, 3]
    assert kept([0.0, 0.0, 0.0, 0.0], top_p=0.5) == [0, 1]
    assert kept([0.0, 3.0, 0.0, 0.0, 3.0], top_p=0.95) == [0, 1, 4]


def test_a_penalty_is_for_every_token_that_was_there() -> None:
    prompts = [np.array([0, 1, 1], np.int32), np.array([3], np.int32)]
    logits = np.array([2.0, -2.0, 1.5, -1.0, 0.0], np.float32)
    chooser = sampler(5, prompts, temperature=1.0, repetition_penalty=2.0)
    np.testing.assert_allclose(chooser.distribution(0, logits), softmax([1.0, -4.0, 1.5, -1.0, 0.0]), rtol=1e-6)
    np.testing.assert_allclose(chooser.distribution(1, logits), softmax([2.0, -2.0, 1.5, -2.0, 0.0]), rtol=1e-6)
    greedy = sampler(5, prompts, repetition_penalty=2.0)
    assert [greedy.choose(0, logits) for _ in range(3)] == [2, 0, 0]  # 1 and 1.5, then 1 and 0.75
    rewarded = sampler(5, prompts, temperature=1.0, repetition_penalty=0.5)
    np.testing.assert_allclose(rewarded.distribution(0, logits), softmax([4.0, -1.0, 1.5, -1.0, 0.0]), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("fields", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"repetition_penalty": 1e-3}])
@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-45, 1e-38, 1e-10, 1e38, 1e39, 1.7e308])
def test_every_temperature_is_as_meant(temperature: float, fields: dict[str, Any], dtype: Any) -> None:
    """Small ones take the likeliest, and large ones make all alike; never an id outside, never a warning."""
    logits = np.array([-1.0, 3.0, 2.0, -np.inf, np.finfo(dtype).min, -3.0], dtype)
    chooser = Sampler(GenerationConfig(temperature=temperature, **fields), 6, np.dtype(dtype), ONE_ROW)
    chances = chooser.distribution(0, logits)
    assert chances[3] == 0
    assert chances.sum() == pytest.approx(1)
    if temperature < 1:
        assert chances.tolist() == [0, 1, 0, 0, 0, 0]
        assert {chooser.choose(0, logits) for _ in range(8)} == {1}
    else:
        assert {chooser.choose(0, logits) for _ in range(20)} <= {0, 1, 2, 4, 5}
        assert chances[1] == pytest.approx(chances[2])


@pytest.mark.parametrize("penalty", [1e-3, 1e3])
def test_the_largest_penalties_leave_numbers(penalty: float) -> None:
    prompt = [np.arange(4, dtype=np.int32)]
    logits = np.array([1e30, -1e30, 0.0, -np.inf], np.float32)
    assert sampler(4, prompt, repetition_penalty=penalty).choose(0, logits) == 0


def softmax(scores: list[float]) -> NDArray[np.float64]:
    weights = np.exp(np.array(scores))
    result: NDArray[np.float64] = weights / weights.sum()
    return result


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("fields", [{}, {"top_k": 2}, {"top_p": 0.8}, {"min_p": 0.3}])
def test_tokens_are_drawn_by_their_probabilities(temperature: float, fields: dict[str, Any]) -> None:
    logits = np.array([0.0, 2.0, 1.0, -1.0, -np.inf], np.float32)
    chooser = sampler(5, temperature=temperature, **fields)
    chances = chooser.distribution(0, logits)
    count = 4_000
    found = np.bincount([chooser.choose(0, logits) for _ in range(count)], minlength=5)
    assert not found[chances == 0].any()
    spread = np.sqrt(count * chances * (1 - chances))
    assert (np.abs(found - count * chances) <= 4 * spread + 1e-6).all()


def test_a_row_of_a_seed_draws_the_same_in_every_batch() -> None:
    logits = np.zeros(1000, np.float32)

    def draws(rows: int, row: int, seed: int) -> list[int]:
        chooser = sampler(1000, ONE_ROW * rows, temperature=1.0, seed=seed)
        for other in range(row):
            chooser.choose(other, logits)
        return [chooser.choose(row, logits) for _ in range(8)]

    assert draws(2, 1, 7) == draws(5, 1, 7)
    assert len({tuple(draws(3, row, seed)) for row in range(3) for seed in range(3)}) == 9


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0}, {"repetition_penalty": 1.5}])
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([1.0, np.nan, 2.0], "one other than nan at id 1"),
        ([1.0, 2.0, np.inf], "one other than inf at id 2"),
        ([-np.inf] * 3, "one that is finite"),
    ],
)
def test_logits_that_are_no_numbers_are_refused(fields: dict[str, Any], logits: list[float], message: str) -> None:
    with pytest.raises(NonFiniteError, match=f"logits of row 0: expected {message}"):
        sampler(3, **fields).choose(0, np.array(logits, np.float32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_all_dtypes_of_logits(dtype: Any) -> None:
    logits = np.array([0.5, 2.0, -1.0], dtype)
    assert Sampler(GenerationConfig(), 3, np.dtype(dtype), ONE_ROW).choose(0, logits) == 1
    chances = Sampler(GenerationConfig(temperature=1.0), 3, np.dtype(dtype), ONE_ROW).distribution(0, logits)
    np.testing.assert_allclose(chances, softmax([0.5, 2.0, -1.0]), rtol=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"temperature": np.True_},
        {"temperature": np.array(1.0)},
        {"temperature": Decimal(1)},
        {"min_p": np.False_},
        {"seed": np.True_},
        {"max_new_tokens": np.float64(2)},
        {"stop_tokens": np.array([1.0])},
        {"stop_tokens": np.array([[1]])},
        {"top_k": 5},
        {"top_p": 0.5, "temperature": 0.0},
        {"min_p": 0.5},
        {"seed": -1},
        {"stop_tokens": [-1]},
        {"stop_tokens": [True]},
        {"max_new_tokens": -1},
        {"vocabulary": 0},
        {"num_beams": 2},
    ],
    ids=repr,
)
def test_options_without_meaning_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        GenerationConfig(**fields)


def test_numbers_of_numpy_are_taken_as_pythons() -> None:
    integers: dict[str, Any] = {
        "max_new_tokens": np.int64(2),
        "top_k": np.uint8(3),
        "seed": np.int32(4),
        "vocabulary": np.int16(9),
    }
    floats: dict[str, Any] = {"temperature": np.float32(0.5), "top_p": np.float64(0.5), "min_p": np.float16(0.25)}
    others: dict[str, Any] = {"repetition_penalty": np.int64(2), "stop_tokens": np.array([5, 6])}
    config = GenerationConfig(**integers, **floats, **others)
    found = [config.max_new_tokens, config.top_k, config.seed, config.vocabulary, *config.stop_tokens]
    assert (found, {type(value) for value in found}) == ([2, 3, 4, 9, 5, 6], {int})
    assert [config.temperature, config.top_p, config.min_p, config.repetition_penalty] == [0.5, 0.5, 0.25, 2.0]


def test_a_vocabulary_of_more_ids_than_logits_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="vocabulary: expected at most 3 ids, got 4"):
        sampler(3, vocabulary=4)


@pytest.mark.parametrize("logits", [np.random.default_rng(0).normal(size=50_000), np.zeros(50_000)])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_choosing_allocates_nothing_of_the_size_of_the_vocabulary(
    logits: NDArray[np.float64], temperature: float
) -> None:
    """With every filter, and where all are equally likely."""
    filters = {"top_k": 40_000, "top_p": 0.9, "min_p": 1e-4} if temperature else {}
    fields = {"repetition_penalty": 1.1, **filters}
    prompt = [np.arange(0, 50_000, 50, dtype=np.int32)]
    chooser = sampler(50_000, prompt, temperature=temperature, **fields)
    array = logits.astype(np.float32)
    chooser.choose(0, array)
    assert peak_growth(lambda: chooser.choose(0, array)) < 20_000


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(12))
def test_the_distribution_is_that_of_transformers(seed: int) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    generator = np.random.default_rng(seed)
    size = int(generator.integers(2, 400))
    logits = (generator.normal(size=size) * generator.choice([1, 5])).astype(np.float32)
    prompt = generator.integers(0, size, 9).astype(np.int32)
    fields: dict[str, Any] = {"temperature": float(generator.uniform(0.3, 2))}
    for name, value in (
        ("top_k", int(generator.integers(1, size + 5))),
        ("top_p", float(generator.uniform(0.2, 1))),
        ("min_p", float(generator.uniform(0, 0.2))),
        ("repetition_penalty", float(generator.uniform(0.5, 2))),
    ):
        if seed == 0 or generator.random() < 0.7:
            fields[name] = value
    processors = [
        transformers.RepetitionPenaltyLogitsProcessor(fields.get("repetition_penalty", 1.0)),
        transformers.TemperatureLogitsWarper(fields["temperature"]),
        *([transformers.TopKLogitsWarper(fields["top_k"])] if "top_k" in fields else []),
        *([transformers.TopPLogitsWarper(fields["top_p"])] if "top_p" in fields else []),
        *([transformers.MinPLogitsWarper(fields["min_p"])] if "min_p" in fields else []),
    ]
    scores = torch.tensor(logits)[None]
    for processor in processors:
        scores = processor(torch.tensor(prompt, dtype=torch.long)[None], scores)
    expected = torch.softmax(scores.double(), -1)[0].numpy()
    found = sampler(size, [prompt], **fields).distribution(0, logits)
    np.testing.assert_array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, rtol=2e-5)
