"""``mila compare``: what differs between two checkpoints, or two configs?"""

from __future__ import annotations

from typing import Annotated

import typer

from mila.cli.display import print_json, print_text
from mila.cli.documents import reading_progress, refusals_of
from mila.cli.failures import reports_errors
from mila.cli.inspect_text import comparison_text
from mila.planning import compare as comparison_of

#: As of ``diff`` and ``cmp``: a script must be able to tell that two differ from that one cannot be read.
DIFFERENT, TROUBLE = 1, 2


@reports_errors
def compare(
    a: Annotated[str, typer.Argument(help="What `mila inspect` takes.")],
    b: Annotated[str, typer.Argument(help="The other.")],
    values: Annotated[bool, typer.Option(help="Compare values, or headers and configs alone.")] = True,
    tolerance: Annotated[
        float, typer.Option(metavar="<number>", help="Absolute differences of values up to this one are none.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what differs between two checkpoints or configs: names, dtypes, shapes, values, metadata, settings.

    Dtype, metadata and the order of tensors make no difference where all values are the same.

    Of a model on the hub (hf://owner/name) headers are compared, and no values.

    Exit codes: 0 the same, 1 different, 2 a file is malformed or wrong usage.
    """
    drawn = reading_progress([a, b], quiet=as_json, what="comparing" if values else "")
    with refusals_of([a, b], as_json, refused=TROUBLE), drawn as draw:
        report = comparison_of(a, b, values=values, tolerance=tolerance, on_progress=draw, on_header=draw)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        print_text(f"{comparison_text(report)}\n")
    if not report.same:
        raise typer.Exit(DIFFERENT)
