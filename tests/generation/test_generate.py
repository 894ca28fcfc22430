"""Generation: what is written, when it ends, and what callbacks, closing and interrupts leave behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from mila.errors import ConfigurationError, LifecycleError, NonFiniteError, ShapeError, TokenIdError
from mila.generation import Completion, GenerationConfig, Status, generate, stream
from tests.generation.models import CONTEXT, KINDS, WINDOW, built, drawn, greedy

PROMPTS = [drawn(length, seed=length) for length in (2, 9, 5)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [3, CONTEXT])
def test_a_batch_writes_what_each_prompt_would_alone(kind: str, chunk: int) -> None:
    completions = built(kind, 4, chunk=chunk).generate(PROMPTS, max_new_tokens=2 * WINDOW)
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        assert list(completion.tokens) == greedy(kind, prompt, 2 * WINDOW)
        assert completion.status is Status.LENGTH
        assert (completion.prompt_tokens, completion.reused_tokens) == (len(prompt), 0)
        assert completion.prefill_seconds > 0
        assert completion.decode_seconds > 0
        assert completion.decode_steps == 2 * WINDOW - 1  # the first token is the prefill's
        assert completion.tokens_per_second == completion.decode_steps / completion.decode_seconds


def test_rows_end_one_after_the_other_without_changing_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row stops at once, the second after some tokens, the third when its context is full."""
    first, second = greedy("gpt", PROMPTS[0], 1)[0], greedy("gpt", PROMPTS[1], 4)[-1]
    expected = [greedy("gpt", prompt, CONTEXT - len(prompt)) for prompt in PROMPTS]
    widths: list[int] = []
    model = built("gpt", 3, chunk=4)
    forward = model.forward

    def counted(ids: Any, **options: Any) -> Any:
        widths.append(ids.shape[0])
        return forward(ids, **options)

    monkeypatch.setattr(model, "forward", counted)
    completions = model.generate(PROMPTS, stop_tokens=(first, second))
    for completion, tokens in zip(completions, expected, strict=True):
        ends = [tokens.index(stop) for stop in (first, second) if stop in tokens]
        assert list(completion.tokens) == tokens[: min(ends, default=len(tokens))]
        assert completion.status is (Status.STOP if ends else Status.CONTEXT_LIMIT)
        assert completion.prompt_tokens + len(completion.tokens) <= CONTEXT
    assert completions[0].tokens == ()
    assert (completions[0].decode_seconds, completions[0].tokens_per_second) == (0, None)
    stopped = [completion for completion in completions if completion.status is Status.STOP]
    assert [completion.decode_steps for completion in stopped] == [len(each.tokens) for each in stopped]
    longest = max(range(3), key=lambda row: len(completions[row].tokens))
    assert widths[-1] == longest + 1  # rows behind the last that writes are left out


@pytest.mark.parametrize("prompt", [drawn(1), drawn(CONTEXT - 1), drawn(CONTEXT)], ids=len)
def test_the_context_limits_prompt_and_tokens_together(prompt: list[int]) -> None:
    model = built("llama")
    completion = model.generate(prompt)
    assert completion.status is Status.CONTEXT_LIMIT
    assert len(completion.tokens) == CONTEXT - len(prompt)
    exact = model.generate(prompt, max_new_tokens=CONTEXT - len(prompt))
    assert (exact.tokens, exact.status) == (completion.tokens, Status.LENGTH)


def test_nothing_is_written_for_no_new_tokens() -> None:
    model = built("gpt", 2)
    for completion in model.generate(PROMPTS[:2], max_new_tokens=0):
        assert (completion.tokens, completion.status) == ((), Status.LENGTH)
    assert list(stream(model, PROMPTS[0], GenerationConfig(max_new_tokens=0))) == []


def test_the_next_turn_reuses_the_last() -> None:
    model = built("llama", chunk=4)
    first = model.generate(PROMPTS[1], max_new_tokens=4)
    turn = [*PROMPTS[1], *first.tokens, 1, 2]
    second = model.generate(turn, max_new_tokens=3)
    assert second.reused_tokens == len(PROMPTS[1]) + 3  # the last token that was written never went through the network
    assert list(second.tokens) == greedy("llama", turn, 3)


def test_a_single_prompt_gives_one_completion_and_several_a_list() -> None:
    model = built("gpt", 2)
    single: Completion = model.generate([1, 2, 3], max_new_tokens=2)
    several: list[Completion] = model.generate([[1, 2, 3]], GenerationConfig(max_new_tokens=2))
    array = model.generate(np.array([1, 2, 3]), max_new_tokens=2)
    rows = model.generate(np.array([[1, 2, 3], [1, 2, 3]]), max_new_tokens=2)
    assert isinstance(array, Completion)
    assert isinstance(rows, list)
    assert [completion.tokens for completion in (*several, array, *rows)] == [single.tokens] * 4


