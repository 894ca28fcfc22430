"""``mila demo``: everything that Mila promises of training, shown on this machine in about a minute."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mila.cli.demo_run import DemoSettings, demo_split, demo_trainer, take_last_steps
from mila.cli.display import print_json, progress
from mila.cli.failures import REFUSED, leave, reports_errors
from mila.cli.train import show_plan
from mila.errors import CheckpointError
from mila.memory import format_bytes
from mila.training import (
    ByteTokenizer,
    StepReport,
    TokenSplit,
    Trainer,
    TrainingEvent,
    bigram_loss,
    load_model,
    sample_text,
)

_CALIBRATION_STEPS = 6
_SMALLEST, _LARGEST = 40, 20_000
_PROMPT = "def "


@dataclass
class DemoResult:
    """What the demo found; ``claims`` says which promises held."""

    steps: int
    out: Path
    predicted_bytes: int = 0
    allocated_bytes: int | None = None
    resident_bytes: int | None = None
    bigram_loss: float = 0.0
    validation_loss: float = 0.0
    training_seconds: float = 0.0
    tokens_per_second: float = 0.0
    sample: str = ""
    claims: dict[str, bool] = field(default_factory=dict)


@reports_errors
def demo(
    seconds: Annotated[float, typer.Option(min=1, help="Train for about so long on this machine.")] = 60,
    steps: Annotated[int | None, typer.Option(min=20, help="Train for exactly so many steps instead.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs; a temporary one by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and data order.")] = 0,
) -> None:
    """Train a small GPT on Python's own library: plan, build, train, resume in a new process, sample, and check it all."""
    say = _silent if as_json else typer.echo
    folder = Path(tempfile.mkdtemp(prefix="mila-demo-")) if out is None else out
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{folder}: expected a new or an empty folder for --out")
    settings = DemoSettings(seed=seed)
    split = demo_split(settings)
    say(f"corpus: {split.training.size:,} bytes of Python's library to train on, {split.validation.size:,} held out")
    chosen = steps if steps is not None else _steps_for(seconds, settings, split, say)
    settings = settings.model_copy(update={"steps": chosen})
    result = DemoResult(chosen, folder)
    _train(settings, split, result, say, as_json)
    _write_sample(result, say)
    failed = [claim for claim, held in result.claims.items() if not held]
    if as_json:
        print_json(asdict(result))
    for claim, held in result.claims.items():
        say(f"{'yes' if held else 'NO '}  {claim}")
    say(f"runs and checkpoints: {folder}")
    if failed:
        raise leave(REFUSED, f"demo: not true on this machine: {'; '.join(failed)}")
