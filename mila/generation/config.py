"""What a generation is asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from mila.core import ComponentConfig

#: The id of a token.
TokenId = Annotated[int, Field(ge=0)]


class GenerationConfig(ComponentConfig):
    """How tokens are chosen, and when to stop.

    The filters apply in the order and with the meaning of ``transformers``: repetition penalty, temperature, top-k,
    top-p, min-p; each sees the distribution that the one before it left.

    Attributes:
        max_new_tokens: tokens to write at most; by default as many as fit the context.
        temperature: the logits are divided by it. At 0 the likeliest token is taken, the lowest id among equals, and
            ``top_k``, ``top_p`` and ``min_p`` say nothing.
        top_k: keep the k likeliest, and those as likely as the k-th.
        top_p: keep the likeliest whose probabilities reach it together; at least one.
        min_p: keep those at least ``min_p`` times as likely as the likeliest.
        repetition_penalty: of every token of the prompt and of the text so far, a positive logit is divided by it and
            a negative one multiplied (Keskar et al. 2019); 1 changes nothing.
        seed: row r of a seed draws the same numbers in every batch.
        stop_tokens: ids that end a row; they are not part of its tokens.
        vocabulary: ids from here on are padding of the table and never chosen; by default all have a meaning.
    """

    max_new_tokens: int | None = Field(default=None, ge=0)
    temperature: float = Field(default=0.0, ge=0)
    top_k: int | None = Field(default=None, gt=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0)
    seed: int = Field(default=0, ge=0)
    stop_tokens: tuple[TokenId, ...] = Field(default=(), strict=False)
    vocabulary: int | None = Field(default=None, gt=0)


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
