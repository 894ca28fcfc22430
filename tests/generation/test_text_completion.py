"""Text from networks: pieces, stop strings, statuses, batches, streams and conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mila.errors import ConfigurationError, DataError, LifecycleError, TokenIdError
from mila.generation import GenerationConfig, Status
from mila.generation.text import Conversation, TextTokenizer, generate_text, generate_texts, stream_text
from mila.models import LlamaTransformer
from tests.generation.text_models import CHATML, END, TOKENIZERS, network, read_folder

PROMPT = "the quick brown"
LENGTH = GenerationConfig(max_new_tokens=24, temperature=1.0, seed=4)


@pytest.fixture(scope="module")
def model() -> LlamaTransformer:
    return network()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return read_folder(tmp_path_factory.mktemp("tokenizers"), chat_template=CHATML)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("seed", range(6))
def test_the_text_follows_the_prompt(kind: str, seed: int, model: LlamaTransformer, tmp_path: Path) -> None:
    tokenizer = read_folder(tmp_path, kind)
    pieces: list[str] = []
    config = LENGTH.model_copy(update={"seed": seed})
    completion = generate_text(model, tokenizer, PROMPT, config, on_text=pieces.append)
    ids = tokenizer.encode(PROMPT)
    assert max(completion.tokens) < tokenizer.vocabulary < 400  # the table's padding is never chosen
    assert PROMPT + completion.text == tokenizer.decode([*ids, *completion.tokens])
    assert "".join(pieces) == completion.text
    assert completion.prompt_tokens == len(ids)
    assert (completion.status, completion.decode_steps) == (Status.LENGTH, len(completion.tokens) - 1)
    streamed = stream_text(model, tokenizer, PROMPT, config)
    assert "".join(streamed) == completion.text
    assert (streamed.completion.tokens, streamed.completion.status) == (completion.tokens, completion.status)


def test_of_ids_the_text_starts_anew(model: LlamaTransformer, tokenizer: TextTokenizer) -> None:
    completion = generate_text(model, tokenizer, tokenizer.encode(PROMPT), LENGTH)
    assert completion.text == tokenizer.decode(completion.tokens)


@pytest.mark.parametrize("start", range(0, 24, 3))
def test_a_stop_string_ends_the_text_before_it(start: int, model: LlamaTransformer, tokenizer: TextTokenizer) -> None:
    """Wherever it lies in the tokens, streamed or not; what was passed on is never taken back."""
    whole = generate_text(model, tokenizer, PROMPT, LENGTH)
    stop = whole.text[start : start + 5]
    pieces: list[str] = []
    stopped = generate_text(model, tokenizer, PROMPT, LENGTH, stop_strings=["never", stop], on_text=pieces.append)
    assert stopped.text == "".join(pieces) == whole.text[: whole.text.index(stop)]
    assert stopped.status is Status.STOP
    assert stopped.tokens == whole.tokens[: len(stopped.tokens)]
    assert stopped.decode_steps == len(stopped.tokens) - 1
    with stream_text(model, tokenizer, PROMPT, LENGTH, stop_strings=[stop]) as streamed:
        assert "".join(streamed) == stopped.text
    assert streamed.completion.status is Status.STOP


def test_stop_tokens_are_the_models_own(model: LlamaTransformer, tokenizer: TextTokenizer, tmp_path: Path) -> None:
    whole = generate_text(model, tokenizer, PROMPT, LENGTH)
    stops = {"eos_token_id": [whole.tokens[9]]}
    other = read_folder(tmp_path, generation_config=stops, tokenizer_config={})
    stopped = generate_text(model, other, PROMPT, LENGTH)
    assert stopped.tokens == whole.tokens[: whole.tokens.index(whole.tokens[9])]
    assert (stopped.status, stopped.decode_steps) == (Status.STOP, len(stopped.tokens))


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_listener_can_cancel(count: int, model: LlamaTransformer, tokenizer: TextTokenizer) -> None:
    whole = generate_text(model, tokenizer, PROMPT, LENGTH)
    heard: list[str] = []

    def listen(piece: str) -> bool:
        heard.append(piece)
        return len(heard) <= count

    cancelled = generate_text(model, tokenizer, PROMPT, LENGTH, on_text=listen)
    assert (cancelled.status, cancelled.tokens) == (Status.CANCELLED, whole.tokens[: count + 1])
    assert cancelled.text == "".join(heard)
    stream = stream_text(model, tokenizer, PROMPT, LENGTH)
    with pytest.raises(LifecycleError):
        _ = stream.completion
    first = next(stream)
    stream.close()
    assert list(stream) == []
    assert (stream.completion.status, whole.text.startswith(first)) == (Status.CANCELLED, True)


def test_statuses_of_full_contexts_and_lengths(model: LlamaTransformer, tokenizer: TextTokenizer) -> None:
    prompt = tokenizer.encode("the " * 100)[:90]
    full = generate_text(model, tokenizer, prompt, GenerationConfig(temperature=1.0, seed=3))
    assert (full.status, len(full.tokens)) == (Status.CONTEXT_LIMIT, 6)
    assert generate_text(model, tokenizer, PROMPT, GenerationConfig(max_new_tokens=3)).status is Status.LENGTH
    nothing = generate_text(model, tokenizer, PROMPT, GenerationConfig(max_new_tokens=0))
    assert (nothing.text, nothing.tokens, nothing.status) == ("", (), Status.LENGTH)


def test_rows_of_a_batch_are_what_they_are_alone(tokenizer: TextTokenizer) -> None:
    model = network(rows=3)
    prompts = ["the", "over the lazy dog. it's", "日本"]
    config = GenerationConfig(max_new_tokens=12)
    alone = [generate_text(model, tokenizer, prompt, config) for prompt in prompts]
    pieces: dict[int, str] = {0: "", 1: "", 2: ""}

    def listen(row: int, piece: str) -> None:
        pieces[row] += piece

    together = generate_texts(model, tokenizer, prompts, config, on_text=listen)
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert [each.text for each in together] == [each.text for each in alone] == list(pieces.values())


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ("", {}, TokenIdError),
        ([], {}, TokenIdError),
        ([400], {}, TokenIdError),
        ("a\udc80", {}, DataError),
        (PROMPT, {"stop_strings": [""]}, ConfigurationError),
        (PROMPT, {"stop_strings": "stop"}, ConfigurationError),
    ],
)
def test_what_is_refused(
    prompt: Any, options: dict[str, Any], error: type[Exception], model: LlamaTransformer, tokenizer: TextTokenizer
) -> None:
    with pytest.raises(error):
        generate_text(model, tokenizer, prompt, LENGTH, **options)


# ---------------------------------------------------------------------- conversations

SHORT = GenerationConfig(max_new_tokens=6, temperature=1.0)


def test_a_conversation_computes_only_what_is_new(model: LlamaTransformer, tokenizer: TextTokenizer) -> None:
    conversation = Conversation(model, tokenizer, SHORT, system="the")
    first = conversation.ask("quick brown").completion
    second = conversation.ask("fox").completion
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert conversation.messages[2]["content"] == first.text
    assert second.reused_tokens >= first.prompt_tokens
    ids = tokenizer.encode_chat(conversation.messages[:-1])
    fresh = network()
    config = SHORT.model_copy(update={"seed": 1})
    assert generate_text(fresh, tokenizer, ids, config).tokens == second.tokens


def test_the_oldest_turns_make_room(model: LlamaTransformer, tokenizer: TextTokenizer) -> None:
    conversation = Conversation(model, tokenizer, SHORT, system="the")
    answers = [conversation.ask(f"over {number}") for number in range(6)]
    assert answers[0].dropped_turns == 0
    assert sum(answer.dropped_turns for answer in answers) >= 2
    assert all(answer.completion.status is not Status.CONTEXT_LIMIT for answer in answers)
    messages = conversation.messages
    assert messages[0] == {"role": "system", "content": "the"}
    assert messages[-2] == {"role": "user", "content": "over 5"}
    assert len(messages) == 1 + 2 * (6 - sum(answer.dropped_turns for answer in answers))


def test_a_question_that_cannot_fit_changes_nothing(model: LlamaTransformer, tokenizer: TextTokenizer) -> None:
    conversation = Conversation(model, tokenizer, SHORT)
    conversation.ask("fox")
    before = conversation.messages
    with pytest.raises(DataError, match="no room to answer"):
        conversation.ask("fox " * 200)
    assert conversation.messages == before
    template = len(tokenizer.encode_chat([{"role": "user", "content": ""}]))
    long = conversation.ask("日" * ((93 - template) // len(tokenizer.encode("日"))))
    assert (long.dropped_turns, long.completion.status) == (1, Status.CONTEXT_LIMIT)
    assert 90 < long.completion.prompt_tokens < 96


def test_reset_and_a_cancelled_answer(model: LlamaTransformer, tokenizer: TextTokenizer) -> None:
    conversation = Conversation(model, tokenizer, SHORT, system="the")
    whole = conversation.ask("fox").completion
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "the"}]
    cut = conversation.ask("fox", on_text=lambda piece: False).completion
    assert (cut.status, cut.tokens) == (Status.CANCELLED, whole.tokens[:1])
    assert conversation.messages[-1] == {"role": "assistant", "content": cut.text}


def test_an_interrupted_question_is_forgotten(model: LlamaTransformer, tokenizer: TextTokenizer) -> None:
    conversation = Conversation(model, tokenizer, SHORT)

    def interrupt(piece: str) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversation.ask("fox", on_text=interrupt)
    assert conversation.messages == []
    stops = Conversation(model, tokenizer, SHORT, stop_strings=[END])
    assert conversation.ask("fox").completion.tokens == stops.ask("fox").completion.tokens
