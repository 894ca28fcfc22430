"""How a command looks while it runs: a progress bar on a terminal, lines elsewhere, JSON for machines."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from mila.training import CheckpointReport, StepReport, TrainingEvent, ValidationReport

_NAMES = {StepReport: "step", ValidationReport: "validation", CheckpointReport: "checkpoint"}
#: All but the line feed and the tab.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
Listener = Callable[[TrainingEvent], None]


def print_json(document: dict[str, Any]) -> None:
    """One document, on one line of standard output."""
    typer.echo(json.dumps(document, default=str))
    sys.stdout.flush()


def print_event(event: TrainingEvent) -> None:
    """An event as one line of JSON, its kind in ``event``."""
    print_json({"event": _NAMES[type(event)], **asdict(event)})


@contextmanager
def progress(steps: int, done: int = 0, *, show_lines: bool = True) -> Iterator[Listener]:
    """Give what draws events: a bar on standard error where that is a terminal, and lines on standard output.

    Args:
        steps: of the whole run.
        done: those before.
        show_lines: print validations and checkpoints.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("training", total=steps, completed=done, numbers="")

        def draw(event: TrainingEvent) -> None:
            if isinstance(event, StepReport):
                numbers = f"loss {event.loss:.4f}  {event.tokens_per_second:,.0f} tokens/s"
                bar.update(task, completed=event.step, numbers=numbers)
            elif show_lines and console.is_terminal and sys.stdout.isatty():
                console.print(line_of(event), markup=False, highlight=False, soft_wrap=True)  # above the bar
            elif show_lines:
                typer.echo(line_of(event))

        yield draw


@contextmanager
def loading_progress(*, quiet: bool = False, what: str = "loading") -> Iterator[Callable[[int, int], None]]:
    """Give what draws how much is done, of how much: a bar on standard error where that is a terminal.

    Args:
        quiet: draw nothing.
        what: what is done.
    """
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(bar_width=None), TaskProgressColumn())
    hidden = quiet or not console.is_terminal
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=hidden, expand=True)
    with bar:
        task = bar.add_task(what, total=None)

        def draw(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield draw


def print_note(line: str) -> None:
    """One line for people on standard error, beside what the command prints; control characters are shown."""
    typer.echo(without_controls(line), err=True)


def print_text(piece: str) -> None:
    """A piece of a growing text, at once. On a terminal, control characters are shown, not obeyed."""
    if sys.stdout.isatty():
        piece = without_controls(piece)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # models write more characters than some terminals have
    sys.stdout.write(piece)
    sys.stdout.flush()


def without_controls(text: str) -> str:
    """What a model or its files say, such that it cannot move the cursor, set the title, or hide a line."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def line_of(event: TrainingEvent) -> str:
    """An event as one line for people."""
    if isinstance(event, StepReport):
        return f"step {event.step}: loss {event.loss:.4f}, {event.tokens_per_second:,.0f} tokens/s"
    if isinstance(event, ValidationReport):
        best = " (best)" if event.is_best else f" (best {event.best_loss:.4f})"
        return f"step {event.step}: validation loss {event.loss:.4f}{best}"
    return f"step {event.step}: checkpoint {event.path}"
