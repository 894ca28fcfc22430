"""What ``benchmarks.plan_accuracy`` measures: published shapes with random weights, and what is done with each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mila.kernels.signatures import Array
from mila.planning import Mode, PlanRequest
from mila.planning.presets import presets

THREADS = 2
SEED = 0
#: Tokens that are generated one by one after the prompt.
NEW_TOKENS = 16
#: Updates: PyTorch has no moments before the first.
STEPS = 2
LEARNING_RATE = 1e-4
#: Neither side drops anything, so that both compute the same.
NO_DROPOUT = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "attention_dropout": 0.0}


@dataclass(frozen=True)
class AccuracyCase:
    """A preset, and what it is run for.

    Attributes:
        preset: its name.
        mode: in inference a prompt that leaves room for ``NEW_TOKENS``, then these; in training ``STEPS`` updates.
        context: positions T.
        batch: sequences B.
        dtype: of weights, on both sides.
    """

    preset: str
    mode: Mode
    context: int
    batch: int
    dtype: str

    @property
    def name(self) -> str:
        """On the command line."""
        return f"{self.preset}/{self.mode.value}/{self.dtype}"

    @property
    def title(self) -> str:
        """In tables."""
        return f"{self.preset}, {self.mode.value}, {self.dtype}, {self.batch} x {self.context:,}"

    @property
    def request(self) -> PlanRequest:
        """What Mila is asked."""
        return PlanRequest(mode=self.mode, context=self.context, batch=self.batch, dtype=self.dtype)

    @property
    def fields(self) -> dict[str, Any]:
        """The publisher's config, without the dtype of the published file."""
        return {key: value for key, value in presets()[self.preset].config.items() if key != "torch_dtype"}

    def draw_prompt(self) -> list[int]:
        """Ids of a prompt, as many as leave room for the new tokens."""
        drawn: list[int] = self._draw((self.context - NEW_TOKENS,)).tolist()
        return drawn

    def draw_batch(self) -> tuple[Array, Array]:
        """Ids and targets (B, T) each, int32."""
        ids, targets = self._draw((2, self.batch, self.context)).astype(np.int32)
        return ids, targets

    def _draw(self, shape: tuple[int, ...]) -> Array:
        return np.random.default_rng(SEED).integers(0, self.fields["vocab_size"], shape)


CASES = {
    case.name: case
    for case in (
        AccuracyCase("gpt2", Mode.INFERENCE, context=1024, batch=1, dtype="float32"),
        AccuracyCase("smollm2-135m", Mode.INFERENCE, context=1024, batch=1, dtype="float32"),
        AccuracyCase("qwen2.5-0.5b", Mode.INFERENCE, context=1024, batch=1, dtype="float32"),
        AccuracyCase("gpt2", Mode.TRAINING, context=256, batch=2, dtype="float32"),
        AccuracyCase("smollm2-135m", Mode.TRAINING, context=256, batch=2, dtype="float32"),
        AccuracyCase("qwen2.5-0.5b", Mode.TRAINING, context=128, batch=1, dtype="float32"),
    )
}
