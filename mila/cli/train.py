"""``mila train``: plan, build, train, and go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from click.core import ParameterSource

from mila.cli import options
from mila.cli.display import print_event, print_json, progress
from mila.cli.failures import DOES_NOT_FIT, INTERRUPTED, USAGE, leave, reports_errors
from mila.cli.plan_text import fits, plan_document, plan_text, verdict
from mila.models import LanguageModel
from mila.training import (
    ByteTokenizer,
    CharacterTokenizer,
    RunFolder,
    TextCorpus,
    Tokenizer,
    Trainer,
    TrainerConfig,
    load_architecture,
    load_tokenizer,
    read_training_state,
    split_tokens,
)
from mila.errors import CheckpointError

#: What may be said beside ``--resume``: all else is in the checkpoint.
_ALLOWED_WITH_RESUME = {"texts", "out", "pattern", "validation_fraction", "steps", "resume", "plan_only", "as_json"}


@reports_errors
def train(
    context: typer.Context,
    texts: options.Texts,
    out: options.Out,
    model: options.Model = options.ModelKind.GPT,
    width: options.Width = 128,
    layers: options.Layers = 4,
    heads: options.Heads = 4,
    kv_heads: options.KvHeads = None,
    hidden_dim: options.HiddenDim = None,
    dropout: options.DropoutRate = 0.0,
    tokenizer: options.TokenizerOption = options.TokenizerKind.CHARACTER,
    pattern: options.Pattern = "**/*.txt",
    validation_fraction: options.Fraction = 0.1,
    steps: options.Steps = 1000,
    batch_size: options.BatchSize = 16,
    sequence_length: options.Length = 128,
    accumulation: options.Accumulation = 1,
    learning_rate: options.Rate = 1e-3,
    warmup: options.Warmup = 100,
    schedule: options.ScheduleOption = options.ScheduleKind.COSINE,
    weight_decay: options.Decay = 0.1,
    clip: options.Clip = 1.0,
    validate_every: options.ValidateEvery = 100,
    validation_batches: options.ValidationBatches = 20,
    checkpoint_every: options.CheckpointEvery = 500,
    keep_last: options.KeepLast = 2,
    seed: options.Seed = 0,
    resume: options.Resume = False,
    plan_only: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a language model on text: print the memory plan, build exactly that, train, and keep checkpoints."""
    text = read_texts(texts, pattern)
    if resume:
        _require_resumable(context)
        steps_asked = steps if _was_given(context, "steps") else None
        network, words, config = _from_checkpoint(out, steps_asked)
    else:
        words = CharacterTokenizer.from_text(text) if tokenizer is options.TokenizerKind.CHARACTER else ByteTokenizer()
        network = options.new_network(
            model,
            vocab_size=words.vocab_size,
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            hidden_dim=hidden_dim,
            dropout=dropout,
            sequence_length=sequence_length,
            seed=seed,
        )
        config = TrainerConfig(
            steps=steps,
            batch_size=batch_size,
            sequence_length=sequence_length,
            accumulation_steps=accumulation,
            schedule=options.new_schedule(schedule, learning_rate, warmup, steps),
            optimizer=options.new_optimizer(weight_decay, clip),
            validate_every=validate_every,
            validation_batches=validation_batches,
            checkpoint_every=checkpoint_every,
            keep_last=keep_last,
            seed=seed,
        )
    trainer = Trainer(network, split_tokens(words.encode(text), validation_fraction), config, out, tokenizer=words)
    show_plan(trainer, as_json)
    if not plan_only:
        run(trainer, resume, as_json)
