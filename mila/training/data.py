"""Batches of token windows in a seeded order whose position can be saved, and a baseline for the loss.

``tokens`` is one sequence. Window ``w`` of length T is ``tokens[w * T : w * T + T]``, its targets the same one token
later: windows lie T apart, so that every token but the first is a target exactly once per epoch, apart from a tail of
less than T tokens.

The order of an epoch is a permutation that is computed, not stored (``mila.training.permutation``): a position is two
numbers, and a run resumed from it sees what the uninterrupted run sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from mila.errors import ConfigurationError, DataError, DTypeError, ShapeError
from mila.training.permutation import Permutation
from mila.training.tokenization import PIECE, TokenArray, check_token_ids

Tokens = NDArray[np.integer[Any]]

MAXIMUM_BIGRAM_VOCABULARY = 4096  # 4096 * 4096 counts of 8 bytes are 128 MiB


class DataPosition(BaseModel):
    """Where a run stands in its data: ``index`` windows of ``epoch`` were taken, both counted from 0."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    epoch: int = Field(default=0, ge=0)
    index: int = Field(default=0, ge=0)


class TokenBatches:
    """Training batches without end: each epoch takes every window once, in an order of its own.

    Where the number of windows is no multiple of the batch, a batch holds the last windows of one epoch and the first
    of the next; all batches have the same shape and no window is left out.

    Args:
        tokens: one axis, int32 or an integer type that fits (uint8, uint16, ...; a memory map too). It is kept, not
            copied, and must not change.
        batch_size: B, the windows in a batch.
        sequence_length: T, the tokens in a window.
        seed: 0 to 2**64 - 1; gives the order of every epoch.
        position: where to start, from ``position`` of an earlier instance.

    Raises:
        ConfigurationError: a size below 1, or a seed out of range.
        ShapeError, DTypeError: tokens of more than one axis, or of a type that int32 cannot hold.
        DataError: fewer than ``B * T + 1`` tokens, or a position that this data does not have.
    """

    def __init__(
        self,
        tokens: Tokens,
        batch_size: int,
        sequence_length: int,
        seed: int = 0,
        position: DataPosition | None = None,
    ) -> None:
        check_tokens(tokens, batch_size, sequence_length, minimum_windows=batch_size)
        self._tokens = tokens
        self._batch_size = batch_size
        self._sequence_length = sequence_length
        self._seed = seed
        self._position = DataPosition()
        self._order = self._order_of_epoch(0)
        self.restore(position or DataPosition())

    @property
    def windows_per_epoch(self) -> int:
        """The number of windows, ``(len(tokens) - 1) // T``."""
        return window_count(self._tokens, self._sequence_length)

    @property
    def position(self) -> DataPosition:
        """What the next batch starts with; ``model_dump_json()`` gives what a checkpoint keeps."""
        return self._position

    def restore(self, position: DataPosition) -> None:
        """Go on from ``position``, as if the windows before it had just been taken.

        Raises:
            DataError: this data has no such window; nothing has changed.
        """
        if position.index >= self.windows_per_epoch:
            raise DataError(
                f"position: expected an index below {self.windows_per_epoch}, the windows of this data, "
                f"got {position.index}"
            )
        self._order = self._order_of_epoch(position.epoch)
        self._position = position

    def next_batch(
        self, out_inputs: TokenArray | None = None, out_targets: TokenArray | None = None
    ) -> tuple[TokenArray, TokenArray]:
        """Return inputs and targets, int32 (B, T) each, and move on by B windows.

        An array that is given is filled and returned, without allocating another.

        Raises:
            ShapeError: a given array that is not (B, T).
            DTypeError: a given array that is not int32, or cannot be written. Nothing has changed.
        """
        inputs = self._check_buffer("out_inputs", out_inputs)
        targets = self._check_buffer("out_targets", out_targets)
        epoch, index, order = self._position.epoch, self._position.index, self._order
        for row in range(self._batch_size):
            start = order[index] * self._sequence_length
            np.copyto(inputs[row], self._tokens[start : start + self._sequence_length])
            np.copyto(targets[row], self._tokens[start + 1 : start + 1 + self._sequence_length])
            index += 1
            if index == len(order):
                epoch, index, order = epoch + 1, 0, self._order_of_epoch(epoch + 1)
        self._position, self._order = DataPosition(epoch=epoch, index=index), order
        return inputs, targets

    def _order_of_epoch(self, epoch: int) -> Permutation:
        return Permutation(self.windows_per_epoch, self._seed, epoch)

    def _check_buffer(self, name: str, buffer: TokenArray | None) -> TokenArray:
        shape = (self._batch_size, self._sequence_length)
        if buffer is None:
            return np.empty(shape, np.int32)
        if buffer.shape != shape:
            raise ShapeError(f"{name}: expected shape {shape}, got {buffer.shape}")
        if buffer.dtype != np.int32 or not buffer.flags.writeable:
            access = "writable" if buffer.flags.writeable else "read-only"
            raise DTypeError(f"{name}: expected a writable int32 array, got a {access} {buffer.dtype} array")
        return buffer


