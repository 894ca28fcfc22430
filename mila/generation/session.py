"""Decoding sessions: what the cache of a built network holds, row by row, and how more gets into it."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mila.components import Attention
from mila.core import Network, Position
from mila.core.execution import Execution
from mila.core.lifecycle import execution_of
from mila.errors import ConfigurationError, LifecycleError, ShapeError
from mila.generation.token_ids import TokenSequence, checked_prompt, checked_token, require_sequence
from mila.generation.wording import counted, up_to
from mila.kernels.signatures import Array
from mila.memory.storage import DType


class DecodingSession:
    """Prefill in chunks, decode token by token, and go back: over a network of ids to logits, built for inference.

    The cache is the network's, so a network has one session: a language model's is
    :attr:`~mila.models.LanguageModel.decoding_session`. What anybody else runs on the network, and weights loaded
    after the fact, are noticed, and the session forgets what it held. It does not keep the network alive.

    A session holds int32 ids of its own, of one chunk and of what the rows hold; a step allocates no array.

    Args:
        network: built for inference, with a key/value cache.

    Raises:
        LifecycleError: not built, not a root, or parameters are missing.
        ConfigurationError: built for training, or an attention without a cache.
    """

    def __init__(self, network: Network[Any]) -> None:
        network.require_built("a decoding session")
        if not network.is_inference_mode:
            raise ConfigurationError(f"{network.path}: a decoding session expected a network built for inference")
        execution = execution_of(network, "a decoding session")
        attentions = [part for part in network.walk() if isinstance(part, Attention)]
        for attention in attentions:
            if not attention.config.kv_cache:
                raise ConfigurationError(f"{attention.path}: a decoding session expected kv_cache=True, got False")
        schedule = execution.schedule
        self._path = network.path
        self._network = weakref.ref(network)
        self._attentions = [weakref.ref(part) for part in attentions if part.config.sliding_window is not None]
        self._built_rows, self._chunk = schedule.shapes[0]
        self._context_length = schedule.options.max_seq_len
        self._vocabulary = schedule.shapes[schedule.outputs[0]][-1]
        self._dtype = schedule.options.dtype
        self._chunk_ids = np.zeros(self._built_rows * self._chunk, np.int32)
        self._device_ids = network.device.to_device(self._chunk_ids)  # on the CPU these are the same array
        self._tokens = np.zeros((self._built_rows, self._context_length), np.int32)
        self._held = [0] * self._built_rows
        self._reused: tuple[int, ...] = ()
        self._prefills = 0
        self._seen = (execution.forward_runs, execution.parameter_loads)
        self._last_logits = self._own_logits(execution)

    def _own_logits(self, execution: Execution) -> Array | None:
        """Where the last logits of each row are gathered, if the network gives those of every position."""
        if not execution.context.all_logits:
            return None
        logits: Array = np.zeros((self._built_rows, self._vocabulary), self._dtype)
        return logits

    # ------------------------------------------------------------------ asking

    @property
    def context_length(self) -> int:
        """Positions that a row can hold."""
        return self._context_length

    @property
    def vocabulary(self) -> int:
        """Number of logits V."""
        return self._vocabulary

    @property
    def dtype(self) -> DType:
        """Dtype of the logits."""
        return self._dtype

    @property
    def reused(self) -> tuple[int, ...]:
        """How many tokens of each prompt the last :meth:`prefill` did not compute again."""
        return self._reused

    @property
    def prefills(self) -> int:
        """Calls of :meth:`prefill` so far: whoever decodes step by step sees whether another has taken over."""
        return self._prefills

    def held(self, row: int) -> tuple[int, ...]:
        """The tokens whose keys and values the cache of a row holds.

        Raises:
            ShapeError: no such row.
        """
        self._forget_if_foreign()
        return tuple(self._tokens[row, : self._held[self._checked_row(row)]].tolist())

    def checked(self, prompts: Sequence[TokenSequence]) -> list[NDArray[np.int32]]:
        """``prompts`` as int32 ids, one array per row; runs nothing.

        Raises:
            TokenIdError: no sequence of prompts, an empty prompt, or an id outside the vocabulary; names the row and
                the place.
            ShapeError: no prompt, more than there are rows, or one longer than the context.
        """
        require_sequence(prompts, "prompts of token ids", self._path)
        if not 1 <= len(prompts) <= self._built_rows:
            raise ShapeError(f"{self._path}: expected {up_to(self._built_rows, 'prompt')}, got {len(prompts)}")
        checked = []
        for row, prompt in enumerate(prompts):
            ids = checked_prompt(prompt, self._vocabulary, f"{self._path}: prompt of row {row}")
            if ids.size > self._context_length:
                raise ShapeError(
                    f"{self._path}: prompt of row {row} has {counted(ids.size, 'token')}, and the context "
                    f"{self._context_length}"
                )
            checked.append(ids)
        return checked

    # ------------------------------------------------------------------ running

    def prefill(self, prompts: Sequence[TokenSequence]) -> Array:
        """Make the first rows hold ``prompts``; what a row holds of its prompt already is not computed again.

        The last token of each prompt is always computed, and a prefix that a sliding window has overwritten, too.

        Args:
            prompts: one sequence of token ids per row; may be fewer than there are rows.

        Returns:
            The logits (B, V) of the token after each prompt: a view, valid until the network runs again.

        Raises:
            TokenIdError, ShapeError: see :meth:`checked`; nothing was run.
        """
        checked = self.checked(prompts)
        self._forget_if_foreign()
        starts = [self._reusable(row, ids) for row, ids in enumerate(checked)]
        self._reused = tuple(starts)
        self._prefills += 1
        for row, (ids, start) in enumerate(zip(checked, starts, strict=True)):
            self._held[row] = start  # before the ids change, so that they always are what the cache holds
            self._tokens[row, start : ids.size] = ids[start:]
        ends = [ids.size for ids in checked]
        while True:
            logits = self._prefill_chunk(ends)
            if self._held[: len(ends)] == ends:
                return logits

    def step(self, tokens: Sequence[int | None]) -> Array:
        """Append one token to each of the first rows.

        Args:
            tokens: one id per row; ``None`` leaves a row as it is, and gives its last logits again.

        Returns:
            The logits (B, V) of the token that follows each: a view, valid until the network runs again.

        Raises:
            TokenIdError: no sequence of ids, or an id outside the vocabulary.
            ShapeError: no row, more than there are, or a row whose context is full.
            LifecycleError: a row that holds nothing.
        """
        require_sequence(tokens, "token ids", self._path)
        self._forget_if_foreign()
        rows = len(tokens)
        if not 1 <= rows <= self._built_rows:
            raise ShapeError(f"{self._path}: expected {up_to(self._built_rows, 'token')}, got {rows}")
        ids = [self._checked_step(row, token) for row, token in enumerate(tokens)]
        starts = self._held[:rows]
        for row, (token, value) in enumerate(zip(tokens, ids, strict=True)):
            if token is None:
                starts[row] -= 1
            else:
                self._tokens[row, starts[row]] = value
            self._chunk_ids[row] = value
        return self._run(rows, 1, starts, [1] * rows)

    def rewind(self, row: int, length: int) -> None:
        """Keep only the first ``length`` tokens of a row.

        Raises:
            ShapeError: no such row, or a length that the row does not hold or can no longer go back to, its window
                having moved on; 0 is always possible.
        """
        self._forget_if_foreign()
        held = self._held[self._checked_row(row)]
        first = self._earliest_start(row)
        if not _is_integer(length) or (length != 0 and not first <= length <= held):
            lengths = f"0 or {first} … {held}" if first else f"0 … {held}"
            raise ShapeError(f"{self._path}: row {row} can go back to lengths of {lengths}, got {length!r}")
        self._held[row] = operator.index(length)

    def reset(self) -> None:
        """Forget what all rows hold."""
        self._held[:] = [0] * self._built_rows

    # ------------------------------------------------------------------ inside

    def _execution(self) -> tuple[Network[Any], Execution]:
        network = self._network()
        if network is None:
            raise LifecycleError(f"{self._path}: the network of this session no longer exists; keep a reference to it")
        return network, execution_of(network, "a decoding session")

    def _forget_if_foreign(self) -> None:
        _, execution = self._execution()
        seen = (execution.forward_runs, execution.parameter_loads)
        if seen != self._seen:
            self._seen = seen
            self.reset()

    def _checked_row(self, row: int) -> int:
        if not _is_integer(row) or not 0 <= row < self._built_rows:
            rows = "row 0" if self._built_rows == 1 else f"a row from 0 to {self._built_rows - 1}"
            raise ShapeError(f"{self._path}: expected {rows}, got {row!r}")
        return operator.index(row)

    def _checked_step(self, row: int, token: int | None) -> int:
        held = self._held[row]
        if not held:
            raise LifecycleError(
                f"{self._path}: row {row} holds nothing: never filled, or forgotten since the network was run or "
                "loaded by another; call prefill first"
            )
        if token is None:
            return int(self._tokens[row, held - 1])
        if held == self._context_length:
            raise ShapeError(f"{self._path}: the context of row {row} is full: {counted(held, 'position')}")
        return checked_token(token, self._vocabulary, f"{self._path}: token of row {row}")

    def _earliest_start(self, row: int) -> int:
        attentions = (reference() for reference in self._attentions)
        return max((part.earliest_start(row) for part in attentions if part is not None), default=0)

    def _reusable(self, row: int, ids: NDArray[np.int32]) -> int:
        """How many tokens of a prompt need not be computed again."""
        common = min(self._held[row], ids.size - 1)
        differs = np.flatnonzero(self._tokens[row, :common] != ids[:common])
        start = int(differs[0]) if differs.size else common
        return start if start >= self._earliest_start(row) else 0

    def _prefill_chunk(self, ends: Sequence[int]) -> Array:
        """Run the next chunk of every row up to ``ends``; a row that is complete gives its last token again."""
        starts = [min(self._held[row], end - 1) for row, end in enumerate(ends)]
        lengths = [min(self._chunk, end - start) for start, end in zip(starts, ends, strict=True)]
        width = max(lengths)
        ids = self._chunk_ids[: len(ends) * width].reshape(len(ends), width)
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            ids[row, :length] = self._tokens[row, start : start + length]
        return self._run(len(ends), width, starts, lengths)

    def _run(self, rows: int, width: int, starts: list[int], lengths: list[int]) -> Array:
        """Run the first ``rows`` x ``width`` ids; where that fails, rows hold what was not written to."""
        network, execution = self._execution()
        ids = self._chunk_ids[: rows * width].reshape(rows, width)
        self._held[:rows] = starts
        position = Position(starts[0], lengths[0]) if rows == 1 else Position(starts, lengths)
        try:
            logits = network.device.download(network.forward(self._on_device(network, ids), position=position))
        finally:
            self._seen = (execution.forward_runs, execution.parameter_loads)
        self._held[:rows] = [start + length for start, length in zip(starts, lengths, strict=True)]
        if self._last_logits is None:
            return logits[:, 0]
        for row, length in enumerate(lengths):
            self._last_logits[row] = logits[row, length - 1]
        return self._last_logits[:rows]

    def _on_device(self, network: Network[Any], ids: NDArray[np.int32]) -> Array:
        """``ids``, the first of a chunk, where the network reads them; nothing is allocated."""
        if self._device_ids is self._chunk_ids:
            return ids
        place = self._device_ids[: ids.size].reshape(ids.shape)
        network.device.upload(place, ids)
        return place


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
