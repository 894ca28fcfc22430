"""The options of ``mila plan``, one each."""

from __future__ import annotations

from typing import Annotated

import typer

TargetName = Annotated[
    str | None,
    typer.Argument(help="Model folder, config.json, safetensors file or index, GGUF file, preset or hf://owner/name."),
]
ModeName = Annotated[str | None, typer.Option(help="inference (default) or training.")]
Context = Annotated[
    str | None, typer.Option(metavar="<number>", help="Positions, such as 4096 or 32k; by default all.")
]
Batch = Annotated[str | None, typer.Option(metavar="<number>", help="Sequences; by default 1.")]
Prefill = Annotated[str | None, typer.Option(metavar="<number>", help="Positions of one call at most (inference).")]
StoredDtype = Annotated[
    str | None, typer.Option(help="Stored dtype: float32 (default), bfloat16, float16 or float64; several by commas.")
]
Quantize = Annotated[str | None, typer.Option(help="Quantization policy; there is only none yet.")]
Optimizer = Annotated[str | None, typer.Option(help="adamw (default) or none (training).")]
Accumulate = Annotated[str | None, typer.Option(metavar="<number>", help="Passes per update (training).")]
Device = Annotated[str, typer.Option(help="cpu or cuda:<index>, which need not be here.")]
BudgetSize = Annotated[
    str | None, typer.Option(metavar="<size>", help="Memory there is, such as 24GiB; by default what is free now.")
]
Tied = Annotated[
    bool | None, typer.Option(help="Whether the head computes with the token table; by default as the config says.")
]
IgnoreField = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore-field",
        "--ignore-fields",
        metavar="<name>",
        help="Unknown field of the config that changes nothing; repeatable.",
    ),
]
Tree = Annotated[bool, typer.Option("--tree", help="Also print a row for every component.")]
Search = Annotated[bool, typer.Option(help="Look for what fits, and for what would make it fit.")]
Sweep = Annotated[
    list[str] | None,
    typer.Option(metavar="<option=values>", help="A table over context=1k..128k, batch=1,2,4, ...; repeatable."),
]
Html = Annotated[str | None, typer.Option(metavar="<file>", help="Write a page into this file, which ends in .html.")]
Plot = Annotated[
    str | None, typer.Option(metavar="<file>", help="Draw a picture into this file, which ends in .png, .svg or .pdf.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
ListPresets = Annotated[bool, typer.Option("--list-presets", help="Print the presets and leave.")]