def validation_batches(
    tokens: Tokens, batch_size: int, sequence_length: int, maximum_batches: int | None = None
) -> Iterator[tuple[TokenArray, TokenArray]]:
    """Return inputs and targets, int32 (B, T) each, of all windows in their order: the same ones on every call.

    The last batch may have fewer rows: weigh its loss by them. Where ``tokens`` is int32, the arrays are read-only
    views of it.

    Raises:
        ConfigurationError: a size below 1.
        ShapeError, DTypeError: as ``TokenBatches``.
        DataError: fewer than T + 1 tokens.
    """
    check_tokens(tokens, batch_size, sequence_length, minimum_windows=1, what="validation tokens")
    if maximum_batches is not None and maximum_batches < 1:
        raise ConfigurationError(f"maximum_batches: expected 1 or more, got {maximum_batches}")
    return windows_in_order(tokens, batch_size, sequence_length, maximum_batches)


def windows_in_order(
    tokens: Tokens, batch_size: int, sequence_length: int, maximum_batches: int | None
) -> Iterator[tuple[TokenArray, TokenArray]]:
    """Yield the batches of ``validation_batches``; apart from it, so that its errors come from the call itself."""
    windows = window_count(tokens, sequence_length)
    for first in range(0, windows, batch_size)[:maximum_batches]:
        rows, start = min(batch_size, windows - first), first * sequence_length
        yield (
            consecutive_windows(tokens, start, rows, sequence_length),
            consecutive_windows(tokens, start + 1, rows, sequence_length),
        )


def bigram_loss(training: Tokens, validation: Tokens, vocab_size: int, smoothing: float = 1.0) -> float:
    """Return the loss of a bigram model, in nats per token: what a network has to beat.

    The model counts the pairs of neighbours in ``training`` and gives ``validation`` the probabilities
    ``(count(a, b) + smoothing) / (count(a, ·) + smoothing * V)`` (add-one smoothing where ``smoothing`` is 1). The loss
    is the mean of their negative logarithms over the pairs of ``validation``.

    Raises:
        ConfigurationError: ``smoothing`` is not above 0: a pair never seen would have an infinite loss.
        DataError: fewer than two tokens in a part, or a vocabulary of more than 4,096 ids.
        ShapeError, DTypeError, TokenIdError: ids that are none of this vocabulary.
    """
    if not smoothing > 0.0:
        raise ConfigurationError(f"smoothing: expected more than 0, got {smoothing}")
    if not 1 <= vocab_size <= MAXIMUM_BIGRAM_VOCABULARY:
        raise DataError(f"vocab_size: expected 1 to {MAXIMUM_BIGRAM_VOCABULARY} for a table of pairs, got {vocab_size}")
    for name, tokens in (("training", training), ("validation", validation)):
        if check_token_ids(name, tokens, vocab_size).size < 2:
            raise DataError(f"{name}: expected 2 tokens or more, got {tokens.size}")
    counts = np.zeros(vocab_size * vocab_size, np.int64)
    for pairs in neighbour_pairs(training, vocab_size):
        np.add.at(counts, pairs, 1)
    totals = counts.reshape(vocab_size, vocab_size).sum(axis=1)
    loss = 0.0
    for pairs in neighbour_pairs(validation, vocab_size):
        loss += float(np.log(totals[pairs // vocab_size] + smoothing * vocab_size).sum())
        loss -= float(np.log(counts[pairs] + smoothing).sum())
    return loss / (validation.size - 1)


def neighbour_pairs(tokens: Tokens, vocab_size: int) -> Iterator[NDArray[np.int64]]:
    """Yield ``tokens[i] * V + tokens[i + 1]`` for all neighbours, a piece at a time."""
    for start in range(0, tokens.size - 1, PIECE):
        piece = tokens[start : start + PIECE + 1].astype(np.int64)
        yield piece[:-1] * vocab_size + piece[1:]


def window_count(tokens: Tokens, sequence_length: int) -> int:
    """Return how many windows the tokens hold; the last one needs a target for its last token."""
    return (tokens.size - 1) // sequence_length


def consecutive_windows(tokens: Tokens, start: int, rows: int, sequence_length: int) -> TokenArray:
    """Return windows that follow each other, int32 (rows, T) and read-only; a view where ``tokens`` is int32."""
    windows = np.asarray(tokens[start : start + rows * sequence_length], np.int32).reshape(rows, sequence_length)
    windows.flags.writeable = False
    return windows


def check_tokens(
    tokens: Tokens, batch_size: int, sequence_length: int, minimum_windows: int, what: str = "tokens"
) -> None:
    """Refuse sizes below 1, tokens of another kind, and too few of them for ``minimum_windows``."""
    for name, size in (("batch_size", batch_size), ("sequence_length", sequence_length)):
        if size < 1:
            raise ConfigurationError(f"{name}: expected 1 or more, got {size}")
    if tokens.ndim != 1:
        raise ShapeError(f"{what}: expected one axis, got shape {tokens.shape}")
    if tokens.dtype.kind not in "iu" or not np.can_cast(tokens.dtype, np.int32):
        raise DTypeError(f"{what}: expected int32, or an integer type that it can hold, got {tokens.dtype}")
    needed = minimum_windows * sequence_length + 1
    if tokens.size < needed:
        raise DataError(
            f"{what}: expected at least {needed} ({minimum_windows} windows of {sequence_length} and one target more), "
            f"got {tokens.size}"
        )