@pytest.mark.parametrize(
    ("prompts", "options", "error", "message"),
    [
        ([], {}, TokenIdError, "row 0: expected at least one"),
        ([[1], []], {}, TokenIdError, "row 1: expected at least one"),
        ("ab", {}, TokenIdError, "token ids, got str; texts are for mila.generation.text.generate_text"),
        ([[1], [2], [3]], {}, ShapeError, "expected 1 to 2 prompts, got 3"),
        (drawn(CONTEXT + 1), {}, ShapeError, "row 0 has 25 tokens, and the context 24"),
        ([1], {"vocabulary": 99}, ConfigurationError, "at most 23 ids, got 99"),
        (
            [1],
            {"stop_tokens": [2, 10**9]},
            TokenIdError,
            "stop_tokens: .* from 0 to 22, got 1000000000",
        ),
        ([1], {"config": GenerationConfig(), "seed": 1}, ConfigurationError, "config or its fields, got both: seed"),
        ([1], {"beams": 1}, ValidationError, "beams"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    prompts: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = built("gpt", 2)
    model.prefill([[4, 5]])
    with pytest.raises(error, match=message):
        model.generate(prompts, **options)
    assert model.decoding_session.held(0) == (4, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_decides_whatever_else_is_in_the_batch(kind: str) -> None:
    config = GenerationConfig(max_new_tokens=8, temperature=1.5, top_p=0.95, seed=3)
    model = built(kind, 3, chunk=4)
    together = generate(model, PROMPTS, config)
    assert [c.tokens for c in generate(model, PROMPTS, config)] == [c.tokens for c in together]
    assert [c.tokens for c in generate(built(kind, 3), PROMPTS[:2], config)] == [c.tokens for c in together[:2]]
    assert tuple(stream(model, PROMPTS[0], config)) == together[0].tokens
    other = generate(model, PROMPTS, config.model_copy(update={"seed": 4}))
    assert [c.tokens for c in other] != [c.tokens for c in together]


@pytest.mark.parametrize(
    ("answer", "count"),
    [(None, 3), (True, 3), (0, 3), (0.0, 3), ("", 3), (np.True_, 3), (np.int64(0), 3), (False, 1), (np.False_, 1)],
    ids=repr,
)
def test_only_a_false_boolean_of_a_callback_cancels(answer: Any, count: int) -> None:
    completion = built("gpt").generate([1, 2], max_new_tokens=3, on_token=lambda row, token: answer)
    assert (len(completion.tokens), completion.status is Status.CANCELLED) == (count, count == 1)


def test_a_callback_sees_every_token_and_cancels_its_row() -> None:
    model = built("gpt", 3)
    expected = [completion.tokens for completion in model.generate(PROMPTS, max_new_tokens=6)]
    seen: list[list[int]] = [[], [], []]

    def watch(row: int, token: int) -> bool:
        seen[row].append(token)
        return not (row == 1 and len(seen[1]) == 2)

    completions = model.generate(PROMPTS, max_new_tokens=6, on_token=watch)
    assert [tuple(tokens) for tokens in seen] == [completion.tokens for completion in completions]
    assert [completion.tokens for completion in completions] == [expected[0], expected[1][:2], expected[2]]
    assert [completion.status for completion in completions] == [Status.LENGTH, Status.CANCELLED, Status.LENGTH]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_of_a_callback_leaves_a_usable_session(error: type[BaseException]) -> None:
    model = built("window", 2, chunk=4)
    expected = model.generate(PROMPTS[:2], max_new_tokens=8)
    seen: list[int] = []

    def fail(row: int, token: int) -> None:
        seen.append(token)
        if len(seen) == 5:
            raise error("enough")

    with pytest.raises(error, match="enough"):
        model.generate(PROMPTS[:2], max_new_tokens=8, on_token=fail)
    again = model.generate(PROMPTS[:2], max_new_tokens=8)
    assert [completion.tokens for completion in again] == [completion.tokens for completion in expected]


def test_a_stream_gives_tokens_as_they_come() -> None:
    model = built("llama")
    tokens = stream(model, PROMPTS[0], GenerationConfig(max_new_tokens=5))
    first = next(tokens)
    assert model.decoding_session.held(0) == tuple(PROMPTS[0])
    with pytest.raises(LifecycleError, match="row 0 is still writing"):
        _ = tokens.completion
    assert [first, *tokens] == greedy("llama", PROMPTS[0], 5)
    tokens.close()
    assert (len(tokens.completion.tokens), tokens.completion.status) == (5, Status.LENGTH)
    assert list(tokens) == []


@pytest.mark.parametrize("taken", [0, 2])
def test_closing_a_stream_cancels_it(taken: int) -> None:
    with stream(built("llama"), PROMPTS[0], GenerationConfig(max_new_tokens=5)) as tokens:
        written = [next(tokens) for _ in range(taken)] if taken else []
    assert (tokens.completion.tokens, tokens.completion.status) == (tuple(written), Status.CANCELLED)
    assert list(tokens) == []


def generate_elsewhere(model: Any) -> None:
    model.generate([3], max_new_tokens=1)


def run_elsewhere(model: Any) -> None:
    model.forward(np.zeros((1, 1), np.int32))


@pytest.mark.parametrize(
    ("disturb", "message"), [(generate_elsewhere, "another one has taken over"), (run_elsewhere, "row 0 holds nothing")]
)
def test_a_stream_does_not_go_on_over_the_cache_of_another(disturb: Callable[[Any], None], message: str) -> None:
    model = built("gpt")
    tokens = stream(model, PROMPTS[0], GenerationConfig(max_new_tokens=5))
    first = next(tokens)
    disturb(model)
    with pytest.raises(LifecycleError, match=message):
        next(tokens)
    assert (tokens.completion.tokens, tokens.completion.status) == ((first,), Status.CANCELLED)


def test_logits_that_are_no_numbers_end_the_generation() -> None:
    model = built("gpt")
    model.get_parameters()[0].fill(np.nan)
    with pytest.raises(NonFiniteError, match="logits of row 0"):
        model.generate([1, 2], max_new_tokens=3)
