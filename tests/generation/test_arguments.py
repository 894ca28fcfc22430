"""Arguments of a wrong type: one error of Mila's with what was expected and what came, and nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.errors import ConfigurationError, DataError, MilaError, ShapeError, TokenIdError
from mila.generation import GenerationConfig, generate, stream
from mila.generation.text import Conversation, TextTokenizer, generate_text, generate_texts, stream_text
from mila.models import LanguageModel, LlamaTransformer
from tests.generation.models import built
from tests.generation.text_models import CHATML, network, read_folder

CONFIG = GenerationConfig(max_new_tokens=2)


@pytest.fixture(scope="module")
def model() -> LlamaTransformer:
    return network()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return read_folder(tmp_path_factory.mktemp("tokenizers"), chat_template=CHATML)


NO_SEQUENCES = [None, 5, 1.5, True, "abc", b"abc", np.array(3), (i for i in [1]), {1, 2}, {1: 2}]
IDS: dict[str, Callable[[LanguageModel[Any], Any], Any]] = {
    "model": lambda model, wrong: model.generate(wrong, max_new_tokens=2),
    "generate": lambda model, wrong: generate(model, wrong, CONFIG),
    "generate a row": lambda model, wrong: generate(model, [wrong], CONFIG),
    "stream": lambda model, wrong: stream(model, wrong, CONFIG),
    "prefill": lambda model, wrong: model.prefill(wrong),
    "decode": lambda model, wrong: model.decode(wrong),
}


@pytest.mark.parametrize("wrong", NO_SEQUENCES, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("call", IDS)
def test_what_is_no_sequence_of_ids(call: str, wrong: Any) -> None:
    model = built("gpt")
    model.prefill([[4, 5]])
    with pytest.raises(TokenIdError, match=r"^model: .*expected .*token ids.*, got ") as refused:
        IDS[call](model, wrong)
    assert ("mila.generation.text.generate_text" in str(refused.value)) == isinstance(wrong, str)
    assert model.decoding_session.held(0) == (4, 5)


@pytest.mark.parametrize("wrong", [None, 0.0, 1.0, True, np.True_, "0", -1, 9], ids=repr)
def test_rows_and_lengths_are_integers_in_range(wrong: Any) -> None:
    model = built("gpt", 2)
    session: Any = model.decoding_session
    session.prefill([[4, 5]])
    with pytest.raises(ShapeError, match="expected a row from 0 to 1, got"):
        session.held(wrong)
    with pytest.raises(ShapeError, match="expected a row from 0 to 1, got"):
        session.rewind(wrong, 1)
    with pytest.raises(ShapeError, match="row 0 can go back to lengths of 0 … 2, got"):
        session.rewind(0, wrong)
    assert session.held(np.int64(0)) == (4, 5)
    session.rewind(np.int8(0), np.int64(1))
    assert session.held(0) == (4,)


WRONG: list[Any] = [None, ["a"], 3]
TEXTS: list[tuple[Callable[[Any, Any], Any], type[MilaError], str]] = [
    (lambda model, tokenizer: tokenizer.encode(None), DataError, "expected a text, got NoneType"),
    (lambda model, tokenizer: tokenizer.encode(b"ab"), DataError, "expected a text, got bytes"),
    (lambda model, tokenizer: tokenizer.decode("abc"), TokenIdError, "tokens: expected token ids, got str"),
    (lambda model, tokenizer: tokenizer.decode(None), TokenIdError, "tokens: expected token ids, got NoneType"),
    (lambda model, tokenizer: tokenizer.decoder(None), TokenIdError, "context: expected token ids, got NoneType"),
    (lambda model, tokenizer: tokenizer.decode([1.0]), TokenIdError, "tokens, place 0: .* got 1.0"),
    (lambda model, tokenizer: tokenizer.decode([1, np.True_]), TokenIdError, "tokens, place 1: .* got np.True_"),
    (
        lambda model, tokenizer: generate_text(model, tokenizer, WRONG[0]),
        TokenIdError,
        "expected token ids, got NoneType",
    ),
    (lambda model, tokenizer: generate_texts(model, tokenizer, "ab"), TokenIdError, "sequence of texts, got str"),
    (
        lambda model, tokenizer: generate_texts(model, tokenizer, WRONG[0]),
        TokenIdError,
        "sequence of texts, got NoneType",
    ),
    (lambda model, tokenizer: tokenizer.render_chat(None), DataError, "messages: expected a sequence"),
    (lambda model, tokenizer: tokenizer.render_chat(["hello"]), DataError, "message 0: expected a dictionary"),
    (lambda model, tokenizer: tokenizer.render_chat([{"content": "a"}]), DataError, "message 0: expected a dictionary"),
    (
        lambda model, tokenizer: tokenizer.render_chat([{"role": "user", "content": 3}]),
        DataError,
        "message 0: expected a text as its content, got int",
    ),
    (lambda model, tokenizer: Conversation(model, tokenizer).ask(WRONG[0]), DataError, "question: expected a text"),
    (lambda model, tokenizer: Conversation(model, tokenizer).ask(WRONG[1]), DataError, "question: expected a text"),
    (
        lambda model, tokenizer: Conversation(model, tokenizer, system=WRONG[2]),
        ConfigurationError,
        "system: .* got int",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), TEXTS)
def test_what_is_no_text(
    call: Callable[[Any, Any], Any],
    error: type[MilaError],
    message: str,
    model: LlamaTransformer,
    tokenizer: TextTokenizer,
) -> None:
    with pytest.raises(error, match=message):
        call(model, tokenizer)


OPTIONS: dict[str, Callable[[Any, Any, dict[str, Any]], Any]] = {
    "generate": lambda model, tokenizer, options: model.generate([1, 2], **{"config": CONFIG, **options}),
    "text": lambda model, tokenizer, options: generate_text(model, tokenizer, "x", **options),
    "texts": lambda model, tokenizer, options: generate_texts(model, tokenizer, ["x"], **options),
    "stream": lambda model, tokenizer, options: stream_text(model, tokenizer, "x", **options),
    "conversation": lambda model, tokenizer, options: Conversation(model, tokenizer, **options),
}
WRONG_OPTIONS = [
    *((call, "config", wrong) for call in OPTIONS for wrong in ({"seed": 1}, {}, "greedy", 0)),
    *((call, "stop_strings", wrong) for call in list(OPTIONS)[1:] for wrong in (None, 5, "stop", [""], [3], {"a"})),
    *((call, "on_text", wrong) for call in ("text", "texts") for wrong in (3, "print")),
    *(("generate", "on_token", wrong) for wrong in (3, "print", False)),
]


@pytest.mark.parametrize(("call", "option", "wrong"), WRONG_OPTIONS, ids=str)
def test_options_of_a_wrong_type(
    call: str, option: str, wrong: Any, model: LlamaTransformer, tokenizer: TextTokenizer
) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}: expected .*, got "):
        OPTIONS[call](model, tokenizer, {option: wrong})


def test_a_false_boolean_of_numpy_cancels_a_text(model: LlamaTransformer, tokenizer: TextTokenizer) -> None:
    assert len(generate_text(model, tokenizer, "x", CONFIG, on_text=lambda piece: np.False_).tokens) == 1
    answers: dict[str, Any] = {"on_text": lambda piece: 0}
    assert len(generate_text(model, tokenizer, "x", CONFIG, **answers).tokens) == 2


def test_stop_tokens_that_only_the_tokenizer_has_are_none(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """A folder may name a stop token beyond the network's table; the caller may not."""
    small = network(vocab_size=300)
    assert max(tokenizer.stop_tokens) >= 300
    assert len(generate_text(small, tokenizer, [1, 2], CONFIG).tokens) == 2
    with pytest.raises(TokenIdError, match="stop_tokens: expected a token id from 0 to 299, got 300"):
        generate_text(small, tokenizer, [1, 2], GenerationConfig(stop_tokens=[300]))
