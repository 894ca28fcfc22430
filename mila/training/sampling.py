"""Text from a network, one token at a time, over a window that slides."""

from __future__ import annotations

from typing import Any

import numpy as np

from mila.core import TrainingStep
from mila.errors import ConfigurationError, DataError
from mila.generation import GenerationConfig, Sampler
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

    Each token is drawn from the logits of the last T tokens, T being the built sequence length: where
    :func:`mila.generation.generate` ends at the context's limit, this goes on over a window that slides.

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
        ConfigurationError: a length below 0, or a language model that was built for training.
        LifecycleError: not built.
        pydantic.ValidationError: a temperature that is negative or not finite, ``top_k`` below 1 or at temperature 0, a
            negative seed.
    """
    if length < 0:
        raise ConfigurationError(f"length: expected 0 or more, got {length}")
    config = GenerationConfig(temperature=temperature, top_k=top_k, seed=seed)
    ids = tokenizer.encode(prompt)
    if ids.size == 0:
        raise DataError("prompt: expected at least one token, got none")
    window, vocabulary = _window_and_vocabulary(source)
    sampler = Sampler(config, vocabulary, source.dtype, [ids])
    tokens = np.empty(ids.size + length, np.int32)
    tokens[: ids.size] = ids
    for count in range(ids.size, tokens.size):
        tokens[count] = sampler.choose(0, _last_logits(source, tokens[max(0, count - window) : count]))
    return tokenizer.decode(tokens[ids.size :])


def _window_and_vocabulary(source: TrainingStep | LanguageModel[Any]) -> tuple[int, int]:
    """The built sequence length T, and the number of logits V."""
    if isinstance(source, LanguageModel):
        return source.decoding_session.context_length, source.decoding_session.vocabulary
    source.require_built("sample_text")
    context = source.network.build_context
    length = 0 if context is None else next(iter(context.input_shapes.values()))[1]
    return length, source.network.config.vocab_size


def _last_logits(source: TrainingStep | LanguageModel[Any], window: TokenArray) -> Array:
    """Logits (V,) after a window; of a language model only what its cache lacks is computed."""
    if isinstance(source, LanguageModel):
        logits: Array = source.prefill([window])
    else:
        logits = source.device.download(source.logits(source.device.to_device(window[None])))[:, -1]
    last: Array = logits[0]
    return last
