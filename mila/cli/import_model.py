"""``mila import``: a GGUF file as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mila.cli.display import loading_progress, print_json, print_note
from mila.cli.failures import reports_errors
from mila.models.gguf_import import import_gguf


class WeightDType(StrEnum):
    """In which dtype weights are written."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@reports_errors
def import_model(
    file: Annotated[Path, typer.Argument(help="GGUF file: llama, qwen2, qwen3 or gpt2.")],
    out: Annotated[Path, typer.Argument(help="New folder; one of an earlier import is replaced.")],
    dtype: Annotated[WeightDType, typer.Option(help="Dtype of the weights that are written.")] = WeightDType.FLOAT32,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write a GGUF file as a Hugging Face folder: config, weights, tokenizer, chat template."""
    with loading_progress(quiet=as_json) as draw:
        report = import_gguf(file, out, dtype=dtype.value, on_progress=draw)
    if as_json:
        print_json(asdict(report))
        return
    types = ", ".join(f"{name} ({count})" for name, count in report.tensor_types.items())
    typer.echo(f"{out}: {report.model_type}, {report.parameter_count:,} parameters")
    typer.echo(f"weights: {report.weight_bytes:,} bytes of {report.dtype}, from {types}")
    for note in report.notes:
        print_note(f"note: {note}")
