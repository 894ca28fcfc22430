"""``mila network``: a definition checked, shown, planned and drawn; the operators there are."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from mila.cli import network_text as text
from mila.cli.display import print_json, print_note, print_text
from mila.cli.failures import DOES_NOT_FIT, USAGE, leave, reports_errors
from mila.cli.plan_text import fits, plan_document, plan_text, verdict
from mila.core import BuildContext, RuntimeMode
from mila.errors import ConfigurationError, NetworkError
from mila.memory import MemoryPlan
from mila.network_language import BUILT_IN, DefinedNetwork, ResolvedNetwork
from mila.network_language.catalogue import operator_section
from mila.network_language.drawing import draw
from mila.network_language.shapes import rows_of
from mila.serialization import filesystem, write_file_atomically

#: Bytes at the start of a file that tell whether it is a drawing.
_SVG_START = 4096


class Mode(StrEnum):
    """What memory is planned for."""

    INFERENCE = "inference"
    TRAINING = "training"


@reports_errors
def network(
    file: Annotated[
        Path | None, typer.Argument(help="Text file with a network definition; - is standard input.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="<shape>", help="Input contract: B,6; of several inputs x=B,6,8 for each."),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="<shape>", help="Output contract, likewise."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Stored dtype: float32, float16 or bfloat16; by default float32.")
    ] = None,
    input_dtypes: Annotated[
        list[str] | None,
        typer.Option("--input-dtype", metavar="<dtype>", help="int64, int32 or bool; of one input ids=int64."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Rows that memory is planned for; by default 1, or the contract's.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="What memory is planned for.")] = Mode.INFERENCE,
    svg: Annotated[Path | None, typer.Option(help="Draw the network into this file, which ends in .svg.")] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Print where every input of every node comes from.")] = False,
    list_operators: Annotated[bool, typer.Option("--list", help="Print the operators instead.")] = False,
    operator: Annotated[str | None, typer.Option(help="Print what there is to know of an operator instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one document per line.")] = False,
) -> None:
    """Check a network definition: print its table and parameters, and plan its memory; nothing is built.

    The contracts may stand in the file, as comments at its top: `# input: B, 6`, `# output: B, 8`, `# dtype: float32`,
    `# input_dtype: int64`; options win.
    """
    if sum((file is not None, list_operators, operator is not None)) != 1:
        raise leave(USAGE, "expected one of FILE, --list and --operator; see mila network --help")
    if file is None:
        _show_operators(operator, as_json)
        return
    _check_svg(svg, file)
    definition = text.Definition.empty(file)
    try:
        definition = text.Definition.read(file)
        contracts = definition.contracts(inputs or [], outputs or [], dtype, input_dtypes or [])
        for note in definition.notes(dtype, input_dtypes or []):
            print_note(f"note: {note}")
        _show_network(definition.resolve(contracts), batch, mode, svg, graph=graph, as_json=as_json)
    except NetworkError as error:
        if as_json:
            print_json(text.error_document(error))
            raise typer.Exit(USAGE) from error
        failure = leave(USAGE, f"{definition.name}: {error}")
        excerpt = definition.excerpt(error)
        if excerpt:
            print_note(excerpt)
        raise failure from error


def _check_svg(svg: Path | None, file: Path) -> None:
    """Refuse before anything is read a drawing that would replace something else than a drawing.

    Raises:
        ConfigurationError: a name without the ending, the definition itself, or a file that is no SVG.
    """
    if svg is None:
        return
    if svg.suffix != ".svg":
        hint = "; standard output has the table" if str(svg) == text.STANDARD_INPUT else ""
        raise ConfigurationError(f"--svg: expected a file that ends in .svg, got {svg.name!r}{hint}")
    if not svg.is_file():
        return
    if file.exists() and svg.samefile(file):
        raise ConfigurationError(f"--svg: expected another file than the definition, got {svg}")
    with svg.open("rb") as stream:
        start = stream.read(_SVG_START).lstrip(b"\xef\xbb\xbf \t\r\n")
    if start and not (start.startswith(b"<") and b"<svg" in start):
        raise ConfigurationError(f"--svg: expected a free name or an SVG to replace, got {svg}, which is no SVG")


def _show_operators(name: str | None, as_json: bool) -> None:
    """One operator, or all of them in short."""
    try:
        operators = BUILT_IN.operators if name is None else (BUILT_IN[name],)
    except NetworkError as error:
        raise leave(USAGE, str(error)) from error
    if as_json:
        for each in operators:
            print_json(text.operator_document(each))
    elif name is None:
        print_text("\n".join(text.operator_lines(operators)) + "\n")
    elif sys.stdout.isatty():
        Console().print(Markdown(operator_section(operators[0])))
    else:
        print_text(operator_section(operators[0]) + "\n")


def _show_network(
    resolved: ResolvedNetwork, batch: int | None, mode: Mode, svg: Path | None, *, graph: bool, as_json: bool
) -> None:
    rows = _rows(resolved, batch)
    if not as_json:
        print_text(f"{resolved}\n\n{resolved.parameters_line}\n")
        if graph:
            print_text(f"\n{resolved.network_table()}\n")
    if svg is not None:
        drawing = draw(resolved).encode()
        write_file_atomically(svg, lambda file: filesystem.write(file, drawing))
    built = DefinedNetwork("network", resolved=resolved, device="cpu")
    plan, available = _plan(built, rows, mode), built.get_execution_context().available_bytes()
    if as_json:
        planned = plan_document(plan, available, resolved.parameter_count())
        plan_part = {name: planned[name] for name in planned if name not in ("event", "parameters")}
        print_json({**text.network_document(resolved), "plan": {"batch": rows, "mode": mode.value, **plan_part}})
    else:
        print_text(f"\nMemory for {mode.value}, batch {rows}:\n\n{plan_text(plan, available)}\n")
    if fits(plan, available) is False:
        raise leave(DOES_NOT_FIT, verdict(plan, available))


def _rows(resolved: ResolvedNetwork, batch: int | None) -> int:
    """The batch that is planned for.

    Raises:
        ConfigurationError: another one than that of the contracts.
    """
    fixed, is_free = rows_of(resolved.inputs[0].shape[0])
    if is_free:
        return 1 if batch is None else batch
    if batch not in (None, fixed):
        raise ConfigurationError(f"--batch: the contracts fix it at {fixed}, got {batch}")
    return fixed


def _plan(built: DefinedNetwork, rows: int, mode: Mode) -> MemoryPlan:
    runtime_mode = RuntimeMode.TRAINING if mode is Mode.TRAINING else RuntimeMode.INFERENCE
    shapes = {tensor.name: (rows, *map(int, tensor.shape[1:])) for tensor in built.resolved.inputs}
    return built.plan(BuildContext(shapes, runtime_mode))
