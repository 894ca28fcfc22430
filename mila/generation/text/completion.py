"""Text in, text out: what :mod:`mila.generation` does on ids, with a tokenizer at both ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from mila.errors import ConfigurationError, TokenIdError
from mila.generation.config import Completion, GenerationConfig, Status, checked_config
from mila.generation.decoding import Decodable, generate, is_refusal, require_callable, stream
from mila.generation.text.incremental import StopStrings
from mila.generation.text.tokenizer import TextTokenizer
from mila.generation.token_ids import is_sequence

#: Text, or ids that were made of it before, such as those of a conversation.
Prompt = str | Sequence[int]


@dataclass(frozen=True)
class TextCompletion(Completion):
    """What follows one prompt; its tokens include those of a stop string, for which its status is ``STOP`` too.

    Attributes:
        text: up to the first stop string, or all of it.
    """

    text: str


def generate_text(
    network: Decodable,
    tokenizer: TextTokenizer,
    prompt: Prompt,
    config: GenerationConfig | None = None,
    *,
    stop_strings: Sequence[str] = (),
    on_text: Callable[[str], bool | np.bool_ | None] | None = None,
) -> TextCompletion:
    """Write what follows one prompt; see :func:`generate_texts`.

    Args:
        network: built for inference.
        tokenizer: the model's.
        prompt: text or ids.
        config: how to choose, and when to stop; by default the likeliest tokens, up to a stop token.
        stop_strings: texts that end it.
        on_text: called for every token with the text that has become certain, which may be none, and once more at the
            end with the rest if there is any. Returning ``False``, or that of NumPy, cancels.
    """
    require_callable(on_text, "on_text")

    def notify(row: int, text: str) -> bool | np.bool_ | None:
        return None if on_text is None else on_text(text)

    return generate_texts(network, tokenizer, [prompt], config, stop_strings=stop_strings, on_text=notify)[0]


def generate_texts(
    network: Decodable,
    tokenizer: TextTokenizer,
    prompts: Sequence[Prompt],
    config: GenerationConfig | None = None,
    *,
    stop_strings: Sequence[str] = (),
    on_text: Callable[[int, str], bool | np.bool_ | None] | None = None,
) -> list[TextCompletion]:
    """Write what follows each prompt.

    The tokenizer's stop tokens are added to those of ``config``, and ids beyond its vocabulary are never chosen. The
    pieces given to ``on_text``, joined, are the completion's text; a piece is never taken back.

    Args:
        network: built for inference, for as many rows.
        tokenizer: the model's.
        prompts: text, encoded with the special tokens that the model expects around it, or ids.
        config: how to choose, and when to stop.
        stop_strings: texts that end a row; they may lie across tokens.
        on_text: called with the row and its text as in :func:`generate_text`.

    Raises:
        ConfigurationError: an empty stop string, a ``config`` that is none, or an ``on_text`` that cannot be called.
        DataError: a prompt that is no text.
        TokenIdError: no sequence of prompts, and see :func:`mila.generation.generate`.
        ShapeError, LifecycleError, NonFiniteError: see :func:`mila.generation.generate`.
    """
    require_callable(on_text, "on_text")
    if not is_sequence(prompts):
        raise TokenIdError(f"prompts: expected a sequence of texts, got {type(prompts).__name__}")
    stop_strings = checked_stop_strings(stop_strings)
    rows = [_Row(tokenizer, prompt, stop_strings) for prompt in prompts]

    def on_token(row: int, token: int) -> bool:
        text = rows[row].push(token)
        wanted = on_text is None or not is_refusal(on_text(row, text))
        return wanted and not rows[row].is_stopped

    ids = [row.ids for row in rows]
    completions = generate(network, ids, _complete_config(network, tokenizer, config), on_token=on_token)
    for number, row in enumerate(rows):
        rest = row.finish()
        if rest and on_text is not None:
            on_text(number, rest)
    return [row.completion(completion) for row, completion in zip(rows, completions, strict=True)]


def stream_text(
    network: Decodable,
    tokenizer: TextTokenizer,
    prompt: Prompt,
    config: GenerationConfig | None = None,
    *,
    stop_strings: Sequence[str] = (),
) -> TextStream:
    """The text that follows ``prompt``, piece by piece, as it is asked for; arguments as in :func:`generate_text`."""
    return TextStream(network, tokenizer, prompt, config, stop_strings)


class TextStream:
    """An iterator over pieces of text, none of them empty; each is computed when it is asked for.

    Closing it, or leaving a ``with`` block of it, cancels. Afterwards, or once it has ended, :attr:`completion` has the
    rest.
    """

    def __init__(
        self,
        network: Decodable,
        tokenizer: TextTokenizer,
        prompt: Prompt,
        config: GenerationConfig | None,
        stop_strings: Sequence[str],
    ) -> None:
        self._row = _Row(tokenizer, prompt, checked_stop_strings(stop_strings))
        self._tokens = stream(network, self._row.ids, _complete_config(network, tokenizer, config))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        for token in self._tokens:
            text = self._row.push(token)
            if self._row.is_stopped:
                self._tokens.close()
            if text:
                return text
        rest = self._row.finish()
        if not rest:
            raise StopIteration
        return rest

    def close(self) -> None:
        """Write no more."""
        self._tokens.close()
        self._row.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def completion(self) -> TextCompletion:
        """All that was written, and why it ended.

        Raises:
            LifecycleError: it has not ended.
        """
        return self._row.completion(self._tokens.completion)


def _complete_config(network: Decodable, tokenizer: TextTokenizer, config: GenerationConfig | None) -> GenerationConfig:
    """``config`` with the tokenizer's stop tokens that the network has, and without ids that pad its table."""
    config = checked_config(config)
    size = network.decoding_session.vocabulary
    limits = (config.vocabulary, tokenizer.vocabulary, size)
    stops = dict.fromkeys([*config.stop_tokens, *(token for token in tokenizer.stop_tokens if token < size)])
    vocabulary = min(limit for limit in limits if limit is not None)
    return config.model_copy(update={"stop_tokens": tuple(stops), "vocabulary": vocabulary})


def checked_stop_strings(strings: Any) -> tuple[str, ...]:
    """``strings``, where they are a sequence of texts, none of them empty.

    Raises:
        ConfigurationError: they are not.
    """
    if not is_sequence(strings) or not all(isinstance(text, str) and text for text in strings):
        raise ConfigurationError(f"stop_strings: expected texts of one character or more, got {strings!r:.80}")
    return tuple(strings)


class _Row:
    """The way of one row from ids to text."""

    def __init__(self, tokenizer: TextTokenizer, prompt: Prompt, stop_strings: Sequence[str]) -> None:
        is_text = isinstance(prompt, str)
        self.ids: Sequence[int] = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        self._decoder = tokenizer.decoder(self.ids if is_text else ())  # the text goes on where the prompt ends
        self._stops = StopStrings(stop_strings)
        self._parts: list[str] = []

    @property
    def is_stopped(self) -> bool:
        return self._stops.found

    def push(self, token: int) -> str:
        return self._keep(self._stops.push(self._decoder.push(token)))

    def finish(self) -> str:
        return self._keep(self._stops.push(self._decoder.finish()) + self._stops.finish())

    def _keep(self, text: str) -> str:
        self._parts.append(text)
        return text

    def completion(self, completion: Completion) -> TextCompletion:
        ended = replace(completion, status=Status.STOP) if self.is_stopped else completion
        return TextCompletion(**vars(ended), text="".join(self._parts))
