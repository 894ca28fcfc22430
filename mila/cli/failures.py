"""Errors as one line on standard error, and an exit code."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer
from pydantic import ValidationError

from mila.cli.display import print_note
from mila.errors import ConfigurationError, MilaError, OutOfMemoryError

REFUSED = 1
USAGE = 2
DOES_NOT_FIT = 3
INTERRUPTED = 130

#: Options by the fields of configs that refuse their values.
_OPTIONS = {
    "initial": "--learning-rate",
    "final": "--learning-rate",
    "maximum_norm": "--clip",
    "weight_decay": "--weight-decay",
    "embedding_dim": "--width",
    "num_heads": "--heads",
    "num_kv_heads": "--kv-heads",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "repetition_penalty": "--repetition-penalty",
}

_IGNORE = re.compile(r"pass ignore_fields=\['([\w.-]+)'\]")

#: Longer words are shortened in the middle; all paths that people have are shorter.
_LONG_WORD = re.compile(r"\S{401,}")
_KEPT = 100

P = ParamSpec("P")


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn what a command raises into one line on standard error and an exit code; errors of Mila's own code pass."""

    @functools.wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            command(*arguments, **options)
        except OutOfMemoryError as error:
            raise leave(DOES_NOT_FIT, str(error)) from error
        except ConfigurationError as error:
            raise leave(USAGE, str(error)) from error
        except MilaError as error:
            raise leave(REFUSED, str(error)) from error
        except ValidationError as error:
            raise leave(USAGE, options_line(error)) from error
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on: nothing to flush to
            raise typer.Exit(REFUSED) from error
        except OSError as error:
            raise leave(REFUSED, system_message(error)) from error
        except KeyboardInterrupt as error:
            raise leave(INTERRUPTED, "interrupted") from error

    return run


def leave(code: int, message: str) -> typer.Exit:
    """Print one line on standard error, and return what ends the command."""
    print_note(f"mila: {one_line(message)}")
    return typer.Exit(code)


def one_line(message: str) -> str:
    """An error as the command line says it: on one line, options by their names, and no name that fills the screen."""
    line = " ".join(message.split())
    return _LONG_WORD.sub(_shortened, _IGNORE.sub(r"pass --ignore-fields \1", line))


def _shortened(found: re.Match[str]) -> str:
    """The beginning and the end, which are what tells long names apart."""
    word = found[0]
    return f"{word[:_KEPT]}…{word[-_KEPT:]} ({len(word):,} characters)"


def system_message(error: OSError) -> str:
    """What the operating system refuses, and of which file."""
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}"


def options_line(error: ValidationError) -> str:
    """The first thing that a config refuses, by the name of its field."""
    first = error.errors()[0]
    place = _OPTIONS.get(str(first["loc"][-1]), ".".join(map(str, first["loc"]))) if first["loc"] else ""
    message = first["msg"].removeprefix("Value error, ")
    return f"{place}: {message}, got {first['input']!r:.80}" if place else message
