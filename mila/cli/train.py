"""``mila train``: plan, build, train, and go on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from mila.cli import options
from mila.cli.device_options import Device, execution_context
from mila.cli.display import print_event, print_json, progress
from mila.cli.failures import DOES_NOT_FIT, INTERRUPTED, USAGE, leave, reports_errors
from mila.cli.plan_text import fits, plan_document, plan_text, verdict
from mila.devices import ExecutionContext
from mila.errors import CheckpointError
from mila.memory import format_bytes
from mila.training import (
    BuildReport,
    ByteTokenizer,
    CharacterTokenizer,
    RunFolder,
    TextCorpus,
    Tokenizer,
    Trainer,
    load_architecture,
    load_tokenizer,
    read_training_state,
    split_tokens,
)

#: What may be said beside ``--resume``: all else is in the checkpoint, which any device goes on from.
_ALLOWED_WITH_RESUME = {
    "texts",
    "out",
    "pattern",
    "undecodable",
    "validation_fraction",
    "steps",
    "device",
    "resume",
    "plan_only",
    "as_json",
}


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
    undecodable: options.Undecodable = options.DecodingErrorKind.STRICT,
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
    device: Device = "cpu",
    resume: options.Resume = False,
    plan_only: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a language model on text: print the memory plan, build exactly that, train, and keep checkpoints."""
    choices = options.Choices(**{name: value for name, value in locals().items() if name != "context"})
    if resume:
        _require_nothing_else(context)
    place = execution_context(choices.device)
    trainer = _resumed_trainer(choices, place, _was_given(context, "steps")) if resume else _new_trainer(choices, place)
    show_plan(trainer, as_json)
    if not plan_only:
        _run(trainer, choices)


def read_texts(choices: options.Choices) -> str:
    """All files as one text; a folder stands for the files in it that match.

    Raises:
        DataError: a path that does not exist, a file that is not UTF-8, or no text at all.
    """
    files: list[Path] = []
    for path in choices.texts:
        files += TextCorpus.from_folder(path, choices.pattern).paths if path.is_dir() else [path]
    return TextCorpus(tuple(files), choices.undecodable.value).text()


def show_plan(trainer: Trainer, as_json: bool) -> None:
    """Print what training will take; nothing has been allocated.

    Raises:
        typer.Exit: it does not fit.
    """
    plan, available = trainer.plan(), trainer.step.get_execution_context().available_bytes()
    if as_json:
        print_json(plan_document(plan, available, trainer.step.parameter_count()))
    else:
        typer.echo(f"{trainer.step.network.name}: {trainer.step.parameter_count():,} parameters")
        typer.echo(plan_text(plan, available))
    if fits(plan, available) is False:
        raise leave(DOES_NOT_FIT, verdict(plan, available))


def _new_trainer(choices: options.Choices, place: ExecutionContext) -> Trainer:
    config = options.new_config(choices)
    text = read_texts(choices)
    by_character = choices.tokenizer is options.TokenizerKind.CHARACTER
    tokenizer: Tokenizer = CharacterTokenizer.from_text(text) if by_character else ByteTokenizer()
    network = options.new_network(choices, tokenizer.vocab_size)
    network.set_execution_context(place)
    split = split_tokens(tokenizer.encode(text), choices.validation_fraction)
    return Trainer(network, split, config, choices.out, tokenizer=tokenizer)


def _resumed_trainer(choices: options.Choices, place: ExecutionContext, has_steps: bool) -> Trainer:
    """As the newest checkpoint says, ``--steps`` aside."""
    path = RunFolder(choices.out).require_newest()
    state, tokenizer = read_training_state(path), load_tokenizer(path)
    if tokenizer is None:
        raise CheckpointError(f"{path}: expected a checkpoint with a tokenizer, got one without")
    network = load_architecture(path, device=None, seed=state.network_seed)
    network.set_execution_context(place)
    config = state.config.model_copy(update={"steps": choices.steps}) if has_steps else state.config
    split = split_tokens(tokenizer.encode(read_texts(choices)), choices.validation_fraction)
    return Trainer(network, split, config, choices.out, tokenizer=tokenizer)


def _run(trainer: Trainer, choices: options.Choices) -> None:
    if not choices.resume:
        trainer.require_free_folder()
    build = trainer.build()
    if choices.resume:
        trainer.resume()
    done = trainer.step.update_count
    if choices.as_json:
        print_json({"event": "build", "resident_bytes": build.resident_bytes, "step": done})
        outcome = trainer.run(print_event)
        print_json({"event": "outcome", **asdict(outcome)})
    else:
        typer.echo(f"built; {_growth(trainer, build)}" + (f"; going on from step {done}" if done else ""))
        if done >= trainer.config.steps:
            typer.echo(f"nothing to do: the run has had its {trainer.config.steps} steps; --steps asks for more")
        with progress(trainer.config.steps, done) as draw:
            outcome = trainer.run(draw)
    if outcome.interrupted:
        raise leave(INTERRUPTED, f"interrupted; --resume goes on from {outcome.last_checkpoint}")


def _growth(trainer: Trainer, build: BuildReport) -> str:
    """What the build took: of the process on the CPU, of the device elsewhere."""
    is_host = trainer.step.device.is_host
    size = build.resident_bytes if is_host else build.allocated_bytes
    what = "resident memory" if is_host else f"memory in use on {trainer.step.device_id}"
    return f"{what} grew by {'an unknown size' if size is None else format_bytes(size)}"


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _require_nothing_else(context: typer.Context) -> None:
    """Refuse options beside ``--resume`` that the checkpoint decides."""
    given = [name for name in context.params if _was_given(context, name) and name not in _ALLOWED_WITH_RESUME]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise leave(USAGE, f"--resume takes the network and the training from the checkpoint; leave out {names}")
