"""What a generation is asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from mila.core import ComponentConfig
from mila.errors import ConfigurationError


def _plain(value: Any) -> Any:
    """Integers and floats of NumPy as Python's."""
    return value.item() if isinstance(value, np.integer | np.floating) else value


#: The id of a token.
TokenId = Annotated[int, BeforeValidator(_plain), Field(ge=0)]


class GenerationConfig(ComponentConfig):
    """How tokens are chosen, and when to stop.

    The filters apply in the order and with the meaning of ``transformers``: repetition penalty, temperature, top-k,
    top-p, min-p; each sees the distribution that the one before it left. A filter at temperature 0, where it would
    change nothing, is refused. Numbers of NumPy are taken as Python's.

    Attributes:
        max_new_tokens: tokens to write at most; by default as many as fit the context.
        temperature: the logits are divided by it. At 0 the likeliest token is taken, the lowest id among equals.
        top_k: keep the k likeliest, and those as likely as the k-th.
        top_p: keep the likeliest whose probabilities reach it together; at least one.
        min_p: keep those at least ``min_p`` times as likely as the likeliest.
        repetition_penalty: of every token of the prompt and of the text so far, a positive logit is divided by it and
            a negative one multiplied (Keskar et al. 2019); 1 changes nothing. From 0.001 to 1000, where it decides
            alone already: beyond, logits would leave the range of float32.
        seed: row r of a seed draws the same numbers in every batch.
        stop_tokens: ids that end a row; they are not part of its tokens.
        vocabulary: ids from here on are padding of the table and never chosen; by default all have a meaning.
    """

    max_new_tokens: int | None = Field(default=None, ge=0)
    temperature: float = Field(default=0.0, ge=0)
    top_k: int | None = Field(default=None, gt=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, ge=1e-3, le=1e3)
    seed: int = Field(default=0, ge=0)
    stop_tokens: tuple[TokenId, ...] = Field(default=(), strict=False)
    vocabulary: int | None = Field(default=None, gt=0)

    @field_validator("max_new_tokens", "top_k", "seed", "vocabulary", mode="before")
    @classmethod
    def _take_integers_of_numpy(cls, value: Any) -> Any:
        return _plain(value)

    @field_validator("temperature", "top_p", "min_p", "repetition_penalty", mode="before")
    @classmethod
    def _take_only_numbers(cls, value: Any) -> Any:
        """Without this, pydantic takes whatever converts itself to a float, arrays and booleans of NumPy included."""
        value = _plain(value)
        if value is not None and not isinstance(value, int | float):
            raise ValueError("expected a number")
        return value

    @field_validator("top_k", "top_p", "min_p")
    @classmethod
    def _refuse_useless_filters(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("temperature") == 0:
            raise ValueError("expected only with a temperature above 0")
        return value


def checked_config(config: GenerationConfig | None) -> GenerationConfig:
    """``config``, or the defaults for ``None``.

    Raises:
        ConfigurationError: anything else, such as a dictionary.
    """
    if config is None:
        return GenerationConfig()
    if not isinstance(config, GenerationConfig):
        raise ConfigurationError(f"config: expected a GenerationConfig, got {type(config).__name__}")
    return config


class Status(StrEnum):
    """Why a row ended."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT_LIMIT = "context_limit"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Completion:
    """What follows one prompt.

    Attributes:
        tokens: the tokens written, without the stop token.
        status: why they end here.
        prompt_tokens: length of the prompt.
        reused_tokens: how many of these the cache held already.
        prefill_seconds: from the call to the first token of the batch; callbacks are not counted.
        decode_seconds: from there to the end of this row; callbacks are not counted.
        decode_steps: runs of the network in this time, that of a stop token included.
    """

    tokens: tuple[int, ...]
    status: Status
    prompt_tokens: int
    reused_tokens: int
    prefill_seconds: float
    decode_seconds: float
    decode_steps: int

    @property
    def tokens_per_second(self) -> float | None:
        """Rate of decoding, without the first token, which is the prefill's; ``None`` where there was no other."""
        return self.decode_steps / self.decode_seconds if self.decode_steps else None
