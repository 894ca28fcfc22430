"""A conversation: turns, the template that writes them out, and what to leave out when the context is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mila.errors import ConfigurationError, DataError
from mila.generation.config import GenerationConfig, checked_config
from mila.generation.decoding import Decodable
from mila.generation.text.chat_template import Message
from mila.generation.text.completion import TextCompletion, checked_stop_strings, generate_text
from mila.generation.text.tokenizer import TextTokenizer
from mila.generation.wording import counted

#: Share of the context that an answer finds free at least, while there are turns to leave out.
_FREE_SHARE = 4


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        completion: its text, tokens and status.
        dropped_turns: how many of the oldest turns (a question with its answer) were left out for it, for good.
    """

    completion: TextCompletion
    dropped_turns: int


class Conversation:
    """Questions and answers with a chat model.

    Every question renders the whole conversation again; the network's session computes only what its cache does not
    hold, which is the end of it. When a conversation grows beyond the context, the oldest turns are left out so that
    the answer finds a quarter of the context free, or ``max_new_tokens`` if that is less. The system message stays.

    Args:
        network: built for inference.
        tokenizer: the model's, with a chat template.
        config: how to choose tokens; question n of a conversation has the seed ``config.seed + n``, n from 0.
        system: the system message.
        stop_strings: texts that end an answer.

    Raises:
        ConfigurationError: a ``config`` or stop strings that are none, or a system message that is no text.
    """

    def __init__(
        self,
        network: Decodable,
        tokenizer: TextTokenizer,
        config: GenerationConfig | None = None,
        *,
        system: str | None = None,
        stop_strings: Sequence[str] = (),
    ) -> None:
        self._network = network
        self._tokenizer = tokenizer
        self._config = checked_config(config)
        if system is not None and not isinstance(system, str):
            raise ConfigurationError(f"system: expected a text, got {type(system).__name__}")
        self._system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._stop_strings = checked_stop_strings(stop_strings)
        self._turns: list[list[Message]] = []
        self._asked = 0

    @property
    def messages(self) -> list[Message]:
        """The system message and all turns that are still known."""
        return [*self._system, *(message for turn in self._turns for message in turn)]

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self._turns.clear()
        self._asked = 0

    def ask(self, question: str, *, on_text: Callable[[str], bool | np.bool_ | None] | None = None) -> Answer:
        """The answer to ``question``; both become a turn of the conversation, a cancelled answer as far as it came.

        Where anything is raised, the conversation is as before.

        Args:
            question: what the user says.
            on_text: see :func:`generate_text`.

        Raises:
            DataError: the question is no text, or alone too long for the context.
            CheckpointError: no chat template, or one that fails.
            ConfigurationError: the template refuses the messages.
        """
        if not isinstance(question, str):
            raise DataError(f"question: expected a text, got {type(question).__name__}")
        message = {"role": "user", "content": question}
        dropped, ids = self._fitting(message)
        config = self._config.model_copy(update={"seed": self._config.seed + self._asked})
        completion = generate_text(
            self._network, self._tokenizer, ids, config, stop_strings=self._stop_strings, on_text=on_text
        )
        self._turns = [*self._turns[dropped:], [message, {"role": "assistant", "content": completion.text}]]
        self._asked += 1
        return Answer(completion, dropped)

    def _fitting(self, message: Message) -> tuple[int, list[int]]:
        """How many turns to leave out, and the ids of the rest."""
        context = self._network.decoding_session.context_length
        wanted = self._config.max_new_tokens
        free = context // _FREE_SHARE if wanted is None else min(context // _FREE_SHARE, wanted)
        for dropped in range(len(self._turns) + 1):
            kept = [part for turn in self._turns[dropped:] for part in turn]
            ids = self._tokenizer.encode_chat([*self._system, *kept, message])
            if len(ids) <= context - free:
                return dropped, ids
        if len(ids) >= context:
            raise DataError(
                f"the question, as the chat template writes it out, takes {counted(len(ids), 'token')}, and the "
                f"context has {context}: no room to answer"
            )
        return len(self._turns), ids
