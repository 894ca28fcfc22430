"""A training run that takes milliseconds, and has all that a resumption could get wrong.

``python tiny_run.py FOLDER UNTIL`` goes on from the newest checkpoint of ``FOLDER``, or starts, and prints the losses
and gradient norms of its steps as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mila.models import GptConfig, GptTransformer, LanguageModel, LlamaConfig, LlamaTransformer
from mila.training import (
    AdamWConfig,
    CharacterTokenizer,
    CosineSchedule,
    StepReport,
    TokenSplit,
    Trainer,
    TrainerConfig,
    TrainingEvent,
    split_tokens,
)

TEXT = "".join(f"the quick brown fox {number} jumps over the lazy dog {number * 7}. " for number in range(60))
TOKENIZER = CharacterTokenizer.from_text(TEXT)
STEPS = 12


def make_split(text: str = TEXT) -> TokenSplit:
    return split_tokens(TOKENIZER.encode(text), 0.2)


def make_network(kind: str = "gpt", width: int = 8, dropout: float = 0.2, **options: Any) -> LanguageModel[Any]:
    vocab_size = TOKENIZER.vocab_size
    if kind == "gpt":
        config = GptConfig(
            vocab_size=vocab_size, embedding_dim=width, num_layers=2, num_heads=2, max_seq_len=16, dropout=dropout
        )
        return GptTransformer("gpt", config, device="cpu", **options)
    llama = LlamaConfig(
        vocab_size=vocab_size,
        embedding_dim=width,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        hidden_dim=12,
        max_seq_len=16,
    )
    return LlamaTransformer("llama", llama, device="cpu", **options)


def make_config(**changes: Any) -> TrainerConfig:
    fields: dict[str, Any] = {
        "steps": STEPS,
        "batch_size": 3,
        "sequence_length": 8,
        "accumulation_steps": 2,
        "schedule": CosineSchedule(initial=2e-2, total_steps=STEPS, warmup_steps=2),
        "optimizer": AdamWConfig(maximum_norm=0.5, weight_decay=0.1),
        "seed": 3,
    }
    return TrainerConfig(**(fields | changes))


def make_trainer(
    folder: Path, *, network: LanguageModel[Any] | None = None, split: TokenSplit | None = None, **changes: Any
) -> Trainer:
    """A built trainer."""
    network = make_network(seed=5) if network is None else network
    trainer = Trainer(network, split or make_split(), make_config(**changes), folder, tokenizer=TOKENIZER)
    trainer.build()
    return trainer


def numbers_of(events: list[TrainingEvent]) -> list[tuple[int, float, float]]:
    """What two runs must have in common: everything but the time."""
    return [(event.step, event.loss, event.gradient_norm) for event in events if isinstance(event, StepReport)]


def run_until(folder: Path, until: int, **changes: Any) -> tuple[Trainer, list[TrainingEvent]]:
    """Start, or go on from the newest checkpoint, in a trainer of its own."""
    trainer = make_trainer(folder, **changes)
    if trainer.run_folder.newest() is not None:
        trainer.resume()
    events: list[TrainingEvent] = []
    trainer.run(events.append, until=until)
    return trainer, events


def everything(trainer: Trainer) -> dict[str, Any]:
    """All that decides the next step, bit for bit."""
    arrays = dict(zip(trainer.step.get_parameter_names(), trainer.step.get_parameters(), strict=True))
    arrays |= trainer.step.optimizer_moments()
    counts = {"updates": trainer.step.update_count, "runs": trainer.step.training_run_count}
    return {name: array.tobytes() for name, array in arrays.items()} | counts


if __name__ == "__main__":
    print(json.dumps(numbers_of(run_until(Path(sys.argv[1]), int(sys.argv[2]))[1])))
