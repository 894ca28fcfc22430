"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

import mila
from mila.cli.chat import chat
from mila.cli.compare import compare
from mila.cli.demo import demo
from mila.cli.documents import DocumentCommand
from mila.cli.embed import embed
from mila.cli.generate import generate
from mila.cli.import_model import import_model
from mila.cli.inspect_file import inspect_file
from mila.cli.network import network
from mila.cli.plan import PlanCommand, plan
from mila.cli.sample import sample
from mila.cli.train import train

EXIT_CODES = (
    "Exit codes: 0 done, 1 refused or failed, 2 wrong usage or network definition, 3 does not fit into memory, "
    "130 interrupted."
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mila {mila.__version__}")
        raise typer.Exit


def _mila(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Transformers that know their bytes: plan, train, generate and chat on this machine."""


app = typer.Typer(
    name="mila", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.callback(epilog=EXIT_CODES)(_mila)
app.command(cls=PlanCommand, epilog="Example: mila plan llama-3.1-8b --context 32k --dtype bfloat16 --budget 24GiB")(
    plan
)
app.command("inspect", cls=DocumentCommand, epilog="Example: mila inspect model.safetensors --check")(inspect_file)
app.command(cls=DocumentCommand, epilog="Example: mila compare model.safetensors model_bfloat16.safetensors")(compare)
app.command(epilog="Example: mila train book.txt --out run --steps 500")(train)
app.command(epilog="Example: mila sample run --prompt 'Once upon' --length 200 --temperature 0.8")(sample)
app.command(epilog="Example: mila generate ./SmolLM2-135M 'Once upon a time' --max-new-tokens 50")(generate)
app.command(epilog="Example: mila chat ./SmolLM2-135M-Instruct --system 'Answer in one sentence.'")(chat)
app.command(epilog="Example: mila embed ./clip-vit-base-patch32 'a cat' 'a dog' --output texts.npy")(embed)
app.command(epilog="Example: mila demo --seconds 60 --out demo")(demo)
app.command("import", epilog="Example: mila import model.gguf model --dtype bfloat16")(import_model)
app.command(epilog="Example: mila network encoder.txt --input B,6 --output B,8 --input-dtype int64")(network)
