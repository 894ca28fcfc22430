"""What ``benchmarks.train_step`` measures: models, batches, and the training settings of both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mila.kernels.signatures import Array
from mila.models import GptConfig

LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.1
THREADS = 2
#: Batches that the steps go round in.
BATCHES = 4


@dataclass(frozen=True)
class BenchmarkCase:
    """A model and its batch; ``steps`` is the number of steps of one turn."""

    name: str
    title: str
    config: GptConfig
    batch: int
    length: int
    steps: int

    @property
    def tokens_per_step(self) -> int:
        """B T."""
        return self.batch * self.length

    def draw_tokens(self) -> Array:
        """Ids and targets (2, BATCHES, B, T), int32."""
        shape = (2, BATCHES, self.batch, self.length)
        return np.random.default_rng(0).integers(0, self.config.vocab_size, shape).astype(np.int32)


GPT2_124M = GptConfig(vocab_size=50257, embedding_dim=768, num_layers=12, num_heads=12, max_seq_len=1024)
CHARACTERS = GptConfig(vocab_size=65, embedding_dim=384, num_layers=6, num_heads=6, max_seq_len=256)

CASES = {
    case.name: case
    for case in (
        BenchmarkCase("characters", "characters: 6 layers, C=384, V=65", CHARACTERS, batch=8, length=256, steps=4),
        BenchmarkCase("gpt2_b1", "GPT-2 124M", GPT2_124M, batch=1, length=256, steps=2),
        BenchmarkCase("gpt2_b2", "GPT-2 124M", GPT2_124M, batch=2, length=256, steps=2),
    )
}
