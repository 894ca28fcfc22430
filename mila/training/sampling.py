"""Text from a network, one token at a time, over a window that slides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mila.core import Position, TrainingStep
from mila.errors import ConfigurationError, DataError
from mila.kernels.signatures import Array
from mila.models import LanguageModel
from mila.training.tokenization import BaseTokenizer, TokenArray


def sample_text(
    source: TrainingStep | LanguageModel[Any],
    tokenizer: BaseTokenizer,
    prompt: str,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """Return ``length`` tokens that follow ``prompt``, as text.

    Each token is drawn from the logits of the last T tokens, T being the built sequence length.

    Args:
        source: a built training step, or a language model that was built for inference.
        tokenizer: of the model.
        prompt: at least one token.
        length: tokens to draw.
        temperature: logits are divided by it; at 0 the likeliest token is taken.
        top_k: draw among the likeliest only.
        seed: the same seed draws the same tokens.

    Raises:
        DataError: an empty prompt, or a character that the tokenizer does not know.
        ConfigurationError: a length below 0, a temperature that is negative or not finite, ``top_k`` below 1.
        LifecycleError: not built.
    """
    if length < 0:
        raise ConfigurationError(f"length: expected 0 or more, got {length}")
    check_sampling(temperature, top_k)
    ids = tokenizer.encode(prompt)
    if ids.size == 0:
        raise DataError("prompt: expected at least one token, got none")
    logits = _StepLogits(source) if isinstance(source, TrainingStep) else _ModelLogits(source)
    tokens = np.empty(ids.size + length, np.int32)
    tokens[: ids.size] = ids
    generator = np.random.Generator(np.random.PCG64(seed))
    for count in range(ids.size, tokens.size):
        tokens[count] = next_token(logits.after(tokens[:count]), temperature, top_k, generator)
    return tokenizer.decode(tokens[ids.size :])


def check_sampling(temperature: float, top_k: int | None) -> None:
    """Refuse a temperature or a ``top_k`` without meaning.

    Raises:
        ConfigurationError: names the option.
    """
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ConfigurationError(f"temperature: expected a finite number of at least 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ConfigurationError(f"top_k: expected 1 or more, got {top_k}")


def next_token(
    logits: NDArray[np.float64], temperature: float, top_k: int | None, generator: np.random.Generator
) -> int:
    """Draw one id from logits (V,): softmax of ``logits / temperature`` over the ``top_k`` largest."""
    if temperature == 0:
        return int(np.argmax(logits))
    order = np.argsort(-logits, kind="stable")[:top_k]
    scaled = (logits[order] - logits[order[0]]) / temperature
    cumulative = np.cumsum(np.exp(scaled))
    place = np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right")
    return int(order[min(int(place), order.size - 1)])


class _StepLogits:
    """Of a training step: the whole window again for every token."""

    def __init__(self, step: TrainingStep) -> None:
        step.require_built("sample_text")
        self._step = step
        self._window = _built_shape(step)[1]

    def after(self, tokens: TokenArray) -> NDArray[np.float64]:
        """Logits (V,) of the token that follows."""
        return _last_row(self._step.logits(np.ascontiguousarray(tokens[-self._window :])[None]))


class _ModelLogits:
    """Of an inference build: only the new tokens while the cache has room, the whole window again afterwards."""

    def __init__(self, model: LanguageModel[Any]) -> None:
        model.require_built("sample_text")
        if not model.is_inference_mode:
            raise ConfigurationError(f"{model.path}: expected a training step, or a model built for inference")
        context = model.build_context
        self._model = model
        self._chunk = _built_shape(model)[1]
        self._window = self._chunk if context is None or context.max_seq_len is None else context.max_seq_len
        self._cached = 0

    def after(self, tokens: TokenArray) -> NDArray[np.float64]:
        """Logits (V,) of the token that follows."""
        window = tokens[-self._window :]
        start = self._cached if tokens.size <= self._window else 0
        for first in range(start, window.size, self._chunk):
            part = np.ascontiguousarray(window[first : first + self._chunk])[None]
            output = self._model.forward(part, position=Position(first))
        self._cached = window.size
        return _last_row(output)


def _built_shape(component: TrainingStep | LanguageModel[Any]) -> tuple[int, ...]:
    context = component.build_context
    if context is None:
        return ()
    return next(iter(context.input_shapes.values()))


def _last_row(logits: Array) -> NDArray[np.float64]:
    return np.asarray(logits[0, -1], np.float64)
