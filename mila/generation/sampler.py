"""From logits to a token: penalty, temperature, filters, and a seeded draw per row, on scratch allocated once."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mila.errors import ConfigurationError, NonFiniteError
from mila.generation.config import GenerationConfig
from mila.kernels.signatures import Array
from mila.memory.storage import DType, accumulation_dtype

#: Weights whose sum is taken at once.
_BLOCK = 256
#: As many tokens as top-k may leave for the rest to work on them alone.
_FEW = 4096


class Sampler:
    """Chooses the tokens of the rows of one generation, one row at a time.

    Row r of a seed has a generator of its own, so that neither the size of the batch nor other rows change what it
    draws. Scratch is some arrays of V elements, two of them per row with a repetition penalty, all allocated here.

    Args:
        config: how to choose.
        vocabulary: number of logits V.
        dtype: of the logits.
        prompts: the tokens (T,) that each row starts with.

    Raises:
        ConfigurationError: ``config.vocabulary`` is more than V.
    """

    def __init__(
        self, config: GenerationConfig, vocabulary: int, dtype: DType, prompts: list[NDArray[np.int32]]
    ) -> None:
        self._size = vocabulary if config.vocabulary is None else config.vocabulary
        if self._size > vocabulary:
            raise ConfigurationError(f"vocabulary: expected at most {vocabulary} ids, got {self._size}")
        self._config = config
        self._is_greedy = config.temperature == 0
        self._dtype = accumulation_dtype(dtype)
        limits = np.finfo(self._dtype)  # beyond them the temperature would be 0 or infinite, and logits NaN
        self._temperature = min(max(config.temperature, float(limits.tiny)), float(limits.max))
        has_penalty = config.repetition_penalty != 1
        self._takes_logits_as_they_are = self._is_greedy and not has_penalty and dtype == self._dtype
        self._repeated = [_Repeated(self._size, ids) for ids in prompts] if has_penalty else []
        self._penalized: Array = np.empty((2, self._size if has_penalty else 0), self._dtype)
        self._generators = [
            np.random.Generator(np.random.PCG64(np.random.SeedSequence(config.seed, spawn_key=(row,))))
            for row in range(0 if self._is_greedy else len(prompts))
        ]
        self._scores: Array = np.empty(0 if self._takes_logits_as_they_are else self._size, self._dtype)
        filtered = 0 if self._is_greedy else self._size
        self._sorted: Array = np.empty(filtered, self._dtype)
        self._mask = np.empty(filtered, np.bool_)
        self._few: Array = np.empty(min(filtered, _FEW), self._dtype)
        self._weights = _Weights(filtered)

    def choose(self, row: int, logits: Array) -> int:
        """The next token of a row.

        Args:
            row: of the prompts.
            logits: (V,), in the dtype given; left as they are.

        Raises:
            NonFiniteError: a logit that is NaN or positive infinity, or none that is finite.
        """
        if self._takes_logits_as_they_are:
            scores = logits[: self._size]
            return self._likeliest(row, scores)
        scores = self._prepared(row, logits)
        token = self._likeliest(row, scores)
        if not self._is_greedy:
            kept, ids = self._filter(scores, scores[token])
            token = self._weights.locate(kept, self._generators[row].random())
            token = token if ids is None else int(ids[token])
        if self._repeated:
            self._repeated[row].add(token)
        return token

    def distribution(self, row: int, logits: Array) -> NDArray[np.float64]:
        """The probabilities (V,) that a draw of a row would follow; draws nothing.

        Args:
            row: of the prompts.
            logits: (V,), in the dtype given.

        Raises:
            ConfigurationError: the temperature is 0: nothing is drawn.
            NonFiniteError: as in :meth:`choose`.
        """
        if self._is_greedy:
            raise ConfigurationError("temperature: expected more than 0 for a distribution, got 0")
        scores = self._prepared(row, logits)
        kept, ids = self._filter(scores, scores[self._likeliest(row, scores)])
        chances = np.zeros(logits.shape[0], np.float64)
        chances[slice(self._size) if ids is None else ids] = np.exp(kept.astype(np.float64))
        chances /= chances.sum()
        return chances

    def _prepared(self, row: int, logits: Array) -> Array:
        """The logits in scratch, penalised."""
        np.copyto(self._scores, logits[: self._size])
        if self._repeated:
            self._repeated[row].penalize(self._scores, self._config.repetition_penalty, self._penalized)
        return self._scores

    def _likeliest(self, row: int, scores: Array) -> int:
        """The first of the largest scores; the first NaN is taken for the largest."""
        best = int(scores.argmax())
        if not math.isfinite(scores[best]):
            what = "that is finite" if scores[best] < 0 else f"other than {scores[best]} at id {best}"
            raise NonFiniteError(f"logits of row {row}: expected one {what}")
        return best

    # ------------------------------------------------------------------ filters

    def _filter(self, scores: Array, largest: float) -> tuple[Array, NDArray[np.intp] | None]:
        """Logarithms of weights, the largest 0, and minus infinity for what is filtered out.

        With them the ids that they belong to, where only a few are left; ``None`` where they are all there.
        """
        config = self._config
        ids = None
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to -inf
            np.subtract(scores, largest, out=scores)
            np.divide(scores, self._temperature, out=scores)
        if config.top_k is not None and config.top_k < self._size:
            scores, ids = self._keep_likeliest(scores, config.top_k)
        if config.top_p is not None and config.top_p < 1:
            self._keep_nucleus(scores, config.top_p)
        if config.min_p:
            self._drop_below(scores, math.log(config.min_p))
        return scores, ids

    def _keep_likeliest(self, scores: Array, count: int) -> tuple[Array, NDArray[np.intp] | None]:
        np.copyto(self._sorted, scores)
        self._sorted.partition(self._size - count)
        threshold = self._sorted[self._size - count]
        np.greater_equal(scores, threshold, out=self._mask)
        kept = int(np.count_nonzero(self._mask))
        if kept > self._few.size:
            self._drop_below(scores, float(threshold))
            return scores, None
        ids = np.flatnonzero(self._mask)
        np.take(scores, ids, out=self._few[:kept], mode="clip")
        return self._few[:kept], ids

    def _drop_below(self, scores: Array, threshold: float) -> None:
        mask = self._mask[: scores.size]
        np.less(scores, threshold, out=mask)
        np.copyto(scores, -np.inf, where=mask)

    def _keep_nucleus(self, scores: Array, top_p: float) -> None:
        """Drop the least likely as long as their probabilities together are at most ``1 - top_p``."""
        ascending = self._sorted[: scores.size]
        np.copyto(ascending, scores)
        ascending.sort()
        first = self._weights.locate(ascending, 1 - top_p)
        threshold = ascending[first]  # of the array's dtype, or the whole array would be converted to look it up
        surplus = first - int(np.searchsorted(ascending, threshold, side="left"))
        self._drop_below(scores, float(threshold))
        if surplus:
            self._drop_last_equal(scores, threshold, surplus)

    def _drop_last_equal(self, scores: Array, value: float, count: int) -> None:
        """Of those that are equally likely, the lowest ids stay."""
        mask, ranks = self._mask[: scores.size], self._sorted[: scores.size]
        np.equal(scores, value, out=mask)
        np.copyto(ranks, mask)
        np.cumsum(ranks, out=ranks)
        start = int(np.searchsorted(ranks, ranks[-1] - count, side="right"))
        np.copyto(scores[start:], -np.inf, where=mask[start:])


class _Weights:
    """Places in the running sum of up to ``size`` weights.

    The sum is in float64: over a large vocabulary float32 would lose the rare tokens. It is taken over blocks first,
    and then within one block.
    """

    def __init__(self, size: int) -> None:
        self._weights = np.zeros(-(-size // _BLOCK) * _BLOCK, np.float64)
        self._sums = np.empty(self._weights.size // _BLOCK, np.float64)
        self._within = np.empty(_BLOCK, np.float64)

    def locate(self, logarithms: Array, fraction: float) -> int:
        """The first place where the running sum of ``exp(logarithms)`` is above ``fraction``, below 1, of the total."""
        size = logarithms.size
        blocks = -(-size // _BLOCK)
        weights, sums = self._weights[: blocks * _BLOCK], self._sums[:blocks]
        np.copyto(weights[:size], logarithms)
        np.exp(weights[:size], out=weights[:size])
        weights[size:] = 0
        np.sum(weights.reshape(blocks, _BLOCK), axis=1, out=sums)
        np.cumsum(sums, out=sums)
        total = float(sums[-1])
        target = min(fraction * total, math.nextafter(total, 0.0))  # the product may round up to the total
        block = int(np.searchsorted(sums, target, side="right"))
        before = float(sums[block - 1]) if block else 0.0
        start = block * _BLOCK
        np.cumsum(weights[start : start + _BLOCK], out=self._within)
        # This sum rounds otherwise than that of the block, and may end below the target: then it is the last weight.
        limit = math.nextafter(float(self._within[-1]), 0.0)
        return start + int(np.searchsorted(self._within, min(target - before, limit), side="right"))


class _Repeated:
    """The distinct tokens of one row."""

    def __init__(self, size: int, prompt: NDArray[np.int32]) -> None:
        self._is_known = np.zeros(size, np.bool_)
        self._ids = np.empty(size, np.intp)
        self._count = 0
        for token in np.unique(prompt).tolist():
            if token < size:
                self.add(token)

    def add(self, token: int) -> None:
        if not self._is_known[token]:
            self._is_known[token] = True
            self._ids[self._count] = token
            self._count += 1

    def penalize(self, scores: Array, penalty: float, scratch: Array) -> None:
        """Divide positive scores and multiply negative ones: whichever of the two moves the score the penalty's way."""
        ids = self._ids[: self._count]
        divided, multiplied = scratch[:, : self._count]
        np.take(scores, ids, out=divided, mode="clip")
        with np.errstate(over="ignore"):
            np.multiply(divided, penalty, out=multiplied)
            np.divide(divided, penalty, out=divided)
        (np.minimum if penalty > 1 else np.maximum)(divided, multiplied, out=divided)
        scores[ids] = divided
