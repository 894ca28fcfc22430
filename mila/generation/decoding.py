"""Generation: prompts of ids in, tokens out, one per row and step, until every row has a reason to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from mila.errors import ConfigurationError, LifecycleError
from mila.generation.config import Completion, GenerationConfig, Status, checked_config
from mila.generation.sampler import Sampler
from mila.generation.session import DecodingSession
from mila.generation.token_ids import TokenSequence, checked_token
from mila.kernels.signatures import Array

#: ``on_token(row, token)``; a row whose call returns a false boolean, Python's or NumPy's, is cancelled; 0 is none.
TokenCallback = Callable[[int, int], bool | np.bool_ | None]


class Decodable(Protocol):
    """A network with a decoding session, such as a language model built for inference."""

    @property
    def decoding_session(self) -> DecodingSession:
        """The one session of the network."""


def generate(
    network: Decodable,
    prompts: Sequence[TokenSequence],
    config: GenerationConfig,
    *,
    on_token: TokenCallback | None = None,
) -> list[Completion]:
    """Write what follows each prompt.

    Whatever ends the call, an exception of ``on_token`` and Ctrl-C included, the session remains usable.

    Args:
        network: built for inference, for at least as many rows as there are prompts.
        prompts: token ids; their lengths may differ.
        config: how to choose, and when to stop.
        on_token: called with the row and each token as it comes; returning ``False``, or that of NumPy, cancels the
            row.

    Returns:
        One completion per prompt.

    Raises:
        TokenIdError: no prompts, an empty one, or an id outside the vocabulary, in ``config.stop_tokens`` too; nothing
            was run.
        ShapeError: too many prompts, or one longer than the context; nothing was run.
        ConfigurationError: ``config.vocabulary`` is more than the network's, ``config`` is no config, or ``on_token``
            cannot be called; nothing was run.
        NonFiniteError: logits that are not numbers.
        LifecycleError: not built for inference, or ``on_token`` ran another generation on the network.
    """
    require_callable(on_token, "on_token")
    decoding = Decoding(network.decoding_session, prompts, config)
    while emitted := decoding.advance():
        if on_token is not None:
            for row, token in emitted:
                if is_refusal(on_token(row, token)):
                    decoding.cancel(row)
    return decoding.completions()


def require_callable(callback: Any, name: str) -> None:
    """Refuse what is neither a function nor ``None``.

    Raises:
        ConfigurationError: with the name of the argument.
    """
    if callback is not None and not callable(callback):
        raise ConfigurationError(f"{name}: expected a function, got {type(callback).__name__}")


def is_refusal(answer: object) -> bool:
    """Whether a callback's answer cancels: a false boolean does, of Python or NumPy, and nothing else."""
    return isinstance(answer, bool | np.bool_) and not answer


def stream(network: Decodable, prompt: TokenSequence, config: GenerationConfig) -> TokenStream:
    """The tokens that follow ``prompt``, as they are asked for.

    Args:
        network: built for inference.
        prompt: token ids.
        config: how to choose, and when to stop.

    Raises:
        TokenIdError, ShapeError, ConfigurationError, LifecycleError: see :func:`generate`; nothing was run.
    """
    return TokenStream(network, Decoding(network.decoding_session, [prompt], config))


