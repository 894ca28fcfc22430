"""Sampled text: what it depends on, and what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from mila.errors import ConfigurationError, DataError, LifecycleError
from mila.training import Trainer, load_model, sample_text
from tests.training.tiny_run import TOKENIZER, make_config, make_network, make_split, make_trainer


@pytest.fixture(scope="module", params=["gpt", "llama"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Path]:
    folder = tmp_path_factory.mktemp("run")
    trainer = make_trainer(folder, network=make_network(request.param), sequence_length=16)
    trainer.run()
    return trainer, folder


@pytest.mark.parametrize("prompt", ["t", "the quick ", "the quick brown fox jumps over the lazy dog"])
def test_a_loaded_model_writes_what_the_trained_one_does(trained: tuple[Trainer, Path], prompt: str) -> None:
    """With its cache, and beyond the end of its window, where the window slides."""
    trainer, folder = trained
    text = sample_text(trainer.step, TOKENIZER, prompt, 30, temperature=0)
    assert len(text) == 30
    assert sample_text(load_model(folder), TOKENIZER, prompt, 30, temperature=0) == text


def test_the_same_seed_draws_the_same_text(trained: tuple[Trainer, Path]) -> None:
    model = load_model(trained[1])
    texts = [sample_text(model, TOKENIZER, "the ", 40, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_the_likeliest_of_one_is_greedy(trained: tuple[Trainer, Path]) -> None:
    step = trained[0].step
    greedy = sample_text(step, TOKENIZER, "the ", 12, temperature=0)
    assert sample_text(step, TOKENIZER, "the ", 12, top_k=1, seed=3) == greedy


def test_sampling_leaves_training_as_it_was(trained: tuple[Trainer, Path], tmp_path: Path) -> None:
    plain, sampled = make_trainer(tmp_path / "plain"), make_trainer(tmp_path / "sampled")

    def sample(event: Any) -> None:
        sample_text(sampled.step, TOKENIZER, "the ", 3)

    plain.run(until=3)
    sampled.run(sample, until=3)
    for one, other in zip(plain.step.get_parameters(), sampled.step.get_parameters(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_nothing_is_written_for_a_length_of_zero(trained: tuple[Trainer, Path]) -> None:
    assert sample_text(trained[0].step, TOKENIZER, "the ", 0) == ""


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"prompt": ""}, DataError, "at least one token"),
        ({"prompt": "§"}, DataError, "U\\+00A7"),
        ({"length": -1}, ConfigurationError, "length"),
        ({"temperature": -0.1}, ValidationError, "temperature"),
        ({"temperature": float("nan")}, ValidationError, "temperature"),
        ({"top_k": 0}, ValidationError, "top_k"),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    trained: tuple[Trainer, Path], options: dict[str, Any], error: type[Exception], match: str
) -> None:
    arguments: dict[str, Any] = {"prompt": "the ", "length": 3} | options
    prompt, length = arguments.pop("prompt"), arguments.pop("length")
    with pytest.raises(error, match=match):
        sample_text(trained[0].step, TOKENIZER, prompt, length, **arguments)


def test_only_built_networks_write(tmp_path: Path) -> None:
    unbuilt = Trainer(make_network(), make_split(), make_config(), tmp_path)
    with pytest.raises(LifecycleError, match="build"):
        sample_text(unbuilt.step, TOKENIZER, "the ", 1)
    trainer = make_trainer(tmp_path)
    with pytest.raises(ConfigurationError, match="built for inference"):
        sample_text(trainer.step.network, TOKENIZER, "the ", 1)  # type: ignore[arg-type]
