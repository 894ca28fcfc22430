"""``mila sample``: text from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mila.cli.device_options import Device, execution_context
from mila.cli.display import print_text
from mila.cli.failures import reports_errors
from mila.cli.text_options import checked_text
from mila.errors import CheckpointError, DataError
from mila.training import Tokenizer, load_model, load_tokenizer, sample_text


@reports_errors
def sample(
    run: Annotated[Path, typer.Argument(help="Run folder, checkpoint, or saved model.")],
    prompt: Annotated[
        str | None, typer.Option(help="What the text starts with; by default a new line, or the first character known.")
    ] = None,
    length: Annotated[int, typer.Option(min=0, help="Tokens to write.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token each time.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw among so many likeliest tokens.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed writes the same text.")] = 0,
    device: Device = "cpu",
) -> None:
    """Write text with what `mila train` wrote: the prompt, and what follows. `mila generate` is for model folders."""
    context = execution_context(device)
    if (run / "config.json").is_file():
        raise CheckpointError(f"{run}: expected what `mila train` wrote, got a model folder; it is for `mila generate`")
    tokenizer = load_tokenizer(run)
    if tokenizer is None:
        raise CheckpointError(f"{run}: expected a model with a tokenizer, got one without")
    prompt = _first_prompt(tokenizer) if prompt is None else checked_text(prompt, "--prompt")
    model = load_model(run, context)
    text = sample_text(model, tokenizer, prompt, length, temperature=temperature, top_k=top_k, seed=seed)
    print_text(f"{prompt}{text}\n")


def _first_prompt(tokenizer: Tokenizer) -> str:
    try:
        tokenizer.encode("\n")
    except DataError:
        return tokenizer.decode([0])
    return "\n"
