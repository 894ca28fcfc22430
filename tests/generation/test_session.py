"""Decoding sessions: whatever is cached, reused, rewound or forgotten, the logits are those of the whole sequence."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mila.components import RmsNorm
from mila.core import BuildContext, Position, RuntimeMode
from mila.errors import ConfigurationError, LifecycleError, ShapeError
from mila.generation import DecodingSession
from mila.models import LanguageModel
from tests.generation.models import CONTEXT, KINDS, VOCABULARY, WINDOW, built, drawn, unbuilt, uncached

LENGTHS = (WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 1)


def assert_same(found: NDArray[Any], expected: NDArray[Any]) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 4, CONTEXT])
def test_cached_logits_are_those_of_the_whole_sequence(kind: str, chunk: int) -> None:
    tokens = drawn(CONTEXT)
    expected = uncached(kind, tokens)
    model = built(kind, chunk=chunk)
    session = model.decoding_session
    for length in LENGTHS:
        session.reset()
        assert_same(session.prefill([tokens[:length]])[0], expected[length - 1])
        for place in range(length, CONTEXT):
            assert_same(session.step([tokens[place]])[0], expected[place])
        assert session.held(0) == tuple(tokens)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("all_logits", [False, True])
def test_ragged_rows_are_as_if_alone(kind: str, all_logits: bool) -> None:
    prompts = [drawn(length, seed=length) for length in (1, 13, 6, 4)]
    expected = [uncached(kind, [*prompt, 7, 8, 9]) for prompt in prompts]
    model = built(kind, 5, chunk=4, dtype="float32", all_logits=all_logits)
    session = model.decoding_session
    logits = session.prefill(prompts)
    assert logits.shape == (4, VOCABULARY)
    for added in range(4):
        for row, prompt in enumerate(prompts):
            np.testing.assert_allclose(logits[row], expected[row][len(prompt) - 1 + added], atol=1e-5)
        if added < 3:
            logits = session.step([7 + added] * 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_may_stand_still(kind: str) -> None:
    first, second = drawn(WINDOW + 2, seed=1), drawn(2 * WINDOW, seed=2)
    model = built(kind, 2, chunk=3)
    session = model.decoding_session
    session.prefill([first, second])
    for place, token in enumerate([3, 4, 5, 6, 7, 8]):
        logits = session.step([None, token])
        assert_same(logits[0], uncached(kind, first)[-1])
        assert_same(logits[1], uncached(kind, [*second, 3, 4, 5, 6, 7, 8][: 11 + place])[-1])
    assert session.held(0) == tuple(first)
    assert_same(session.step([1])[0], uncached(kind, [*first, 1])[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("common", [0, 1, 4, 11, 12])
@pytest.mark.parametrize("chunk", [1, 4])
def test_what_is_held_of_a_prompt_is_not_computed_again(kind: str, common: int, chunk: int) -> None:
    held = drawn(12)
    prompt = held[:common] + [(token + 1) % VOCABULARY for token in held[common : common + 5]]
    prompt = prompt or [(held[0] + 1) % VOCABULARY]
    model = built(kind, chunk=chunk)
    session = model.decoding_session
    session.prefill([held])
    logits = session.prefill([prompt])
    assert_same(logits[0], uncached(kind, prompt)[-1])
    if kind != "window" or common >= 11:  # a ring reaches back by a chunk
        assert session.reused == (min(common, len(prompt) - 1),)
    elif common <= 4:
        assert session.reused == (0,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewound_row_goes_on_from_there(kind: str) -> None:
    tokens = drawn(14)
    model = built(kind, 2, chunk=4)
    session = model.decoding_session
    session.prefill([tokens, tokens])
    for back in (13, 12, 11):
        session.rewind(0, back)
        assert session.held(0) == tuple(tokens[:back])
        assert session.held(1) == tuple(tokens)
    changed = [*tokens[:11], 3]
    assert_same(session.step([3, None])[0], uncached(kind, changed)[-1])
    session.rewind(0, 0)
    with pytest.raises(LifecycleError, match="row 0 holds nothing"):
        session.step([3])


def test_a_window_limits_how_far_back_a_row_can_go() -> None:
    model = built("window", chunk=2)
    session = model.decoding_session
    session.prefill([drawn(15)])
    with pytest.raises(ShapeError, match=r"row 0 can go back to lengths of 0 or 1[0-9] … 15, got 3"):
        session.rewind(0, 3)
    assert len(session.held(0)) == 15


def load_one(model: LanguageModel[Any], folder: Path) -> None:
    name = model.get_parameter_names()[0]
    model.load_parameter(name, model.get_parameters()[0].copy())


def load_all(model: LanguageModel[Any], folder: Path) -> None:
    model.save_weights(folder / "weights.safetensors")
    model.load_weights(folder / "weights.safetensors")


def run_elsewhere(model: LanguageModel[Any], folder: Path) -> None:
    model.forward(np.zeros((1, 1), np.int32), position=Position(0))


def prefill_in_another_session(model: LanguageModel[Any], folder: Path) -> None:
    DecodingSession(model).prefill([[1]])


@pytest.mark.parametrize("disturb", [load_one, load_all, run_elsewhere, prefill_in_another_session])
def test_what_others_do_to_the_network_is_noticed(
    disturb: Callable[[LanguageModel[Any], Path], None], tmp_path: Path
) -> None:
    model, prompt = built("llama", 2, chunk=4), drawn(9)
    session = model.decoding_session
    session.prefill([prompt, prompt])
    disturb(model, tmp_path)
    assert session.held(1) == ()
    with pytest.raises(LifecycleError, match="call prefill first"):
        session.step([1, 1])
    assert_same(session.prefill([prompt])[0], uncached("llama", prompt)[-1])
    assert session.reused == (0,)


@pytest.mark.parametrize("kind", ["llama", "window"])
def test_an_interrupted_run_leaves_what_the_cache_still_holds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted between the first block and the second, in prefill and in a step."""
    model, prompt = built(kind, 2, chunk=4), drawn(10)
    session = model.decoding_session
    norm = next(part for part in model.walk() if isinstance(part, RmsNorm) and part.path.startswith("model.block_1"))
    session.prefill([prompt[:6], prompt[:3]])

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(norm, "forward_step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.step([prompt[6], prompt[3]])
        with pytest.raises(KeyboardInterrupt):
            session.prefill([prompt, prompt])
    assert session.held(0) == tuple(prompt[:6])
    assert session.held(1) == tuple(prompt[:3])
    logits = session.prefill([prompt, prompt])
    assert session.reused == (6, 3)
    for row in (0, 1):
        assert_same(logits[row], uncached(kind, prompt)[-1])


def test_nothing_runs_for_a_prompt_that_is_refused() -> None:
    model = built("gpt", 2)
    model.prefill([[1, 2]])
    held = model.decoding_session.held(0)
    for prompts in ([[3], drawn(CONTEXT + 1)], [[3], []], [[3], [4, VOCABULARY]], [], [[1]] * 3):
        with pytest.raises((ShapeError, IndexError)):
            model.prefill(prompts)
        assert model.decoding_session.held(0) == held
    with pytest.raises(ShapeError, match=f"row 1 has {CONTEXT + 1} tokens, and the context {CONTEXT}"):
        model.prefill([[3], drawn(CONTEXT + 1)])


def test_a_full_row_takes_no_more() -> None:
    model = built("gpt")
    model.prefill([drawn(CONTEXT - 1)])
    model.decode([1])
    with pytest.raises(ShapeError, match=f"the context of row 0 is full: {CONTEXT} positions"):
        model.decode([1])
    with pytest.raises(ShapeError, match="expected 1 token, got 2"):
        model.decode([1, 1])
    with pytest.raises(ShapeError, match="expected row 0, got 1"):
        model.decoding_session.held(1)


def test_a_session_belongs_to_a_network_built_for_inference() -> None:
    model = unbuilt("gpt")
    with pytest.raises(LifecycleError, match="call build first"):
        _ = model.decoding_session
    model.build(BuildContext((1, 4), RuntimeMode.TRAINING))
    with pytest.raises(ConfigurationError, match="model: a decoding session expected a network built for inference"):
        _ = model.decoding_session
    model = unbuilt("gpt")
    model.build(BuildContext((1, 4), RuntimeMode.INFERENCE))
    with pytest.raises(LifecycleError, match="neither initialised nor loaded"):
        model.prefill([[1]])


def test_a_session_does_not_keep_its_network_alive() -> None:
    model = built("gpt")
    session = model.decoding_session
    session.prefill([[1, 2, 3]])
    assert model.decoding_session is session
    reference = weakref.ref(model)
    del model
    assert reference() is None
    with pytest.raises(LifecycleError, match="no longer exists"):
        session.step([1])
