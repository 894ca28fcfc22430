"""What the demo trains, the same in every process, and the two things that it does in processes of their own.

``python -m mila.cli.demo_run resume SETTINGS CHECKPOINT RUN_FOLDER`` takes the last steps again and prints their
losses, and the SHA-256 of the parameters, as JSON. ``python -m mila.cli.demo_run measure SETTINGS`` prints what a build
and a step take.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from mila.core import TrainingStep
from mila.models import GptConfig, GptTransformer
from mila.training import (
    AdamWConfig,
    ByteTokenizer,
    CosineSchedule,
    StepReport,
    TextCorpus,
    TokenSplit,
    Trainer,
    TrainerConfig,
    TrainingEvent,
    split_tokens,
    standard_library_sources,
)

VALIDATION_FRACTION = 0.05
MEASURED_STEPS = 12


class DemoSettings(BaseModel):
    """Sizes of the demo.

    Attributes:
        steps: updates in all.
        last_steps: those that are taken a second time, in another process.
        corpus_bytes: at most so much of the standard library's source.
        device: where all of it runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    steps: int = Field(default=400, gt=0)
    last_steps: int = Field(default=10, gt=0)
    corpus_bytes: int = Field(default=8_000_000, gt=0)
    width: int = Field(default=192, gt=0)
    layers: int = Field(default=2, gt=0)
    heads: int = Field(default=6, gt=0)
    sequence_length: int = Field(default=128, gt=0)
    batch_size: int = Field(default=8, gt=0)
    validation_batches: int = Field(default=40, gt=0)
    learning_rate: float = Field(default=2e-3, gt=0)
    seed: int = 0
    device: str = "cpu"

    @property
    def first_steps(self) -> int:
        """Updates before the checkpoint that the other process goes on from."""
        return self.steps - self.last_steps


def demo_split(settings: DemoSettings) -> TokenSplit:
    """The bytes of Python's own standard library, its end held out.

    Raises:
        DataError: this Python has no sources of its library.
    """
    corpus = TextCorpus(standard_library_sources(settings.corpus_bytes), errors="skip")
    return split_tokens(corpus.tokens(ByteTokenizer()), VALIDATION_FRACTION)


def demo_trainer(settings: DemoSettings, split: TokenSplit, folder: Path) -> Trainer:
    """The unbuilt trainer."""
    network = GptConfig(
        vocab_size=ByteTokenizer().vocab_size,
        embedding_dim=settings.width,
        num_layers=settings.layers,
        num_heads=settings.heads,
        max_seq_len=settings.sequence_length,
        initial_std=0.06,  # as narrow as it is, the network starts slowly from GPT-2's 0.02
    )
    steps = settings.steps
    config = TrainerConfig(
        steps=steps,
        batch_size=settings.batch_size,
        sequence_length=settings.sequence_length,
        schedule=CosineSchedule(
            initial=settings.learning_rate,
            final=settings.learning_rate / 10,
            total_steps=steps,
            warmup_steps=min(50, steps // 10),
        ),
        optimizer=AdamWConfig(beta2=0.99, weight_decay=0.1, maximum_norm=1.0),
        validate_every=-(-steps // 4),
        validation_batches=settings.validation_batches,
        keep_last=8,  # every checkpoint of the last steps stays: the other process goes on from the first of them
        seed=settings.seed,
    )
    gpt = GptTransformer("gpt", network, device=settings.device, seed=settings.seed)
    return Trainer(gpt, split, config, folder, tokenizer=ByteTokenizer())


def take_last_steps(trainer: Trainer, notify: Callable[[TrainingEvent], None] | None = None) -> dict[str, Any]:
    """Train to the end; the loss and the gradient norm of each step, and what the parameters hash to.

    Raises:
        KeyboardInterrupt: somebody pressed Ctrl-C meanwhile.
    """
    numbers: list[list[float]] = []

    def listen(event: TrainingEvent) -> None:
        if isinstance(event, StepReport):
            numbers.append([event.loss, event.gradient_norm])
        if notify is not None:
            notify(event)

    if trainer.run(listen).interrupted:
        raise KeyboardInterrupt
    return {"losses_and_norms": numbers, "parameters_sha256": parameters_sha256(trainer.step)}


def parameters_sha256(step: TrainingStep) -> str:
    """The SHA-256 of all parameters, in their order."""
    digest = hashlib.sha256()
    for array in step.get_parameters():
        digest.update(step.device.download(array).tobytes())
    return digest.hexdigest()


def measured(settings: DemoSettings) -> dict[str, Any]:
    """How much the resident memory grows over the build, and the median seconds of a few steps, the first left out.

    The tokens are made up: memory that a corpus leaves behind would be used again, and hide what the build takes.
    """
    tokens = np.arange(MEASURED_STEPS * settings.batch_size * settings.sequence_length, dtype=np.int32) % 256
    times: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        trainer = demo_trainer(settings, split_tokens(tokens, 0.5), Path(scratch) / "run")
        build = trainer.build()

        def listen(event: TrainingEvent) -> None:
            if isinstance(event, StepReport):
                times.append(trainer.config.tokens_per_step / event.tokens_per_second)

        trainer.run(listen, until=MEASURED_STEPS)
    return {"resident_bytes": build.resident_bytes, "seconds_per_step": statistics.median(times[1:])}


def resumed_steps(settings: DemoSettings, checkpoint: str, folder: str) -> dict[str, Any]:
    """The last steps, from the checkpoint before them."""
    trainer = demo_trainer(settings, demo_split(settings), Path(folder))
    trainer.build()
    trainer.resume(checkpoint)
    return take_last_steps(trainer)


def _main(task: str, settings_json: str, *arguments: str) -> None:
    settings = DemoSettings.model_validate_json(settings_json)
    print(json.dumps(measured(settings) if task == "measure" else resumed_steps(settings, *arguments)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
