"""The options of ``mila train``, one line each, and what is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mila.errors import ConfigurationError
from mila.models import GptConfig, GptTransformer, LanguageModel, LlamaConfig, LlamaTransformer
from mila.training import AdamWConfig, ConstantSchedule, CosineSchedule, LinearSchedule, Schedule, TrainerConfig


class ModelKind(StrEnum):
    """Which network is trained."""

    GPT = "gpt"
    LLAMA = "llama"


class TokenizerKind(StrEnum):
    """What a token is."""

    CHARACTER = "character"
    BYTE = "byte"


class ScheduleKind(StrEnum):
    """How the learning rate falls."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class DecodingErrorKind(StrEnum):
    """What happens to a file that is not UTF-8."""

    STRICT = "strict"
    REPLACE = "replace"
    SKIP = "skip"


Texts = Annotated[list[Path], typer.Argument(help="Text files, UTF-8; of a folder, those that match --pattern.")]
Out = Annotated[Path, typer.Option(help="Run folder, for checkpoints.")]
Model = Annotated[ModelKind, typer.Option(help="Network.")]
Width = Annotated[int, typer.Option(min=1, help="Width C.")]
Layers = Annotated[int, typer.Option(min=0, help="Blocks.")]
Heads = Annotated[int, typer.Option(min=1, help="Query heads.")]
KvHeads = Annotated[int | None, typer.Option(min=1, help="Key/value heads (llama).")]
HiddenDim = Annotated[int | None, typer.Option(min=1, help="Feed-forward width.")]
DropoutRate = Annotated[float, typer.Option(min=0, max=0.99, help="Dropout (gpt).")]
TokenizerOption = Annotated[TokenizerKind, typer.Option(help="What a token is.")]
Pattern = Annotated[str, typer.Option(help="Which files of a folder.")]
Undecodable = Annotated[DecodingErrorKind, typer.Option(help="What to do with files that are not UTF-8.")]
Fraction = Annotated[float, typer.Option(help="Share held out at the end.")]
Steps = Annotated[int, typer.Option(min=1, help="Updates in all.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Sequences per pass, B.")]
Length = Annotated[int, typer.Option(min=1, help="Tokens per sequence, T.")]
Accumulation = Annotated[int, typer.Option(min=1, help="Passes per update.")]
Rate = Annotated[float, typer.Option(help="Learning rate after the warm-up.")]
Warmup = Annotated[int, typer.Option(min=0, help="Steps of warm-up.")]
ScheduleOption = Annotated[ScheduleKind, typer.Option(help="Course of the rate.")]
Decay = Annotated[float, typer.Option(help="Weight decay.")]
Clip = Annotated[float, typer.Option(help="Largest gradient norm; 0: no limit.")]
ValidateEvery = Annotated[int, typer.Option(min=1, help="Steps between validations.")]
ValidationBatches = Annotated[int, typer.Option(min=1, help="Batches per validation.")]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")]
KeepLast = Annotated[int, typer.Option(min=1, help="Checkpoints kept, and the best.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of weights, dropout and data order.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of --out.")]
PlanOnly = Annotated[bool, typer.Option("--plan-only", help="Print the memory plan and stop.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one document per line.")]


@dataclass(frozen=True)
class Choices:
    """The parameters of ``mila train``, under the same names."""

    texts: list[Path]
    out: Path
    model: ModelKind
    width: int
    layers: int
    heads: int
    kv_heads: int | None
    hidden_dim: int | None
    dropout: float
    tokenizer: TokenizerKind
    pattern: str
    undecodable: DecodingErrorKind
    validation_fraction: float
    steps: int
    batch_size: int
    sequence_length: int
    accumulation: int
    learning_rate: float
    warmup: int
    schedule: ScheduleKind
    weight_decay: float
    clip: float
    validate_every: int
    validation_batches: int
    checkpoint_every: int
    keep_last: int
    seed: int
    device: str
    resume: bool
    plan_only: bool
    as_json: bool


def new_network(choices: Choices, vocab_size: int) -> LanguageModel[Any]:
    """The unbuilt network that the options describe, without a device.

    Raises:
        ConfigurationError: an option of the other network.
        pydantic.ValidationError: sizes that do not fit each other.
    """
    if choices.model is ModelKind.GPT:
        if choices.kv_heads is not None:
            raise ConfigurationError("--kv-heads: is an option of --model llama")
        gpt = GptConfig(
            vocab_size=vocab_size,
            embedding_dim=choices.width,
            num_layers=choices.layers,
            num_heads=choices.heads,
            max_seq_len=choices.sequence_length,
            hidden_dim=choices.hidden_dim,
            dropout=choices.dropout,
        )
        return GptTransformer("gpt", gpt, seed=choices.seed)
    if choices.dropout:
        raise ConfigurationError("--dropout: is an option of --model gpt")
    llama = LlamaConfig(
        vocab_size=vocab_size,
        embedding_dim=choices.width,
        num_layers=choices.layers,
        num_heads=choices.heads,
        num_kv_heads=choices.kv_heads,
        hidden_dim=8 * choices.width // 3 if choices.hidden_dim is None else choices.hidden_dim,
        max_seq_len=choices.sequence_length,
    )
    return LlamaTransformer("llama", llama, seed=choices.seed)


def new_config(choices: Choices) -> TrainerConfig:
    """The config of the trainer that the options describe.

    Raises:
        pydantic.ValidationError: a number that is out of range.
    """
    clip = choices.clip if choices.clip else None
    return TrainerConfig(
        steps=choices.steps,
        batch_size=choices.batch_size,
        sequence_length=choices.sequence_length,
        accumulation_steps=choices.accumulation,
        schedule=new_schedule(choices.schedule, choices.learning_rate, choices.warmup, choices.steps),
        optimizer=AdamWConfig(beta2=0.99, weight_decay=choices.weight_decay, maximum_norm=clip),
        validate_every=choices.validate_every,
        validation_batches=choices.validation_batches,
        checkpoint_every=choices.checkpoint_every,
        keep_last=choices.keep_last,
        seed=choices.seed,
    )


def new_schedule(kind: ScheduleKind, rate: float, warmup: int, steps: int) -> Schedule:
    """The schedule over ``steps``; decaying ones end at a tenth of the rate.

    A warm-up of more than a tenth of the steps is shortened to that: short trials need no other options.

    Raises:
        pydantic.ValidationError: a rate that is not above 0.
    """
    warmup = min(warmup, steps // 10)
    if kind is ScheduleKind.CONSTANT:
        return ConstantSchedule(initial=rate, warmup_steps=warmup)
    schedule = LinearSchedule if kind is ScheduleKind.LINEAR else CosineSchedule
    return schedule(initial=rate, final=rate / 10, total_steps=steps, warmup_steps=warmup)
