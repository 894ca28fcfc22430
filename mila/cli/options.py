"""The options of ``mila train``, one line each."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mila.errors import ConfigurationError
from mila.models import GptConfig, GptTransformer, LanguageModel, LlamaConfig, LlamaTransformer
from mila.training import AdamWConfig, ConstantSchedule, CosineSchedule, LinearSchedule, Schedule, TrainerConfig


class ModelKind(str, Enum):
    """Which network is trained."""

    GPT = "gpt"
    LLAMA = "llama"


class TokenizerKind(str, Enum):
    """What a token is."""

    CHARACTER = "character"
    BYTE = "byte"


class ScheduleKind(str, Enum):
    """How the learning rate falls."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


_MODEL, _DATA, _TRAINING = "Model", "Data", "Training"

Texts = Annotated[list[Path], typer.Argument(help="Text files, UTF-8; of a folder, those that match --pattern.")]
Out = Annotated[Path, typer.Option(help="Run folder, for checkpoints.")]
Model = Annotated[ModelKind, typer.Option(help="Network.", rich_help_panel=_MODEL)]
Width = Annotated[int, typer.Option(min=1, help="Width C.", rich_help_panel=_MODEL)]
Layers = Annotated[int, typer.Option(min=0, help="Blocks.", rich_help_panel=_MODEL)]
Heads = Annotated[int, typer.Option(min=1, help="Query heads.", rich_help_panel=_MODEL)]
KvHeads = Annotated[int | None, typer.Option(min=1, help="Key/value heads (llama).", rich_help_panel=_MODEL)]
HiddenDim = Annotated[int | None, typer.Option(min=1, help="Feed-forward width.", rich_help_panel=_MODEL)]
DropoutRate = Annotated[float, typer.Option(min=0, max=0.99, help="Dropout (gpt).", rich_help_panel=_MODEL)]
TokenizerOption = Annotated[TokenizerKind, typer.Option(help="What a token is.", rich_help_panel=_DATA)]
Pattern = Annotated[str, typer.Option(help="Which files of a folder.", rich_help_panel=_DATA)]
Fraction = Annotated[float, typer.Option(help="Share held out at the end.", rich_help_panel=_DATA)]
Steps = Annotated[int, typer.Option(min=1, help="Updates in all.", rich_help_panel=_TRAINING)]
BatchSize = Annotated[int, typer.Option(min=1, help="Sequences per pass, B.", rich_help_panel=_TRAINING)]
Length = Annotated[int, typer.Option(min=1, help="Tokens per sequence, T.", rich_help_panel=_TRAINING)]
Accumulation = Annotated[int, typer.Option(min=1, help="Passes per update.", rich_help_panel=_TRAINING)]
Rate = Annotated[float, typer.Option(help="Learning rate after the warm-up.", rich_help_panel=_TRAINING)]
Warmup = Annotated[int, typer.Option(min=0, help="Steps of warm-up.", rich_help_panel=_TRAINING)]
ScheduleOption = Annotated[ScheduleKind, typer.Option(help="Course of the rate.", rich_help_panel=_TRAINING)]
Decay = Annotated[float, typer.Option(help="Weight decay.", rich_help_panel=_TRAINING)]
Clip = Annotated[float, typer.Option(help="Largest gradient norm; 0: no limit.", rich_help_panel=_TRAINING)]
ValidateEvery = Annotated[int, typer.Option(min=1, help="Steps between validations.", rich_help_panel=_TRAINING)]
ValidationBatches = Annotated[int, typer.Option(min=1, help="Batches per validation.", rich_help_panel=_TRAINING)]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Steps between checkpoints.", rich_help_panel=_TRAINING)]
KeepLast = Annotated[int, typer.Option(min=1, help="Checkpoints kept, and the best.", rich_help_panel=_TRAINING)]
Seed = Annotated[int, typer.Option(min=0, help="Seed of weights, dropout and data order.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of --out.")]
PlanOnly = Annotated[bool, typer.Option("--plan-only", help="Print the memory plan and stop.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one document per line.")]


def new_network(
    kind: ModelKind,
    *,
    vocab_size: int,
    width: int,
    layers: int,
    heads: int,
    kv_heads: int | None,
    hidden_dim: int | None,
    dropout: float,
    sequence_length: int,
    seed: int,
) -> LanguageModel[GptConfig] | LanguageModel[LlamaConfig]:
    """The unbuilt network that the options describe.

    Raises:
        ConfigurationError: an option of the other network.
        pydantic.ValidationError: sizes that do not fit each other.
    """
    if kind is ModelKind.GPT:
        if kv_heads is not None:
            raise ConfigurationError("--kv-heads: is an option of --model llama")
        gpt = GptConfig(
            vocab_size=vocab_size,
            embedding_dim=width,
            num_layers=layers,
            num_heads=heads,
            max_seq_len=sequence_length,
            hidden_dim=hidden_dim,
            dropout=dropout,
        )
        return GptTransformer("gpt", gpt, device="cpu", seed=seed)
    if dropout:
        raise ConfigurationError("--dropout: is an option of --model gpt")
    llama = LlamaConfig(
        vocab_size=vocab_size,
        embedding_dim=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        hidden_dim=hidden_dim if hidden_dim is not None else 8 * width // 3,
        max_seq_len=sequence_length,
    )
    return LlamaTransformer("llama", llama, device="cpu", seed=seed)


def new_schedule(kind: ScheduleKind, rate: float, warmup: int, steps: int) -> Schedule:
    """The schedule over ``steps``; a warm-up longer than a tenth of them is shortened to that.

    Raises:
        pydantic.ValidationError: a rate that is not above 0.
    """
    warmup = min(warmup, steps // 10)
    if kind is ScheduleKind.CONSTANT:
        return ConstantSchedule(initial=rate, warmup_steps=warmup)
    schedule = LinearSchedule if kind is ScheduleKind.LINEAR else CosineSchedule
    return schedule(initial=rate, final=rate / 10, total_steps=steps, warmup_steps=warmup)


def new_optimizer(decay: float, clip: float) -> AdamWConfig:
    """AdamW with the options' weight decay and clipping.

    Raises:
        pydantic.ValidationError: a number that is out of range.
    """
    return AdamWConfig(beta2=0.99, weight_decay=decay, maximum_norm=clip if clip else None)
