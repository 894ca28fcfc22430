"""``mila inspect``: what is in a file, and is anything wrong with it?"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mila.cli.display import print_json, print_text
from mila.cli.documents import reading_progress, refusals_of
from mila.cli.failures import REFUSED, reports_errors
from mila.cli.inspect_text import inspection_text
from mila.planning import inspect


class Sort(StrEnum):
    """The order of the tensors that are listed."""

    FILE = "file"
    NAME = "name"
    BYTES = "bytes"


@reports_errors
def inspect_file(
    target: Annotated[
        str,
        typer.Argument(
            help="Safetensors file or index, model folder, GGUF file, config.json, what `mila train` wrote, or "
            "hf://owner/name[@revision][/file]."
        ),
    ],
    names: Annotated[
        str | None, typer.Option(metavar="<pattern>", help="Tensors to list: '*.mlp.*', or a part of the name.")
    ] = None,
    sort: Annotated[Sort, typer.Option(help="Order: as stored in the file, by name, or most bytes first.")] = Sort.FILE,
    check: Annotated[
        bool, typer.Option("--check", help="Read every value; checksums and config too. Problems are exit code 1.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what is in a file or a folder of weights: names, dtypes, shapes, exact bytes, metadata, problems.

    Of a model on the hub headers are read, and no values.

    Exit codes: 0 shown, 1 a file is malformed or, with --check, anything is wrong, 2 wrong usage.
    """
    drawn = reading_progress([target], quiet=as_json, what="checking" if check else "")
    with refusals_of([target], as_json, refused=REFUSED), drawn as draw:
        report = inspect(target, names=names, sort=sort.value, check=check, on_progress=draw, on_header=draw)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        print_text(f"{inspection_text(report)}\n")
    if check and report.problems:
        raise typer.Exit(REFUSED)