class Decoding:
    """The generation of one batch: who is still writing, what was written, and why the others ended.

    A row that has ended stays in the batch as it is, at the cost of its share of a step, until no row behind it writes.

    Args:
        session: of the network.
        prompts: token ids per row.
        config: how to choose, and when to stop.

    Raises:
        TokenIdError, ShapeError, ConfigurationError: see :func:`generate`; nothing was run.
    """

    def __init__(self, session: DecodingSession, prompts: Sequence[TokenSequence], config: GenerationConfig) -> None:
        config = checked_config(config)
        for token in config.stop_tokens:
            checked_token(token, session.vocabulary, "stop_tokens")
        self._session = session
        self._prompts = session.checked(prompts)
        self._sampler = Sampler(config, session.vocabulary, session.dtype, self._prompts)
        self._stop_tokens = frozenset(config.stop_tokens)
        context = session.context_length
        self._room = [context - prompt.size for prompt in self._prompts]
        self._limit = config.max_new_tokens
        self._tokens: list[list[int]] = [[] for _ in self._prompts]
        self._status: list[Status | None] = [None] * len(self._prompts)
        self._reused = (0,) * len(self._prompts)
        self._pass: int | None = None
        self._prefill_seconds = 0.0
        self._decode_seconds = [0.0] * len(self._prompts)
        self._decode_steps = [0] * len(self._prompts)
        for row in range(len(self._prompts)):
            self._end_if_full(row)

    def advance(self) -> list[tuple[int, int]]:
        """Run one step; where that fails, all rows end as cancelled.

        Returns:
            (row, token) of each row that wrote one; empty once all rows have ended.

        Raises:
            NonFiniteError: logits that are not numbers.
            LifecycleError: the network was run by another since the last step.
        """
        emitted: list[tuple[int, int]] = []
        if None not in self._status:
            return emitted
        writing = [row for row, status in enumerate(self._status) if status is None]
        is_prefill, start = self._pass is None, time.perf_counter()
        try:
            logits = self._run()
            for row in writing:
                self._write(row, self._sampler.choose(row, logits[row]), emitted)
        except BaseException:
            for row in range(len(self._prompts)):
                self.cancel(row)
            raise
        seconds = time.perf_counter() - start
        if is_prefill:
            self._prefill_seconds = seconds
        else:
            for row in writing:
                self._decode_seconds[row] += seconds
                self._decode_steps[row] += 1
        return emitted

    def cancel(self, row: int) -> None:
        """End a row after what it has written, unless it has ended."""
        if self._status[row] is None:
            self._status[row] = Status.CANCELLED

    def completions(self) -> list[Completion]:
        """What was written, per row.

        Raises:
            LifecycleError: a row is still writing.
        """
        return [self._completion(row, status) for row, status in enumerate(self._status)]

    # ------------------------------------------------------------------ inside

    def _run(self) -> Array:
        session = self._session
        if self._pass is None:
            logits = session.prefill(self._prompts)
            self._pass, self._reused = session.prefills, session.reused
            return logits
        if self._pass != session.prefills:
            raise LifecycleError("generation: another one has taken over the network's cache since the last token")
        tokens = [
            written[-1] if status is None else None for written, status in zip(self._tokens, self._status, strict=True)
        ]
        while tokens[-1] is None:
            tokens.pop()
        return session.step(tokens)

    def _write(self, row: int, token: int, emitted: list[tuple[int, int]]) -> None:
        if token in self._stop_tokens:
            self._status[row] = Status.STOP
            return
        self._tokens[row].append(token)
        emitted.append((row, token))
        self._end_if_full(row)

    def _end_if_full(self, row: int) -> None:
        count = len(self._tokens[row])
        if count == self._limit:
            self._status[row] = Status.LENGTH
        elif count == self._room[row]:
            self._status[row] = Status.CONTEXT_LIMIT

    def _completion(self, row: int, status: Status | None) -> Completion:
        if status is None:
            raise LifecycleError(f"generation: row {row} is still writing")
        return Completion(
            tokens=tuple(self._tokens[row]),
            status=status,
            prompt_tokens=int(self._prompts[row].size),
            reused_tokens=self._reused[row],
            prefill_seconds=self._prefill_seconds,
            decode_seconds=self._decode_seconds[row],
            decode_steps=self._decode_steps[row],
        )


class TokenStream:
    """An iterator over the tokens of one row; each is computed when it is asked for.

    Closing it, or leaving a ``with`` block of it, cancels the row. Afterwards, or once it has ended, :attr:`completion`
    has the rest.
    """

    def __init__(self, network: Decodable, decoding: Decoding) -> None:
        self._network = network  # the session does not keep it alive
        self._decoding = decoding

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        emitted = self._decoding.advance()
        if not emitted:
            raise StopIteration
        return emitted[0][1]

    def close(self) -> None:
        """Write no more; what has ended by itself keeps its status."""
        self._decoding.cancel(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def completion(self) -> Completion:
        """All that was written, and why it ended.

        Raises:
            LifecycleError: it has not ended.
        """
        return self._decoding.completions()[0]
